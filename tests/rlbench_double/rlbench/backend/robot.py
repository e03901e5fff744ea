"""An arm and its gripper."""

from dataclasses import dataclass

from pyrep.robots.arms.arm import Arm
from pyrep.robots.end_effectors.gripper import Gripper


@dataclass
class Robot:
    arm: Arm
    gripper: Gripper
