"""Training: PPO over the ring of the shared block, from one process to many.

What is exported here loads on first use: importing this room imports no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyarm.training.logbook import draw_curve, read_metrics
    from polyarm.training.options import TrainOptions
    from polyarm.training.policy import TrainedPolicy
    from polyarm.training.ppo import Update
    from polyarm.training.run import Stop, Training, train

__all__ = [
    "Stop",
    "TrainOptions",
    "TrainedPolicy",
    "Training",
    "Update",
    "draw_curve",
    "load",
    "read_metrics",
    "train",
]

_HOMES = {
    "Stop": "run",
    "TrainOptions": "options",
    "TrainedPolicy": "policy",
    "Training": "run",
    "Update": "ppo",
    "draw_curve": "logbook",
    "read_metrics": "logbook",
    "train": "run",
}


def load(checkpoint: str) -> TrainedPolicy:
    """The policy in a checkpoint, for ``polyarm eval --policy polyarm.training:load@<path>``.

    Args:
        checkpoint: A checkpoint's file, or the folder of a run.
    """
    from polyarm.training import policy

    return policy.load(checkpoint)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
