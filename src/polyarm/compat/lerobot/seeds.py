"""From LeRobot's seeds to our episodes: which index an env plays in a rollout.

LeRobot ties env i of rollout r to episode number ``r * n_envs + i`` of its task and seeds it with
``start_seed`` plus that number. Our LIBERO takes both from an index: the number chooses the initial
state, and the index's stream is added to the protocol's first seed. Elsewhere nothing but the seed
matters, so the seed is the index.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarm.contracts import STREAM
from polyarm.errors import InvalidCall
from polyarm.rollout.options import LAST_SEED

LIBERO_SEED = 1000
"""First seed of LIBERO's protocol ``lerobot``, and LeRobot's own default."""


class Episodes(NamedTuple):
    """Episodes of one rollout.

    Attributes:
        indices: One per env.
        options: Options of the suite that the indices hold for.
    """

    indices: list[int]
    options: dict[str, Any]


class Rollouts:
    """Counts the episodes of a vector env, rollout by rollout.

    Seeds that go on where the last rollout's ended are the same evaluation; others begin a new one,
    with episode 0, so that a second evaluation with the same seeds plays the same episodes.

    Args:
        suite: The suite's name.
        num_envs: Episodes per rollout.
    """

    def __init__(self, suite: str, num_envs: int) -> None:
        self._suite = suite
        self._num_envs = num_envs
        self._number = 0
        self._next_seed: int | None = None

    def begin(self, seed: int | Sequence[int | None] | None) -> Episodes:
        """The episodes of the next rollout.

        Args:
            seed: One per env, or that of the first; None counts on.

        Raises:
            InvalidCall: Seeds that are none, or not as many as there are envs.
        """
        seeds = self._spread(seed)
        if seeds is not None and seeds[0] != self._next_seed:
            self._number = 0
        episodes = episode_indices(self._suite, self._number, self._num_envs, seeds)
        self._number += self._num_envs
        self._next_seed = None if seeds is None else seeds[-1] + 1
        return episodes

    def _spread(self, seed: int | Sequence[int | None] | None) -> list[int] | None:
        if seed is None:
            return None
        count = self._num_envs
        try:
            seeds = [operator.index(one) for one in np.atleast_1d(np.asarray(seed)).tolist()]
        except TypeError:
            seeds = []
        if isinstance(seed, int | np.integer):
            seeds = list(range(int(seed), int(seed) + count))
        if len(seeds) != count:
            raise InvalidCall(
                f"a rollout needs a whole seed for each of {count} envs, found {seed}"
            )
        return seeds


def episode_indices(suite: str, first: int, count: int, seeds: Sequence[int] | None) -> Episodes:
    """The indices of ``count`` episodes of a task, from number ``first`` on.

    Without seeds, LIBERO's are those of its protocol and other suites' count from 0: nothing is
    left to chance.

    Raises:
        InvalidCall: A seed that no index stands for.
    """
    numbers = range(first, first + count)
    if seeds is None:
        return Episodes(list(numbers), {})
    if min(seeds) < 0:
        raise InvalidCall(f"seeds start at 0, found {min(seeds)}")
    if suite != "libero":
        return Episodes(list(seeds), {})
    offsets = [seed - number for seed, number in zip(seeds, numbers, strict=True)]
    # Seeds below the protocol's count from 0 instead; an index cannot be negative.
    base = LIBERO_SEED if min(offsets) >= LIBERO_SEED else 0
    if min(offsets) < 0 or max(offsets) - base > LAST_SEED:
        raise InvalidCall(
            f"LIBERO's episode number n needs a seed from n to {LAST_SEED} + n, found seeds "
            f"{list(seeds)} for numbers {list(numbers)}"
        )
    indices = [
        (offset - base) * STREAM + number for offset, number in zip(offsets, numbers, strict=True)
    ]
    return Episodes(indices, {} if base else {"first_seed": 0})
