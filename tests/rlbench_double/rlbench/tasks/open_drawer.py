"""Take the handle of one of three drawers and pull."""

import numpy as np
from pyrep.backend import rotation, sim
from pyrep.backend.sim import Body
from pyrep.objects import Dummy, Joint, Shape

from rlbench.backend.conditions import JointCondition
from rlbench.backend.scenery import joint, shape, waypoint
from rlbench.backend.task import Task

HEIGHTS_M = {"bottom": 0.08, "middle": 0.2, "top": 0.32}
FRONT_M, LONGEST_M = -0.1, 0.25
HOLD_M = 0.05


class OpenDrawer(Task):
    def model(self) -> list[Body]:
        bodies = [shape("drawer_frame", (0.1, 0, 0.2), size=0.15)]
        for name, height in HEIGHTS_M.items():
            bodies.append(joint(f"drawer_joint_{name}", (0, 0, height)))
            bodies.append(shape(f"drawer_handle_{name}", (FRONT_M, 0, height)))
        ways = [waypoint(0, (0, 0, 0)), waypoint(1, (0, 0, 0), "close_gripper()")]
        return [*bodies, *ways, waypoint(2, (0, 0, 0))]

    def init_task(self) -> None:
        self._names = list(HEIGHTS_M)
        self._joints = [Joint(f"drawer_joint_{name}") for name in self._names]
        self._handles = [Shape(f"drawer_handle_{name}") for name in self._names]
        self._held: tuple[int, np.ndarray, float] | None = None

    def init_episode(self, index: int) -> list[str]:
        self._held = None
        name = self._names[index]
        for number, place in enumerate((FRONT_M - 0.08, FRONT_M, FRONT_M - 0.2)):
            Dummy(f"waypoint{number}").set_position(self.to_world((place, 0, HEIGHTS_M[name])))
        self.register_success_conditions([JointCondition(self._joints[index], 0.15)])
        return [f"pull open the {name} drawer", f"open the {name} one", f"slide out the {name}"]

    def variation_count(self) -> int:
        return len(HEIGHTS_M)

    def base_rotation_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0, 0, -np.pi / 8), (0, 0, np.pi / 8)

    def step(self) -> None:
        """A drawer whose handle is held follows the hand along its rail."""
        tip = self.robot.arm.get_tip().get_position()
        if self.robot.gripper.get_open_amount()[0] > 0.5:
            self._held = None
        elif self._held is None:
            self._held = self._take_hold(tip)
        if self._held is None:
            return
        index, start, slid = self._held
        inward = rotation.rotate(sim.get(self.name).quaternion, (1.0, 0.0, 0.0))
        out = float(np.clip(slid + np.dot(start - tip, inward), 0.0, LONGEST_M))
        self._joints[index].set_joint_position(out)
        height = HEIGHTS_M[self._names[index]]
        self._handles[index].set_position(self.to_world((FRONT_M - out, 0, height)))

    def _take_hold(self, tip: np.ndarray) -> tuple[int, np.ndarray, float] | None:
        distances = [np.linalg.norm(handle.get_position() - tip) for handle in self._handles]
        index = int(np.argmin(distances))
        if distances[index] > HOLD_M:
            return None
        return index, tip, self._joints[index].get_joint_position()
