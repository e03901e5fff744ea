"""Infos without pickling: numeric keys of fixed shape travel in the block, the rest by mail.

The schema is learned from the first reset and the first step of every slot, whose infos are
mailed whole, but no slot is waited for without end. From then on a worker writes known keys in
place; what does not fit is mailed at resets and at an episode's end, and otherwise dropped and
named once.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.vector.layout import Array, Segment, segment
from polyarm.vector.memory import pickled

_LINE = 64
_STRUCT_CODES = {
    "b1": "?",
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
}
_PYTHON_TYPES = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}
_INTS = range(-(2**63), 2**63)

_ENGINES = (
    "error",
    "final_frame_valid",
    "final_info",
    "final_obs",
    "frame_valid",
    "observed_files",
    "steps",
)
_RESERVED = re.compile(f"(env_|_)*({'|'.join(_ENGINES)})")
"""The engine's keys and their masks, and the names that an env's own keys have in their place."""


def delivered_name(name: Any) -> Any:
    """The key under which an env's own value is delivered; no two keys share one.

    ``error`` would be taken for the engine's, so it is ``env_error``, and ``env_error`` makes room:
    it is ``env_env_error``, whether the env has the other one or not.
    """
    return f"env_{name}" if isinstance(name, str) and _RESERVED.fullmatch(name) else name


def mailable(letter: Mapping[str, Any]) -> dict[str, Any]:
    """A letter with infos less the values that cannot be pickled, named under ``unpicklable``."""
    refused: list[str] = []
    kept = {**letter, "info": _picklable_part(letter["info"], refused)}
    if "final" in letter:
        final = letter["final"]
        kept["final"] = {**final, "final_info": _picklable_part(final["final_info"], refused)}
    return {**kept, "unpicklable": refused}


def _picklable_part(info: Mapping[str, Any], refused: list[str]) -> dict[str, Any]:
    kept = {}
    for name, value in info.items():
        try:
            pickled(value)
        except Exception:  # noqa: BLE001  objects may raise anything when they are pickled
            refused.append(name)
        else:
            kept[name] = value
    return kept


@dataclass(frozen=True, slots=True)
class InfoKey:
    """A key whose value is numeric and always of one shape."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def numeric_key(name: str, value: Any) -> InfoKey | None:
    """The schema entry for a value, or None if it has no fixed numeric layout."""
    if (dtype := _PYTHON_TYPES.get(type(value))) is not None:
        return None if type(value) is int and value not in _INTS else InfoKey(name, (), dtype)
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
    named = sorted(keys.items(), key=lambda item: str(item[0]))  # not all names need be strings
    return tuple(key for _, key in named if key is not None)


def _common(one: InfoKey | None, other: InfoKey | None) -> InfoKey | None:
    """An entry that holds both: an int at the reset and a float at a step travel as floats."""
    if one is None or other is None or one.shape != other.shape:
        return None
    return replace(one, dtype=np.result_type(one.dtype, other.dtype))


def record_type(schema: tuple[InfoKey, ...]) -> np.dtype[Any]:
    """One slot's infos as a record: a field per key by its place, and which keys are present.

    Wide values come first and records fill whole cache lines, so every column of a batch is
    aligned, and no two workers write to one line.
    """
    names, formats, offsets = [], [], []
    end = 0
    for place, key in sorted(enumerate(schema), key=lambda item: -item[1].dtype.itemsize):
        names.append(str(place))
        formats.append((key.dtype, key.shape))
        offsets.append(end)
        end += key.dtype.itemsize * math.prod(key.shape)
    names.append("present")
    formats.append((np.dtype(np.bool_), (len(schema),)))
    offsets.append(end)
    size = -(-(end + len(schema) + 1) // _LINE) * _LINE
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def info_segment(schema: tuple[InfoKey, ...], num_envs: int) -> Segment:
    """A record per slot."""
    return segment([(("infos",), (num_envs,), record_type(schema))])


class InfoWriter:
    """Writes one slot's infos into the block.

    Most envs return the same keys with values of the same types at every step: then all of them
    are packed into the record by one call.

    Args:
        schema: The learned keys.
        views: Arrays of the info segment.
        slot: Row of the batch.
    """

    def __init__(
        self, schema: tuple[InfoKey, ...], views: Mapping[tuple[str, ...], Array], slot: int
    ) -> None:
        records = views[("infos",)]
        record = records[slot : slot + 1]
        self._present: NDArray[np.bool_] = record["present"][0]
        self._targets = {
            key.name: (place, key, record[str(place)][0, ...]) for place, key in enumerate(schema)
        }
        self._pack: Callable[..., None] | None = None
        ordered = [schema[int(name)] for name in record_type(schema).names or () if name.isdigit()]
        codes = [_STRUCT_CODES.get(key.dtype.str[1:]) for key in ordered if not key.shape]
        if len(codes) == len(ordered) > 1 and None not in codes:
            packer = struct.Struct("=" + "".join(map(str, codes)))
            self._pack = partial(packer.pack_into, record.view(np.uint8).data, 0)
            self._in_order = itemgetter(*(key.name for key in ordered))
        self._packable: tuple[list[str], list[type]] | None = None

    def write(self, info: Mapping[str, Any]) -> list[str]:
        """Write what fits; returns the names of keys that don't."""
        if not self._targets:
            return list(info)
        seen = list(info), [*map(type, info.values())]
        if self._pack is not None and seen == self._packable:
            try:
                self._pack(*self._in_order(info))
                return []
            except (struct.error, OverflowError):  # an int that is too long
                self._packable = None
        self._present[:] = False
        dropped = []
        for name, value in info.items():
            target = self._targets.get(name)
            if target is None or not self._fits(target[1], value):
                dropped.append(name)
                continue
            place, _, view = target
            try:
                view[...] = value
            except OverflowError:  # an int that is too long
                dropped.append(name)
            else:
                self._present[place] = True
        scalars = not any(isinstance(value, np.ndarray) for value in info.values())
        complete = scalars and not dropped and len(info) == len(self._targets)
        self._packable = seen if complete else None
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

    def __init__(self, schema: tuple[InfoKey, ...], views: Mapping[tuple[str, ...], Array]) -> None:
        self._records = records = views[("infos",)]
        self._shape, self._type = records.shape, records.dtype
        self._bytes = records.view(np.uint8)
        names = [delivered_name(key.name) for key in schema]
        self._keys = [(name, f"_{name}", str(place)) for place, name in enumerate(names)]

    def read(
        self, slots: NDArray[np.intp] | None, without: list[int] | None = None
    ) -> dict[str, Any]:
        """``{key: (n, …), "_key": (n,)}`` for these slots, or all; keys nobody has are left out.

        ``without`` lists places of the batch whose bytes are not to be read: they have failed.
        """
        infos: dict[str, Any] = {}
        if not self._keys:
            return infos
        if slots is None:  # copying bytes takes a tenth of the time of copying records
            batch: Array = np.ndarray(self._shape, self._type, self._bytes.copy())
        else:
            batch = self._records[slots]
        present = batch["present"]
        if without:
            present[without] = False
        complete = np.count_nonzero(present) == present.size
        for place, (name, mask_name, field) in enumerate(self._keys):
            mask = present[:, place]
            if complete or mask.any():
                values = batch[field]
                if not complete:
                    values[~mask] = 0
                infos[name], infos[mask_name] = values, mask
        return infos


def merge_info(infos: dict[str, Any], info: Mapping[str, Any], place: int, num_envs: int) -> None:
    """Put one env's info at its place in a batch, in Gymnasium's form.

    Where Gymnasium would truncate a float to the first env's int, or fail on another shape or on a
    dict beside a number, the array is widened, or becomes one of objects.
    """
    for key, value in info.items():
        held, mask = infos.get(key), infos.setdefault(f"_{key}", np.zeros(num_envs, np.bool_))
        nested = isinstance(value, dict) and key != "final_obs"
        if nested and (held is None or isinstance(held, dict)):
            merge_info(infos.setdefault(key, {}), value, place, num_envs)
        else:
            if held is None:
                made = _room_for(key, value, num_envs)
            else:
                made = split_info(held, mask) if isinstance(held, dict) else _widened(held, value)
            made[place] = value
            infos[key] = made
        mask[place] = True


def split_info(infos: Mapping[str, Any], present: NDArray[np.bool_]) -> Array:
    """Merged infos as those of each env that is present, a dict each: `merge_info` undone."""
    objects: Array = np.full(len(present), None, dtype=object)
    for place in np.flatnonzero(present).tolist():
        objects[place] = _own_info(infos, place)
    return objects


def _own_info(infos: Mapping[str, Any], place: int) -> dict[str, Any]:
    own = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[place]:
            own[key] = _own_info(value, place) if isinstance(value, dict) else value[place]
    return own


def _room_for(key: str, value: Any, num_envs: int) -> Array:
    numeric = None if key == "final_obs" else numeric_key(key, value)
    if numeric is None and not (isinstance(value, np.ndarray) and key != "final_obs"):
        return np.full(num_envs, None, dtype=object)
    shape = value.shape if isinstance(value, np.ndarray) else ()
    return np.zeros((num_envs, *shape), value.dtype if numeric is None else numeric.dtype)


def _widened(array: Array, value: Any) -> Array:
    if array.dtype == object and array.ndim == 1:
        return array
    found = _as_array(value)
    if found is not None and found.shape == array.shape[1:]:
        if found.dtype == array.dtype:
            return array
        if found.dtype.kind in "biuf" and array.dtype.kind in "biuf":
            return array.astype(np.result_type(array.dtype, found.dtype), copy=False)
    objects = np.full(len(array), None, dtype=object)
    for place, held in enumerate(array):
        objects[place] = held
    return objects


def _as_array(value: Any) -> Array | None:
    """None for an int that is too long, and for lists of lists of several lengths."""
    if type(value) is int and value not in _INTS:
        return None
    try:
        return np.asarray(value)
    except ValueError:
        return None
