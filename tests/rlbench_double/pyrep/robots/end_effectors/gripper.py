"""A gripper that opens, closes and takes hold of what is between its fingers."""

import numpy as np

from pyrep.backend import rotation, sim
from pyrep.objects.object import Object, as_float32
from pyrep.robots.robot_component import Limits, RobotComponent

SPEED = 0.2  # m/s of fingers like the Panda's; others in proportion
PANDA_WIDTH = 0.04
GRASP_REACH_M = 0.05
POSITION_ERROR = 0.001


class Gripper(RobotComponent):
    """`width` is the joint position when open, `sensors` the number of touch sensors."""

    def __init__(self, name: str, tip: str, fingers: int, width: float, sensors: int = 0) -> None:
        self._tip = tip
        self._sensors = sensors
        self._scale = width / PANDA_WIDTH
        self._grasped: list[tuple[Object, np.ndarray, np.ndarray]] = []
        low, high = np.zeros(fingers), np.full(fingers, width)
        super().__init__(name, high, Limits(low, high, np.full(fingers, SPEED * self._scale)))
        self.control_loop = False

    def placed(self) -> None:
        """Take along what is held."""
        for obj, offset, turn in self._grasped:
            tip = sim.get(self._tip)
            obj.set_position(tip.position + rotation.rotate(tip.quaternion, offset))
            obj.set_quaternion(rotation.multiply(tip.quaternion, turn))

    def grasp(self, obj: Object) -> bool:
        tip = sim.get(self._tip)
        apart = obj.get_position() - tip.position
        near = bool(np.linalg.norm(apart) < GRASP_REACH_M)
        if near and obj not in self.get_grasped_objects():
            back = rotation.conjugate(tip.quaternion)
            turn = np.array(rotation.multiply(back, obj.get_quaternion()))
            self._grasped.append((obj, rotation.rotate(back, apart), turn))
        return near

    def release(self) -> None:
        self._grasped = []

    def get_grasped_objects(self) -> list[Object]:
        return [obj for obj, *_ in self._grasped]

    def actuate(self, amount: float, velocity: float) -> bool:
        """Set the fingers moving towards closed (0) or open (1); True once they are there."""
        if not 0.0 <= amount <= 1.0:
            raise ValueError("the amount to open has to be between 0 and 1")
        aim = self._limits.low + amount * (self._limits.high - self._limits.low)
        apart = aim - self.positions
        per_step = np.abs(apart) / sim.TIME_STEP_S
        speeds = np.sign(apart) * np.minimum(velocity * self._scale, per_step)
        done = bool(np.all(np.abs(apart) < POSITION_ERROR))
        self.set_joint_target_velocities(np.zeros(len(speeds)) if done else speeds)
        return done

    def get_open_amount(self) -> list[float]:
        sim.enter()
        share = (self.positions - self._limits.low) / (self._limits.high - self._limits.low)
        return np.clip(share, 0.0, 1.0).tolist()

    def get_touch_sensor_forces(self) -> list[list[float]]:
        if not self._sensors:
            raise NotImplementedError("No touch sensors for this robot!")
        closed = 1.0 - np.mean(self.get_open_amount())
        return [as_float32([0.0, closed, 0.1 * index]).tolist() for index in range(self._sensors)]

    def _check_numbers(self) -> None:
        """Go on as if nothing was asked for where a number is none."""
        self.targets = np.where(np.isfinite(self.targets), self.targets, self.positions)
