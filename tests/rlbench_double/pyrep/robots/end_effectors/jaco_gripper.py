"""The gripper of the Jaco with 3 moving fingers."""

from pyrep.robots.end_effectors.gripper import Gripper


class JacoGripper(Gripper):
    def __init__(self, count: int = 0) -> None:
        super().__init__("JacoGripper", "Jaco_tip", fingers=3, width=0.8)
