"""The gripper of the Sawyer with 2 moving fingers."""

from pyrep.robots.end_effectors.gripper import Gripper


class BaxterGripper(Gripper):
    def __init__(self, count: int = 0) -> None:
        super().__init__("BaxterGripper", "Sawyer_tip", fingers=2, width=0.02)
