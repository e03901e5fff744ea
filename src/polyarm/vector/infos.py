"""Infos without pickling: numeric keys of fixed shape travel in the block, the rest by mail.

The schema is learned from the first reset and the first step of every slot, whose infos are
mailed whole. From then on a worker writes known keys in place; what does not fit is mailed at
resets and at an episode's end, and otherwise dropped and named once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from polyarm.vector.layout import Array, Segment, segment

_PYTHON_TYPES = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


@dataclass(frozen=True, slots=True)
class InfoKey:
    """A key whose value is numeric and always of one shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scalar: bool


def numeric_key(name: str, value: Any) -> InfoKey | None:
    """The schema entry for a value, or None if it has no fixed numeric layout."""
    if (dtype := _PYTHON_TYPES.get(type(value))) is not None:
        return InfoKey(name, (), dtype, True)
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf":
        return InfoKey(name, value.shape, value.dtype, isinstance(value, np.generic))
    return None


def learn_schema(infos: Iterable[Mapping[str, Any]]) -> tuple[InfoKey, ...]:
    """Keys that are numeric and of one shape and dtype in all infos that have them."""
    keys: dict[str, InfoKey | None] = {}
    for info in infos:
        for name, value in info.items():
            key = numeric_key(name, value)
            if name in keys and keys[name] != key:
                key = None
            keys[name] = key
    return tuple(key for _, key in sorted(keys.items()) if key is not None)


def info_segment(schema: tuple[InfoKey, ...], num_envs: int) -> Segment:
    """``[N][keys]`` presence bytes, then ``[N][…]`` values per key."""
    arrays: list[tuple[tuple[str, ...], tuple[int, ...], Any]] = [
        (("present",), (num_envs, max(1, len(schema))), np.bool_)
    ]
    arrays += [(("value", key.name), (num_envs, *key.shape), key.dtype) for key in schema]
    return segment(arrays)


class InfoWriter:
    """Writes one slot's infos into the block.

    Args:
        schema: The learned keys.
        views: Arrays of the info segment.
        slot: Row of the batch.
    """

    def __init__(
        self, schema: tuple[InfoKey, ...], views: Mapping[tuple[str, ...], Array], slot: int
    ) -> None:
        self._present: NDArray[np.bool_] = views[("present",)][slot]
        self._targets = {
            key.name: (place, key, views[("value", key.name)][slot, ...])
            for place, key in enumerate(schema)
        }

    def write(self, info: Mapping[str, Any]) -> list[str]:
        """Write what fits; returns the names of keys that don't."""
        self._present[:] = False
        dropped = []
        for name, value in info.items():
            target = self._targets.get(name)
            if target is None or not self._fits(target[1], value):
                dropped.append(name)
                continue
            place, _, view = target
            view[...] = value
            self._present[place] = True
        return dropped

    @staticmethod
    def _fits(key: InfoKey, value: Any) -> bool:
        if type(value) in _PYTHON_TYPES:
            return key.shape == () and np.can_cast(_PYTHON_TYPES[type(value)], key.dtype)
        if isinstance(value, np.generic | np.ndarray):
            return value.shape == key.shape and np.can_cast(value.dtype, key.dtype)
        return False


class InfoReader:
    """Gathers the infos of many slots from the block, shaped as Gymnasium shapes them."""

    def __init__(
        self, schema: tuple[InfoKey, ...], views: Mapping[tuple[str, ...], Array], num_envs: int
    ) -> None:
        self._present: NDArray[np.bool_] = views[("present",)]
        self._values = [(key.name, views[("value", key.name)]) for key in schema]
        self._num_envs = num_envs

    def read(
        self, slots: NDArray[np.intp] | None, without: list[int] | None = None
    ) -> dict[str, Any]:
        """``{key: (n, …), "_key": (n,)}`` for these slots, or all; keys nobody has are left out.

        ``without`` lists places of the batch whose bytes are not to be read: they have failed.
        """
        infos: dict[str, Any] = {}
        if not self._values:
            return infos
        present = self._present if slots is None else self._present[slots]
        complete = not without and bool(present.all())
        for place, (name, values) in enumerate(self._values):
            mask = present[:, place].copy()
            if without:
                mask[without] = False
            if complete or mask.any():
                gathered = values.copy() if slots is None else values[slots]
                if not complete and not mask.all():
                    gathered[~mask] = 0
                infos[name], infos[f"_{name}"] = gathered, mask
        return infos


class InfoBatch:
    """Merges single infos into a batch exactly as Gymnasium's vector envs do."""

    _add_info = gymnasium.vector.VectorEnv._add_info

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def add(self, infos: dict[str, Any], info: Mapping[str, Any], place: int) -> None:
        """Put one env's info at its place in the batch."""
        self._add_info(infos, dict(info), place)  # type: ignore[misc]
