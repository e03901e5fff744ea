"""The arm "UR5" with 6 joints."""

from pyrep.robots.arms.arm import Arm

HOME = (0.0, -0.6, 1.2, -0.6, 1.57, 0.0)


class UR5(Arm):
    def __init__(
        self, count: int = 0, max_velocity: float = 1.0, max_acceleration: float = 4.0
    ) -> None:
        super().__init__("UR5", HOME, max_velocity, max_acceleration)
