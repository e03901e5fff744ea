"""Evaluations in the middle of a training, on episodes that no training plays."""

from __future__ import annotations

from dataclasses import dataclass

from polyarm.distributed.ranks import Share
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.rollout.evaluator import Evaluator
from polyarm.rollout.options import EvalOptions
from polyarm.training.options import HELD_OUT_SEED, TrainOptions
from polyarm.training.play import training_settings
from polyarm.training.policy import TrainedPolicy
from polyarm.vector.tensors import import_torch

_TRAINING_ONLY = ("max_steps", "terminate_on_success")
"""Options that say when an episode ends; evaluations keep the suite's own rules."""


@dataclass(frozen=True, slots=True)
class Score:
    """What an evaluation came to; episodes that failed for other reasons are left out.

    Attributes:
        success_rate: Share of successes; None without any episode.
        mean_return: Mean undiscounted return; None without any episode.
    """

    success_rate: float | None
    mean_return: float | None


class Examination:
    """Envs of their own that stay alive between evaluations; use it as a context manager.

    Args:
        options: What is trained; every rank plays its part of the episodes.
        share: This rank's part of the envs.
    """

    def __init__(self, options: TrainOptions, share: Share) -> None:
        self._options, self._share = options, share
        self._evaluator: Evaluator | None = None

    def _begin(self) -> Evaluator | None:
        options, rank = self._options, self._share.rank
        bounds = [options.eval_episodes * part // rank.world for part in range(rank.world + 1)]
        start, end = bounds[rank.number], bounds[rank.number + 1]
        if start == end:
            return None
        settings, _ = training_settings(options)
        kept = {name: value for name, value in settings.items() if name not in _TRAINING_ONLY}
        evaluation = EvalOptions(
            policy="ppo",
            task=options.task,
            episodes=end - start,
            start=start,
            seed=HELD_OUT_SEED,
            num_envs=min(self._share.num_envs, end - start),
            num_workers=options.num_workers,
            cameras=options.cameras,
            image_size=options.image_size,
            display=options.display,
            suite_options=tuple(f"{name}={value}" for name, value in kept.items()),
        )
        return Evaluator(options.tasks, evaluation)

    def score(self, policy: TrainedPolicy, group: ProcessGroup) -> Score:
        """Play the held-out episodes, on all ranks together."""
        torch = import_torch()
        self._evaluator = self._evaluator or self._begin()
        sums = torch.zeros(3, dtype=torch.float64)
        if self._evaluator is not None:
            results = self._evaluator.run({"": policy})
            played = [one for one in results.episodes if one.outcome != "error"]
            sums[0] = len(played)
            sums[1] = sum(one.outcome == "success" for one in played)
            sums[2] = sum(one.total_reward for one in played)
        group.total([sums])
        count, successes, returns = sums.tolist()
        return Score(successes / count, returns / count) if count else Score(None, None)

    def close(self) -> None:
        """Close the envs."""
        if self._evaluator is not None:
            self._evaluator.close()

    def __enter__(self) -> Examination:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
