"""The arm "Jaco" with 6 joints."""

from pyrep.robots.arms.arm import Arm

HOME = (0.5, 3.14, 1.57, 0.0, 1.0, 0.0)


class Jaco(Arm):
    def __init__(
        self, count: int = 0, max_velocity: float = 1.0, max_acceleration: float = 4.0
    ) -> None:
        super().__init__("Jaco", HOME, max_velocity, max_acceleration)
