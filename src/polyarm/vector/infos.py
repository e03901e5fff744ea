"""Infos without pickling: numeric keys of fixed shape travel in the block, the rest by mail.

The schema is learned from the first reset and the first step of every slot, whose infos are
mailed whole. From then on a worker writes known keys in place; what does not fit is mailed at
resets and at an episode's end, and otherwise dropped and named once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.vector.layout import Array, Segment, segment

_PYTHON_TYPES = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


@dataclass(frozen=True, slots=True)
class InfoKey:
    """A key whose value is numeric and always of one shape."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def numeric_key(name: str, value: Any) -> InfoKey | None:
    """The schema entry for a value, or None if it has no fixed numeric layout."""
    if (dtype := _PYTHON_TYPES.get(type(value))) is not None:
        return InfoKey(name, (), dtype)
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf":
        return InfoKey(name, value.shape, value.dtype)
    return None


def learn_schema(infos: Iterable[Mapping[str, Any]]) -> tuple[InfoKey, ...]:
    """Keys that are numeric and of one shape in all infos that have them."""
    keys: dict[str, InfoKey | None] = {}
    for info in infos:
        for name, value in info.items():
            key = numeric_key(name, value)
            keys[name] = _common(keys[name], key) if name in keys else key
    return tuple(key for _, key in sorted(keys.items()) if key is not None)


def _common(one: InfoKey | None, other: InfoKey | None) -> InfoKey | None:
    """An entry that holds both: an int at the reset and a float at a step travel as floats."""
    if one is None or other is None or one.shape != other.shape:
        return None
    return replace(one, dtype=np.result_type(one.dtype, other.dtype))


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
        if not self._targets:
            return list(info)
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
        complete = not without and np.count_nonzero(present) == present.size
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


def merge_info(infos: dict[str, Any], info: Mapping[str, Any], place: int, num_envs: int) -> None:
    """Put one env's info at its place in a batch, in Gymnasium's form.

    Where Gymnasium would truncate a float to the first env's int, or fail on another shape, the
    array is widened, or becomes one of objects.
    """
    for key, value in info.items():
        if key != "final_obs" and isinstance(value, dict):
            merge_info(infos.setdefault(key, {}), value, place, num_envs)
        else:
            array = infos.get(key)
            made = _room_for(key, value, num_envs) if array is None else _widened(array, value)
            made[place] = value
            infos[key] = made
        mask = infos.setdefault(f"_{key}", np.zeros(num_envs, np.bool_))
        mask[place] = True


def _room_for(key: str, value: Any, num_envs: int) -> Array:
    numeric = None if key == "final_obs" else numeric_key(key, value)
    if numeric is None and not (isinstance(value, np.ndarray) and key != "final_obs"):
        return np.full(num_envs, None, dtype=object)
    shape = value.shape if isinstance(value, np.ndarray) else ()
    return np.zeros((num_envs, *shape), value.dtype if numeric is None else numeric.dtype)


def _widened(array: Array, value: Any) -> Array:
    if array.dtype == object:
        return array
    found = np.asarray(value)
    if found.dtype.kind in "biuf" and found.shape == array.shape[1:]:
        return array.astype(np.result_type(array.dtype, found.dtype), copy=False)
    if found.dtype == array.dtype and found.shape == array.shape[1:]:
        return array
    objects = np.full(len(array), None, dtype=object)
    for place, held in enumerate(array):
        objects[place] = held
    return objects
