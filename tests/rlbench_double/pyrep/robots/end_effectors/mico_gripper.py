"""The gripper of the Mico with 2 moving fingers."""

from pyrep.robots.end_effectors.gripper import Gripper


class MicoGripper(Gripper):
    def __init__(self, count: int = 0) -> None:
        super().__init__("MicoGripper", "Mico_tip", fingers=2, width=0.8)
