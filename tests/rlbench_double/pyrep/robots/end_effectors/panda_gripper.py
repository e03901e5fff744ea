"""The gripper of the Panda with 2 moving fingers."""

from pyrep.robots.end_effectors.gripper import Gripper


class PandaGripper(Gripper):
    def __init__(self, count: int = 0) -> None:
        super().__init__("PandaGripper", "Panda_tip", fingers=2, width=0.04, sensors=2)
