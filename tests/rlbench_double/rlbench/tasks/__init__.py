"""The tasks of the double, one module each."""

from rlbench.tasks.close_jar import CloseJar
from rlbench.tasks.open_drawer import OpenDrawer
from rlbench.tasks.pick_up_cup import PickUpCup
from rlbench.tasks.push_button import PushButton
from rlbench.tasks.reach_target import ReachTarget
from rlbench.tasks.sweep_to_dustpan import SweepToDustpan

__all__ = [
    "CloseJar",
    "OpenDrawer",
    "PickUpCup",
    "PushButton",
    "ReachTarget",
    "SweepToDustpan",
]
