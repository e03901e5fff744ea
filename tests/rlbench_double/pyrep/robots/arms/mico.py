"""The arm "Mico" with 6 joints."""

from pyrep.robots.arms.arm import Arm

HOME = (0.3, 3.14, 1.57, 0.2, 1.2, 0.0)


class Mico(Arm):
    def __init__(
        self, count: int = 0, max_velocity: float = 1.0, max_acceleration: float = 4.0
    ) -> None:
        super().__init__("Mico", HOME, max_velocity, max_acceleration)
