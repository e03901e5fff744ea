"""A batch's infos: what travelled in the block, what came by mail, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import SlotError
from polyarm.vector.board import Result
from polyarm.vector.engine import Engine
from polyarm.vector.infos import delivered_name, learn_schema, merge_info
from polyarm.vector.layout import Slots
from polyarm.vector.ring import Ring
from polyarm.vector.settings import SlotSettings
from polyarm.vector.user_warnings import warn_user

_ENOUGH = 32
"""Infos of one slot's steps after which nobody is waited for that has not made any yet."""

_DROPPED = (
    "info keys {} are not numeric of one fixed shape, or were not there at the first reset and"
    " step; between resets and ends of episodes they are dropped. make_vec(..., infos='full')"
    " sends everything."
)
_RENAMED = (
    "info keys {} of the envs are delivered as 'env_<key>', so that none has the name of one of"
    " polyarm's own infos, or of another that is delivered so."
)
_UNPICKLABLE = "info keys {} hold what cannot be pickled, and are left out."


class InfoAssembler:
    """Puts the infos of a batch together, and learns which keys can travel in the block.

    Args:
        engine: Where letters are fetched.
        ring: Where infos in the block are read.
        settings: What all slots share.
    """

    def __init__(self, engine: Engine, ring: Ring, settings: SlotSettings) -> None:
        self._engine = engine
        self._ring = ring
        self._learning = settings.infos == "auto"
        self._seen: list[dict[str, Any]] = []
        self._unseen = {(slot, op) for slot in range(settings.num_envs) for op in ("reset", "step")}
        self._mailed = [0] * settings.num_envs
        self._named: set[tuple[str, str]] = set()
        self._unchanged: set[Any] = set()
        self._all: Slots = np.arange(settings.num_envs, dtype=np.intp)
        self._letters = engine.board.results[:, Result.LETTER]

    def assemble(
        self,
        slots: Slots | None,
        failures: Mapping[int, SlotError],
        steps: NDArray[np.int32],
    ) -> dict[str, Any]:
        """Infos of a batch, shaped as Gymnasium shapes them.

        Args:
            slots: The batch; None for all slots.
            failures: Slots of the batch that failed; their bytes and letters are not read.
            steps: Steps each slot ran; 0 means that it was reset.
        """
        infos: dict[str, Any] = {}
        chosen = self._all if slots is None else slots
        without = [i for i, slot in enumerate(chosen) if slot in failures] if failures else None
        if self._ring.infos is not None:
            infos = self._ring.infos.read(slots, without)
        letters = self._letters if slots is None else self._letters[slots]
        if np.count_nonzero(letters):
            for place in np.flatnonzero(letters).tolist():
                slot = int(chosen[place])
                if slot not in failures:
                    letter = self._engine.letter(slot)
                    self._add(infos, letter, place, len(chosen))
                    self._learn(slot, letter, reset=steps[place] == 0)
        if failures:
            self._add_errors(infos, chosen, failures)
        if self._learning and (not self._unseen or max(self._mailed) >= _ENOUGH):
            self._ring.set_schema(learn_schema(self._seen))
            self._learning = False
            self._seen.clear()
        return infos

    def _add(
        self, infos: dict[str, Any], letter: Mapping[str, Any], place: int, num_envs: int
    ) -> None:
        if "final" in letter:
            final = letter["final"]
            ended = {**self._distinct(final["final_info"]), **letter["added"]}
            merge_info(infos, {**final, "final_info": ended}, place, num_envs)
            merge_info(infos, self._distinct(letter["info"]), place, num_envs)
        elif "info" in letter:
            own = {**self._distinct(letter["info"]), **letter["added"]}
            merge_info(infos, own, place, num_envs)
        self._name_once(_UNPICKLABLE, letter.get("unpicklable", ()))
        self._name_once(_DROPPED, letter.get("dropped", ()))

    def _distinct(self, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """An env's info, none of whose keys can be taken for the engine's."""
        if self._unchanged.issuperset(info):
            return info
        names = {name: delivered_name(name) for name in info}
        changed = [name for name in info if names[name] != name]
        self._unchanged.update(set(info).difference(changed))
        self._name_once(_RENAMED, changed)
        return {names[name]: value for name, value in info.items()}

    def _name_once(self, warning: str, names: Iterable[str]) -> None:
        """Warn of info keys, unless they have been named in this warning before."""
        if new := {(warning, name) for name in names} - self._named:
            self._named |= new
            named = sorted((name for _, name in new), key=str)
            warn_user(warning.format(named))

    def _learn(self, slot: int, letter: Mapping[str, Any], *, reset: bool) -> None:
        if self._learning and "info" in letter:
            self._unseen.discard((slot, "reset" if reset or "final" in letter else "step"))
            self._seen.append(letter["info"])
            self._mailed[slot] += not reset or "final" in letter
            if "final" in letter:
                self._unseen.discard((slot, "step"))
                self._seen.append(letter["final"]["final_info"])

    @staticmethod
    def _add_errors(infos: dict[str, Any], slots: Slots, failures: Mapping[int, SlotError]) -> None:
        errors = np.full(len(slots), None, dtype=object)
        for place, slot in enumerate(slots):
            errors[place] = failures.get(int(slot))
        infos["error"] = errors
        infos["_error"] = np.array([error is not None for error in errors])


def widen(infos: dict[str, Any], slots: Slots, num_envs: int) -> dict[str, Any]:
    """Spread a batch of some slots over all slots; absent ones are zero and masked out."""
    wide: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            wide[key] = widen(value, slots, num_envs)
        else:
            absent = None if value.dtype == object else 0
            wide[key] = np.full((num_envs, *value.shape[1:]), absent, value.dtype)
            wide[key][slots] = value
    return wide
