"""Evaluations in the middle of a training, on episodes that no training plays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyarm.distributed.ranks import Share
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.errors import PolyarmError
from polyarm.rollout.evaluator import Evaluator
from polyarm.rollout.options import EvalOptions
from polyarm.training.options import HELD_OUT_SEED, TrainOptions
from polyarm.training.play import training_settings
from polyarm.training.policy import TrainedPolicy
from polyarm.vector.tensors import import_torch

_log = logging.getLogger(__name__)

_TRAINING_ONLY = ("max_steps", "terminate_on_success")
"""Options that say when an episode ends; evaluations keep the suite's own rules."""


@dataclass(frozen=True, slots=True)
class Score:
    """What an evaluation came to; episodes that failed for other reasons are left out.

    Attributes:
        success_rate: Share of successes; None without any episode, or if it was cut short.
        mean_return: Mean undiscounted return; None likewise.
        errors: Episodes that failed for other reasons.
    """

    success_rate: float | None
    mean_return: float | None
    errors: int = 0


def held_out_settings(options: TrainOptions) -> dict[str, Any]:
    """What suites are told for held-out episodes: all that training is, but when one ends."""
    settings, _ = training_settings(options)
    return {name: value for name, value in settings.items() if name not in _TRAINING_ONLY}


class HeldOutEvaluation:
    """Envs of their own that stay alive between evaluations; use it as a context manager.

    Args:
        options: What is trained; every rank plays its part of the episodes.
        share: This rank's part of the envs.
        must_end: Asked now and then, whether to cut the evaluation short.
    """

    def __init__(self, options: TrainOptions, share: Share, must_end: Callable[[], bool]) -> None:
        self._options, self._share, self._must_end = options, share, must_end
        self._evaluator: Evaluator | None = None

    def _begin(self) -> Evaluator | None:
        # Dealt in advance: the queue that ranks of `eval` share is a run's folder; here is none.
        options, rank = self._options, self._share.rank
        bounds = [options.eval_episodes * part // rank.world for part in range(rank.world + 1)]
        start, end = bounds[rank.number], bounds[rank.number + 1]
        if start == end:
            return None
        settings = held_out_settings(options)
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
            suite_options=tuple(f"{name}={one}" for name, one in settings.items()),
        )
        return Evaluator(options.tasks, evaluation)

    def score(self, policy: TrainedPolicy, group: ProcessGroup) -> Score:
        """Play the held-out episodes, on all ranks together."""
        torch = import_torch()
        sums = torch.tensor(self._own_part(policy), dtype=torch.float64)
        group.total([sums])
        count, successes, returns, errors, missing = sums.tolist()
        if missing or not count:
            return Score(None, None, int(errors))
        return Score(successes / count, returns / count, int(errors))

    def _own_part(self, policy: TrainedPolicy) -> tuple[float, float, float, float, float]:
        """Of this rank: episodes that count, successes, returns, errors, missing episodes."""
        if self._must_end():
            return 0, 0, 0, 0, 1
        try:
            self._evaluator = evaluator = self._evaluator or self._begin()
            if evaluator is None:
                return 0, 0, 0, 0, 0
            results = evaluator.run({"": policy}, lambda _: self._look_up(evaluator))
        except PolyarmError as error:  # nothing of it is worth what was learnt
            _log.warning("held-out episodes cannot be played: %s", str(error))
            self.close()
            return 0, 0, 0, 0, 1
        played = [one for one in results.episodes if one.outcome != "error"]
        successes = sum(one.outcome == "success" for one in played)
        returns = sum(one.total_reward for one in played)
        return len(played), successes, returns, results.errors, results.missing

    def _look_up(self, evaluator: Evaluator) -> None:
        if self._must_end():
            evaluator.stop()

    def close(self) -> None:
        """Close the envs; another evaluation makes new ones."""
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.close()

    def __enter__(self) -> HeldOutEvaluation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
