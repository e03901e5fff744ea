"""Which episode a slot plays next: indices for suites, seeds for plain Gymnasium envs.

Suites: the n-th episode of slot i has index ``start + n * num_envs + i``, and ``seed``, which is
below 2**31, sets ``start = seed * STREAM``. An episode that ends in an error uses up its index; the
restarted env goes on with the slot's next one. Gymnasium envs: ``reset(seed)`` gives slot i
``seed + i``, and later resets draw from the env's own generator; after a restart, that generator is
gone, so the slot is reseeded from its seed and its number of restarts.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM
from polyarm.errors import InvalidCall
from polyarm.vector.board import EPISODIC, SEEDED, Board, Command
from polyarm.vector.layout import Slots

Seed = int | Sequence[int | None] | NDArray[np.integer[Any]] | None

_NO_SEED = 2**62
_NO_INDEX = 2**63
"""Indices are int64 wherever they go: in the block, in `VectorEnv.episodes`, in journals."""
_NO_STREAM = _NO_INDEX // STREAM
_OF_SUITE = "the seed of a suite"


class Episodes:
    """Episode indices and seeds of all slots.

    Args:
        num_envs: Number of slots.
        episodic: Whether the envs know episode indices.
        seed: Default of the first reset.
        scatter: Whether envs forked from one zygote share a generator that must be reseeded.
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
        following = self._chosen(slots, seed, start, chosen)
        for slot, index in zip(slots, following, strict=True):
            if index is not None:
                self.next[slot] = index

    def _chosen(self, slots: Slots, seed: Seed, start: Any, chosen: Any) -> list[int | None]:
        """The next index of each slot that is reset; None for one that goes on where it is."""
        if chosen is not None:
            return list(_indices(chosen, len(slots)))
        if isinstance(seed, Sequence):
            streams = self._dealt(slots, seed, _OF_SUITE, _NO_STREAM)
            return [
                None if stream is None else stream * STREAM + self._first + int(slot)
                for slot, stream in zip(slots, streams, strict=True)
            ]
        if seed is None and start is None:
            return [None] * len(slots)
        first = 0 if seed is None else _whole(_OF_SUITE, seed, _NO_STREAM) * STREAM
        first += 0 if start is None else _whole("options['start']", start, _NO_INDEX)
        first += self._first
        return [_whole("an episode index", first + int(slot), _NO_INDEX) for slot in slots]

    def _begin_seeds(self, slots: Slots, seed: Seed) -> None:
        for slot, one in zip(slots, self._spread(slots, seed), strict=True):
            if one is not None:
                self._seeds[slot] = self._reseed[int(slot)] = one
                self._restarts[slot] = 0
                self._asked.add(int(slot))

    def _spread(self, slots: Slots, seed: Seed) -> list[int | None]:
        if seed is None:
            return [None] * len(slots)
        if isinstance(seed, Sequence):
            return self._dealt(slots, seed, "a seed", _NO_SEED)
        first = _whole("a seed", seed, _NO_SEED) + self._first
        return [first + int(slot) for slot in slots]

    def _dealt(
        self, slots: Slots, seeds: Sequence[int | None], what: str, end: int
    ) -> list[int | None]:
        """Of a list of seeds, those of these slots."""
        if len(seeds) != self._num_envs:
            raise InvalidCall(
                f"a list of seeds needs one per slot: {self._num_envs}, found {len(seeds)}"
            )
        each = [seeds[slot] for slot in slots]
        return [None if one is None else _whole(what, one, end) for one in each]

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
        if resetting:
            self.next[slot] += self._total
        self.renewed(slot)

    def renewed(self, slot: int) -> None:
        """Note that a slot holds a new env, whose generator is not the one that was seeded."""
        self.version += 1
        self._restarts[slot] += 1
        seed = self._seeds[slot]
        if seed is not None and slot not in self._asked:
            entropy = np.random.SeedSequence(seed, spawn_key=(self._restarts[slot],))
            self._reseed[slot] = int(entropy.generate_state(1)[0])


def check_default_seed(seed: int | None, num_envs: int, *, episodic: bool) -> None:
    """Refuse a default seed that `Episodes` would refuse.

    Raises:
        InvalidCall: It makes no sense.
    """
    Episodes(num_envs, episodic=episodic, seed=seed, scatter=False)


def _whole(what: str, found: Any, end: int) -> int:
    """A whole number from 0 to ``end`` - 1."""
    try:
        number = operator.index(found)
    except TypeError:
        raise InvalidCall(f"{what} must be a whole number, found {found!r}") from None
    if not 0 <= number < end:
        raise InvalidCall(f"{what} must be from 0 to {end - 1}, found {number}")
    return number


def _indices(chosen: Any, count: int) -> list[int]:
    """The indices of ``options["episodes"]``, one for each of ``count`` slots."""
    indices = np.asarray(chosen)
    if indices.dtype.kind not in "iu" or indices.shape not in ((), (count,)):
        raise InvalidCall(
            f"options['episodes'] needs one whole number per slot that is reset, or one for"
            f" all: {count} slots, found {indices.dtype} {indices.shape}"
        )
    each = np.broadcast_to(indices, (count,)).tolist()
    return [_whole("an episode index", index, _NO_INDEX) for index in each]


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
