"""What a short script needs to try the double: `from double_session import *`."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from pyrep.errors import ConfigurationPathError, IKError
from rlbench import Environment, ObservationConfig, name_to_task_class
from rlbench.action_modes import arm_action_modes as arms
from rlbench.action_modes.action_mode import MoveArmThenGripper
from rlbench.action_modes.gripper_action_modes import Discrete
from rlbench.backend.exceptions import InvalidActionError, TaskEnvironmentError
from rlbench.task_environment import TaskEnvironment

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

__all__ = [
    "STILL",
    "ConfigurationPathError",
    "Discrete",
    "Environment",
    "IKError",
    "InvalidActionError",
    "MoveArmThenGripper",
    "ObservationConfig",
    "TaskEnvironmentError",
    "arms",
    "caught",
    "make",
    "name_to_task_class",
    "np",
    "os",
    "signal",
    "sys",
    "time",
]

STILL = np.array([0, 0, 0, 0, 0, 0, 0, 1.0])
"""For seven joint velocities and an open gripper."""


def make(
    task: str = "reach_target",
    arm: arms.ArmActionMode | None = None,
    cameras: Sequence[str] = (),
    **options: object,
) -> tuple[Environment, TaskEnvironment]:
    """A launched simulator with everything but frames switched on; frames are 24 by 16 pixels."""
    config = ObservationConfig()
    config.set_all_low_dim(True)
    config.set_all_high_dim(False)
    config.gripper_touch_forces = options.get("robot_setup", "panda") == "panda"
    for camera in cameras:
        getattr(config, f"{camera}_camera").set_all(True)
        getattr(config, f"{camera}_camera").image_size = (24, 16)
    mode = MoveArmThenGripper(arm or arms.JointVelocity(), Discrete())
    env = Environment(mode, obs_config=config, headless=True, **options)
    return env, env.get_task(name_to_task_class(task))


def caught(kind: type[Exception], call: Callable[..., object], *arguments: object) -> Exception:
    """The error that a call has to raise."""
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")
