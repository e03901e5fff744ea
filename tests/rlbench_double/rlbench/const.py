"""Colours and robots."""

from pyrep.robots.arms.jaco import Jaco
from pyrep.robots.arms.mico import Mico
from pyrep.robots.arms.panda import Panda
from pyrep.robots.arms.sawyer import Sawyer
from pyrep.robots.arms.ur5 import UR5
from pyrep.robots.end_effectors.baxter_gripper import BaxterGripper
from pyrep.robots.end_effectors.jaco_gripper import JacoGripper
from pyrep.robots.end_effectors.mico_gripper import MicoGripper
from pyrep.robots.end_effectors.panda_gripper import PandaGripper
from pyrep.robots.end_effectors.robotiq85_gripper import Robotiq85Gripper

_NAMES = (
    "red", "maroon", "lime", "green", "blue", "navy", "yellow", "cyan", "magenta", "silver",
    "gray", "orange", "olive", "purple", "teal", "azure", "violet", "rose", "black", "white",
)  # fmt: skip
_HALVES = (
    (2, 0, 0), (1, 0, 0), (0, 2, 0), (0, 1, 0), (0, 0, 2), (0, 0, 1), (2, 2, 0), (0, 2, 2),
    (2, 0, 2), (1.5, 1.5, 1.5), (1, 1, 1), (2, 1, 0), (1, 1, 0), (1, 0, 1), (0, 1, 1), (0, 1, 2),
    (1, 0, 2), (2, 0, 1), (0, 0, 0), (2, 2, 2),
)  # fmt: skip

colors = [
    (name, tuple(half / 2 for half in halves)) for name, halves in zip(_NAMES, _HALVES, strict=True)
]

SUPPORTED_ROBOTS = {
    "panda": (Panda, PandaGripper, 7),
    "jaco": (Jaco, JacoGripper, 6),
    "mico": (Mico, MicoGripper, 6),
    "sawyer": (Sawyer, BaxterGripper, 7),
    "ur5": (UR5, Robotiq85Gripper, 6),
}
