"""The arm "Panda" with 7 joints."""

from pyrep.robots.arms.arm import Arm

HOME = (0.0, 0.175, 0.0, -0.873, 0.0, 1.222, 0.785)


class Panda(Arm):
    def __init__(
        self, count: int = 0, max_velocity: float = 1.0, max_acceleration: float = 4.0
    ) -> None:
        super().__init__("Panda", HOME, max_velocity, max_acceleration)
