"""The gripper of the UR5 with 2 moving fingers."""

from pyrep.robots.end_effectors.gripper import Gripper


class Robotiq85Gripper(Gripper):
    def __init__(self, count: int = 0) -> None:
        super().__init__("Robotiq85Gripper", "UR5_tip", fingers=2, width=0.8)
