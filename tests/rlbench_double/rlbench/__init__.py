"""A double of RLBench 1.2.0: its interface, its habits and its failures, with a toy arm inside."""

from gymnasium import register, registry

from rlbench.action_modes.action_mode import ActionMode, ArmActionMode, GripperActionMode
from rlbench.backend.task import TASKS_PATH
from rlbench.environment import Environment
from rlbench.observation_config import CameraConfig, ObservationConfig
from rlbench.sim2real.domain_randomization import RandomizeEvery, VisualRandomizationConfig
from rlbench.utils import name_to_task_class

__version__ = "1.2.0"

__all__ = [
    "ActionMode",
    "ArmActionMode",
    "GripperActionMode",
    "CameraConfig",
    "Environment",
    "ObservationConfig",
    "RandomizeEvery",
    "VisualRandomizationConfig",
]

TASKS = sorted(path.name for path in TASKS_PATH.glob("*.py") if path.name != "__init__.py")

for _file in TASKS:
    _name = _file.removesuffix(".py")
    for _mode in ("state", "vision"):
        _id = f"rlbench/{_name}-{_mode}-v0"
        if _id not in registry:  # tests import the double more than once
            register(
                id=_id,
                entry_point="rlbench.gym:RLBenchEnv",
                kwargs={"task_class": name_to_task_class(_name), "observation_mode": _mode},
                nondeterministic=True,
            )
