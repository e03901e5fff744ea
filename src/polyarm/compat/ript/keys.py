"""From initial states to episode keys: what makes an episode of RIPT-VLA's one of ours.

A state of the task's own table is the episode with its number. Any other, such as a
demonstration's, is played too: a number that only depends on the state places the fixtures, so
that all rollouts of one state meet the same scene. Each further rollout of a state is another
repeat, with other policy noise, and each rank has repeats of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM, EpisodeKey, to_host
from polyarm.errors import InvalidCall

States = NDArray[np.float64]

_SUITE = "libero"
_RANK_STREAM = 2**32
"""Repeats of rank r start at r times this, so that no two ranks share policy noise."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Episodes to play.

    Attributes:
        keys: In the order in which they were asked for.
        reset_options: What the resets of those with foreign initial states are told.
    """

    keys: tuple[EpisodeKey, ...]
    reset_options: Mapping[EpisodeKey, Mapping[str, Any]] = field(default_factory=dict)


class KeyMaker:
    """Makes keys whose policy noise is new every time.

    Args:
        seed: Selects the stream of episodes, as in `polyarm.evaluate`.
        rank: Of this process, from 0 on.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self._first = seed * STREAM
        self._repeat = rank * _RANK_STREAM
        self._played: Counter[tuple[str, int]] = Counter()

    def scored(self, task: str, count: int) -> list[EpisodeKey]:
        """The first episodes of a task, the same ones at every call: for scores."""
        return [
            EpisodeKey(_SUITE, task, self._first + index, self._repeat) for index in range(count)
        ]

    def fresh(self, task: str, indices: Sequence[int]) -> Planned:
        """Episodes by their numbers, with new noise at every call: for training."""
        return Planned(tuple(self._next(task, index) for index in indices))

    def of_states(self, task: str, states: States, table: States, count: int) -> Planned:
        """``count`` episodes that begin in the given states, in turn, with new noise."""
        known = {state.tobytes(): index for index, state in reversed([*enumerate(table)])}
        keys, options = [], {}
        for place in range(count):
            state = states[place % len(states)]
            index = known.get(state.tobytes())
            foreign = index is None
            if index is None:
                index = _number(state) % len(table)
            keys.append(self._next(task, index))
            if foreign:
                options[keys[-1]] = {"init_state": state}
        return Planned(tuple(keys), options)

    def _next(self, task: str, index: int) -> EpisodeKey:
        repeat = self._repeat + self._played[task, index]
        self._played[task, index] += 1
        return EpisodeKey(_SUITE, task, self._first + int(index), repeat)


def checked_states(given: Any, table: States, task: str) -> States:
    """Initial states that a caller gives, float64 (n, 1 + nq + nv).

    Raises:
        InvalidCall: They are none of this task.
    """
    states = np.ascontiguousarray(to_host(given), np.float64)
    states = states[np.newaxis] if states.ndim == 1 else states
    if states.ndim != 2 or not len(states) or states.shape[1] != table.shape[1]:
        raise InvalidCall(
            f"initial states of {task} have shape (n, {table.shape[1]}): time, positions and"
            f" velocities; found {states.shape}. Take them from"
            f" benchmark.get_task_init_states, or from demonstrations of this task"
        )
    if not (fine := np.isfinite(states).all(axis=1)).all():
        raise InvalidCall(f"initial state {int(np.argmin(fine))} of {task} is not finite")
    return states


def _number(state: States) -> int:
    return int.from_bytes(hashlib.sha256(state.tobytes()).digest()[:8], "little")
