"""Who has ended, who is pending, who is being reset, and where last observations lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import InvalidCall, SlotError
from polyarm.vector.engine import Engine
from polyarm.vector.episodes import Episodes
from polyarm.vector.interrupts import HandlersWait
from polyarm.vector.layout import Array, Slots
from polyarm.vector.ring import Ring
from polyarm.vector.settings import Autoreset

_SLOT_TYPE = np.dtype(np.intp)


class Ledger:
    """The state of all slots as the trainer knows it.

    Args:
        num_envs: Number of slots.
        autoreset: What happens after an episode's end.
        engine: Told when a slot finishes an episode.
        ring: Where flags are read.
        episodes: Told when a slot is reset or fails.
    """

    def __init__(
        self, num_envs: int, autoreset: Autoreset, engine: Engine, ring: Ring, episodes: Episodes
    ) -> None:
        self._num_envs = num_envs
        self._autoreset = autoreset
        self._engine = engine
        self._ring = ring
        self._episodes = episodes
        self.all: Slots = np.arange(num_envs, dtype=np.intp)
        self.everybody = list(range(num_envs))
        self.pending: dict[int, int | None] = {}
        self.ended: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)
        self._resetting: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)
        self._unbegun = set(range(num_envs))
        self._eventful = True

    def idle(self, slots: Sequence[int] | Slots | None, what: str) -> Slots:
        """The slots as an array, or a refusal if they can't take a command now."""
        chosen = self.all if slots is None else np.asarray(slots).reshape(-1)
        if chosen.dtype is not _SLOT_TYPE:
            chosen = _as_slots(chosen, what)
        if len(chosen) == 0 or len(np.unique(chosen)) != len(chosen):
            raise InvalidCall(f"{what} needs distinct slots, found {chosen.tolist()}")
        if chosen.min() < 0 or chosen.max() >= self._num_envs:
            raise InvalidCall(
                f"{what}: slots are 0 to {self._num_envs - 1}, found {chosen.tolist()}"
            )
        if busy := [slot for slot in chosen.tolist() if slot in self.pending]:
            raise InvalidCall(f"{what}: slots {busy} have not been received since their last send")
        return chosen

    def require_none_pending(self, what: str) -> None:
        """Refuse a lockstep call while slots are on their own."""
        if self.pending:
            raise InvalidCall(
                f"{what} with sends pending: receive slots {sorted(self.pending)} first"
            )

    def require_steppable(self, slots: Slots) -> None:
        """Refuse steps before the first reset, and after an end that nobody resets."""
        if self._unbegun and not self._unbegun.isdisjoint(slots.tolist()):
            raise InvalidCall("call reset() first")
        if self._autoreset == "disabled":
            refuse_ended(slots[self.ended[slots]])

    def commanded(self, slots: Slots | None, *, reset: bool) -> None:
        """Note a command: a step of an ended slot is a reset."""
        if reset or self._eventful:
            index = slice(None) if slots is None else slots
            self._resetting[index] = True if reset else self.ended[index]
            self._eventful = True

    def settle(
        self,
        slots: Slots | None,
        rows: Slots | int,
        failures: Mapping[int, SlotError],
        told: tuple[Array, Array],
        then: Callable[[], None],
    ) -> None:
        """Enter what slots have answered, and take the answers away: both or neither.

        Args:
            slots: Who has answered; None for all.
            rows: Where their observations lie.
            failures: Those that failed.
            told: Their flags, ``(3, n)``, and the steps they ran.
            then: Takes the answers away.
        """
        ring, (flags, steps) = self._ring, told
        ring.settled(slots, rows)
        goes_on = ring.goes_on(int(rows)) if slots is None else not np.count_nonzero(flags[:2])
        # Most steps neither end nor start an episode; whoever has made none was reset.
        if self._eventful or failures or not goes_on or np.count_nonzero(steps) < len(steps):
            with HandlersWait():
                self._enter_events(self.all if slots is None else slots, flags, steps, failures)
                then()
        else:
            then()

    def _enter_events(
        self, slots: Slots, flags: Array, steps: Array, failures: Mapping[int, SlotError]
    ) -> None:
        ended = flags[0] | flags[1]
        reset = steps == 0
        for slot in failures:
            self._episodes.failed(slot, resetting=bool(self._resetting[slot]))
            ended[slots == slot] = reset[slots == slot] = False
        if reset.any():
            self._episodes.consumed(slots[reset])
        if ended.any():
            for slot in slots[ended].tolist():
                self._engine.finished_episode(slot)
            if self._autoreset == "same_step":
                self._episodes.consumed(slots[ended])
                ended[:] = False
        self.ended[slots] = ended
        for slot in failures:
            self.ended[slot] = True
        self._unbegun.difference_update(slots.tolist())
        self._resetting[slots] = False
        self._eventful = bool(self.ended.any() or self._resetting.any() or self._unbegun)

    def switched(self, slots: Slots) -> None:
        """Note that these slots hold new envs, which must be reset."""
        for slot in slots.tolist():
            self._episodes.renewed(slot)
        self.ended[slots] = True
        self._eventful = True


def _as_slots(given: Array, what: str) -> Slots:
    """Integers of another type; a mask of slots, or floats, would name others than were meant."""
    if len(given) and given.dtype.kind not in "iu":
        raise InvalidCall(
            f"{what} needs the numbers of slots, found {given.dtype} {given.tolist()};"
            f" np.flatnonzero() gives those of a mask"
        )
    return given.astype(np.intp)


def refuse_ended(slots: Slots) -> None:
    """Refuse a step of these slots, if there are any, where autoreset is disabled."""
    if len(slots):
        raise InvalidCall(
            f"slots {slots.tolist()} have ended and autoreset is disabled: reset them with"
            f" options={{'reset_mask': …}}"
        )
