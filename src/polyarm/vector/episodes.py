"""Which episode a slot plays next: indices for suites, seeds for plain Gymnasium envs.

Suites: the n-th episode of slot i has index ``start + n * num_envs + i``, and ``seed`` sets
``start = seed * STREAM``. An episode that ends in an error uses up its index; the restarted env
goes on with the slot's next one. Gymnasium envs: ``reset(seed)`` gives slot i ``seed + i``, and
later resets draw from the env's own generator; after a restart, that generator is gone, so the
slot is reseeded from its seed and its number of restarts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM
from polyarm.errors import InvalidCall
from polyarm.vector.board import EPISODIC, SEEDED, Board, Command

Slots = NDArray[np.intp]
Seed = int | Sequence[int | None] | NDArray[np.integer[Any]] | None


class Episodes:
    """Episode indices and seeds of all slots.

    Args:
        num_envs: Number of slots.
        episodic: Whether the envs know episode indices.
        seed: Default of the first reset.
        scatter: Whether envs forked from one builder share a generator that must be reseeded.
    """

    def __init__(self, num_envs: int, *, episodic: bool, seed: int | None, scatter: bool) -> None:
        self._num_envs = self._total = num_envs
        self._first = 0
        self._episodic = episodic
        self._seeds: list[int | None] = [None] * num_envs
        self._restarts = [0] * num_envs
        self._reseed: dict[int, int] = {}
        self.version = 0
        self._asked: set[int] = set()
        self.next: NDArray[np.int64] = np.arange(num_envs, dtype=np.int64)
        self.current: NDArray[np.int64] = np.full(num_envs, -1, np.int64)
        if seed is None and scatter:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self.begin(np.arange(num_envs, dtype=np.intp), seed, {})

    def take_part(self, first: int, total: int) -> None:
        """Go on as the slots from ``first`` on of a batch of ``total``; before the first reset."""
        self.version += 1
        self._first, self._total = first, total
        self.next += first
        self._seeds = [None if seed is None else seed + first for seed in self._seeds]
        self._reseed = {slot: seed + first for slot, seed in self._reseed.items()}

    def begin(self, slots: Slots, seed: Seed, options: dict[str, Any]) -> None:
        """Take over what the user asked of a reset; removes our own keys from ``options``."""
        self.version += 1
        if isinstance(seed, np.ndarray):
            seed = seed.tolist()
        chosen = options.pop("episodes", None)
        start = options.pop("start", None)
        if not self._episodic and (chosen is not None or start is not None):
            raise InvalidCall("only suites know episode indices; seed this env instead")
        if self._episodic:
            self._begin_episodes(slots, seed, start, chosen)
        else:
            self._begin_seeds(slots, seed)

    def check(self, slots: Slots, seed: Seed, options: Mapping[str, Any]) -> None:
        """Refuse what `begin` would refuse.

        Raises:
            InvalidCall: The seed or an option makes no sense.
        """
        copy.deepcopy(self).begin(slots, seed, dict(options))

    def _begin_episodes(self, slots: Slots, seed: Seed, start: Any, chosen: Any) -> None:
        if chosen is not None:
            indices = np.asarray(chosen)
            if indices.dtype.kind not in "iu" or indices.shape not in ((), (len(slots),)):
                raise InvalidCall(
                    f"options['episodes'] needs one whole number per slot that is reset, or one for"
                    f" all: {len(slots)} slots, found {indices.dtype} {indices.shape}"
                )
            if (indices < 0).any():
                raise InvalidCall(f"episode indices start at 0, found {int(indices.min())}")
            self.next[slots] = indices
        elif isinstance(seed, Sequence):
            for slot, one in zip(slots, self._spread(slots, seed), strict=True):
                if one is not None:
                    self.next[slot] = _checked(one) * STREAM + self._first + slot
        elif seed is not None or start is not None:
            begin = _checked(seed or 0) * STREAM + int(start or 0) + self._first
            self.next[slots] = begin + slots

    def _begin_seeds(self, slots: Slots, seed: Seed) -> None:
        for slot, one in zip(slots, self._spread(slots, seed), strict=True):
            if one is not None:
                self._seeds[slot] = self._reseed[int(slot)] = one
                self._restarts[slot] = 0
                self._asked.add(int(slot))

    def _spread(self, slots: Slots, seed: Seed) -> list[int | None]:
        if seed is None or isinstance(seed, int | np.integer):
            first = self._first
            return [None if seed is None else _checked(int(seed) + first + int(s)) for s in slots]
        if len(seed) == self._num_envs:
            return [None if seed[slot] is None else _checked(seed[slot]) for slot in slots]
        raise InvalidCall(
            f"a list of seeds needs one per slot: {self._num_envs}, found {len(seed)}"
        )

    def write(self, board: Board, slots: Slots | slice, epoch_bits: int) -> None:
        """Put what the next reset of these slots needs into their commands."""
        commands = board.commands
        commands[slots, Command.EPISODE] = self.next[slots]
        commands[slots, Command.FLAGS] = epoch_bits | (EPISODIC if self._episodic else 0)
        if self._reseed:
            wanted = range(self._num_envs) if isinstance(slots, slice) else slots
            for slot in wanted:
                if (seed := self._reseed.get(int(slot))) is not None:
                    commands[slot, Command.SEED] = seed
                    commands[slot, Command.FLAGS] |= SEEDED

    def consumed(self, slots: Slots) -> None:
        """Note that these slots have been reset: their next episode is under way."""
        self.version += 1
        self.current[slots] = self.next[slots]
        self.next[slots] += self._total
        if self._reseed:
            for slot in slots.tolist():
                self._reseed.pop(slot, None)
                self._asked.discard(slot)

    def failed(self, slot: int, *, resetting: bool) -> None:
        """Note that a slot's env is gone; an index whose reset failed is used up too."""
        self.version += 1
        self._restarts[slot] += 1
        if resetting:
            self.next[slot] += self._total
        seed = self._seeds[slot]
        if seed is not None and slot not in self._asked:
            entropy = np.random.SeedSequence(seed, spawn_key=(self._restarts[slot],))
            self._reseed[slot] = int(entropy.generate_state(1)[0])


def _checked(seed: Any) -> int:
    if not 0 <= int(seed) < 2**62:
        raise InvalidCall(f"a seed must be in [0, 2**62), found {seed}")
    return int(seed)


def deal_options(options: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Options of a reset of several slots as options of each slot's own reset.

    Raises:
        InvalidCall: ``episodes`` or ``observed`` is a list of another length.
    """
    dealt = [dict(options) for _ in range(count)]
    for name in ("episodes", "observed"):
        values = options.get(name)
        if not isinstance(values, Sequence | np.ndarray) or np.ndim(values) == 0:
            continue
        if len(values) != count:
            raise InvalidCall(
                f"options[{name!r}] needs one entry per slot that is reset: {count} slots, found"
                f" {len(values)}"
            )
        for own, value in zip(dealt, values, strict=True):
            own[name] = [value]
    return dealt
