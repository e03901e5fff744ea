"""The arm "Sawyer" with 7 joints."""

from pyrep.robots.arms.arm import Arm

HOME = (0.0, -0.5, 0.0, 1.0, 0.0, 1.1, 1.57)


class Sawyer(Arm):
    def __init__(
        self, count: int = 0, max_velocity: float = 1.0, max_acceleration: float = 4.0
    ) -> None:
        super().__init__("Sawyer", HOME, max_velocity, max_acceleration)
