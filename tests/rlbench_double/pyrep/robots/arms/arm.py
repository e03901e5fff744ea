"""An arm that can be steered, solved and planned for."""

from collections.abc import Sequence

import numpy as np

from pyrep.backend import rotation, sim
from pyrep.backend.switches import count, hang, happens
from pyrep.const import ConfigurationPathAlgorithms, ObjectType
from pyrep.errors import ConfigurationPathError, IKError
from pyrep.objects.dummy import Dummy
from pyrep.objects.object import Object, as_float32
from pyrep.robots.arms import kinematics
from pyrep.robots.arms.path import ArmConfigurationPath
from pyrep.robots.robot_component import Limits, RobotComponent

MAX_SPEED = 2.175  # rad/s
IK_REACH_M, IK_REACH_RADIANS = 0.2, 1.0
TABLE_HEIGHT_M = 0.752
LINEAR_POINTS = 50


class Arm(RobotComponent):
    def __init__(
        self, name: str, home: Sequence[float], max_velocity: float, max_acceleration: float
    ) -> None:
        if happens("handle", count("robot")):
            raise RuntimeError(f"Handle {name} does not exist.")
        self._home = as_float32(home)
        num_joints = len(home)
        low, high = (self._home + ends[:num_joints] for ends in (kinematics.LOW, kinematics.HIGH))
        self.max_velocity, self.max_acceleration = max_velocity, max_acceleration
        where = np.zeros(3), np.array(rotation.IDENTITY)
        self._tip_body = sim.add(sim.Body(f"{name}_tip", ObjectType.DUMMY, *where))
        grey = {"color": (0.9, 0.9, 0.9), "size": 0.03}
        self._hand = sim.add(sim.Body(f"{name}_hand", ObjectType.SHAPE, *where, **grey))
        self._ik_tip = Dummy(f"{name}_tip")
        super().__init__(name, home, Limits(low, high, np.full(num_joints, MAX_SPEED)))
        self.placed()

    def placed(self) -> None:
        position, quaternion = kinematics.solve_tip(self.positions - self._home)
        for body in (self._tip_body, self._hand):
            body.position, body.quaternion = position, quaternion

    def get_tip(self) -> Dummy:
        return self._ik_tip

    def get_objects_in_tree(self, object_type: ObjectType = ObjectType.ALL) -> list[Object]:
        bodies = (self._tip_body, self._hand)
        return [Object(body.name) for body in bodies if object_type in (ObjectType.ALL, body.kind)]

    def check_arm_collision(self, obj: Object | None = None) -> bool:
        return obj is None and bool(self._tip_body.position[2] < TABLE_HEIGHT_M)

    def reaches(self, position: Sequence[float], quaternion: Sequence[float]) -> bool:
        """Whether there are joint positions for a pose at all."""
        angles = self.positions - self._home
        return kinematics.solve_joints(position, quaternion, angles) is not None

    def solve_ik_via_jacobian(
        self,
        position: Sequence[float],
        euler: Sequence[float] | None = None,
        quaternion: Sequence[float] | None = None,
        relative_to: Object | None = None,
    ) -> list[float]:
        """Joint positions for a pose close to where the tip is."""
        sim.enter()
        if not np.all(np.isfinite([*position, *quaternion])):
            hang()
        position, quaternion = self._in_world(position, quaternion, relative_to)
        distance = np.linalg.norm(position - self._tip_body.position)
        turn = rotation.angle_between(quaternion, self._tip_body.quaternion)
        found = kinematics.solve_joints(position, quaternion, self.positions - self._home)
        if found is None or distance > IK_REACH_M or turn > IK_REACH_RADIANS:
            raise IKError("IK failed; the target may be too far from the tip.")
        return as_float32(found + self._home).tolist()

    def get_path(
        self,
        position: Sequence[float],
        euler: Sequence[float] | None = None,
        quaternion: Sequence[float] | None = None,
        ignore_collisions: bool = False,
        trials: int = 300,
        max_configs: int = 1,
        distance_threshold: float = 0.65,
        max_time_ms: int = 10,
        trials_per_goal: int = 1,
        algorithm: ConfigurationPathAlgorithms = ConfigurationPathAlgorithms.SBL,
        relative_to: Object | None = None,
    ) -> ArmConfigurationPath:
        """A straight line for the tip where it can be followed, else one through joint space."""
        sim.enter()
        position, quaternion = self._in_world(position, quaternion, relative_to)
        points = self._get_line(position, quaternion)
        if points is None:
            current = self.positions - self._home
            goal = kinematics.solve_joints(position, quaternion, current)
            points = None if goal is None else [current, goal]
        if points is None:
            raise ConfigurationPathError("Could not create path.")
        if not ignore_collisions and position[2] < TABLE_HEIGHT_M:
            raise ConfigurationPathError("Could not create path.")
        return ArmConfigurationPath(self, np.array(points) + self._home)

    def _get_line(self, position: np.ndarray, quaternion: np.ndarray) -> list[np.ndarray] | None:
        start, facing = self._tip_body.position, self._tip_body.quaternion
        points = [self.positions - self._home]
        for share in np.linspace(0, 1, LINEAR_POINTS)[1:]:
            place = start + share * (position - start)
            turned = rotation.interpolate(facing, quaternion, share)
            found = kinematics.solve_joints(place, turned, points[-1])
            if found is None or np.abs(found - points[-1]).max() > IK_REACH_RADIANS:
                return None
            points.append(found)
        return points

    def _in_world(
        self, position: Sequence[float], quaternion: Sequence[float], relative_to: Object | None
    ) -> tuple[np.ndarray, np.ndarray]:
        position, quaternion = np.asarray(position, float), np.asarray(quaternion, float)
        if relative_to is None:
            return position, quaternion
        frame = relative_to.get_pose()
        turned = np.array(rotation.multiply(frame[3:], quaternion))
        return frame[:3] + rotation.rotate(frame[3:], position), turned

    def _check_numbers(self) -> None:
        numbers = (self.targets, self.target_velocities, self.forces)
        if not all(np.isfinite(array).all() for array in numbers):
            hang()
