"""Training: PPO over the ring of the shared block, from one process to many."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyarm.training.policy import TrainedPolicy


def load(checkpoint: str) -> TrainedPolicy:
    """The policy in a checkpoint, for ``polyarm eval --policy polyarm.training:load@<path>``.

    Args:
        checkpoint: A checkpoint's file, or the folder of a run.
    """
    from polyarm.training import policy

    return policy.load(checkpoint)
