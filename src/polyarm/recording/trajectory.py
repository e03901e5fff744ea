"""Trajectories on disk: one compressed ``.npz`` per episode, whole or absent.

Nested mappings become names joined by ``/``, as `numpy.load` shows them. A key that itself holds
a ``/`` (``pixels/corner``) is told apart by the comment of its archive member, which gives the
path as JSON; so what is loaded has the very structure that was saved.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

_ENDING = ".npy"

Keys = tuple[str, ...]


def save_trajectory(path: Path, trajectory: Mapping[str, Any]) -> None:
    """Save arrays, numbers and strings, in mappings nested as deeply as you like.

    Args:
        path: The file; its folder is made if need be, and an older file replaced.
        trajectory: Leaves keep dtype and shape; strings become unicode arrays.

    Raises:
        TypeError: A leaf cannot be stored without pickling, or a key is no string.
        ValueError: Two leaves would have one name, such as ``{"a/b": 1, "a": {"b": 2}}``.
        OSError: The disk is full or out of order; nothing is left behind.
    """
    members = dict(_members(trajectory))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, (keys, array) in members.items():
                    _write(archive, name, keys, array)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_trajectory(path: Path) -> dict[str, Any]:
    """Load what `save_trajectory` saved, every leaf as an array."""
    trajectory: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            *outer, last = _keys(member)
            inside = trajectory
            for key in outer:
                inside = inside.setdefault(key, {})
            if member.is_dir():
                inside[last] = {}
            else:
                with archive.open(member) as file:
                    inside[last] = npy.read_array(file, allow_pickle=False)
    return trajectory


def _members(
    trajectory: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[Keys, NDArray[Any] | None]]]:
    names = set()
    for keys, leaf in _leaves(trajectory, ()):
        joined = "/".join(keys).replace("\0", "?").encode(errors="replace").decode()
        name = f"{joined}/" if leaf is None else f"{joined}{_ENDING}"
        if name in names:
            raise ValueError(f"two values of the trajectory would be called {joined!r}; rename one")
        names.add(name)
        yield name, (keys, leaf)


def _leaves(mapping: Mapping[str, Any], above: Keys) -> Iterator[tuple[Keys, NDArray[Any] | None]]:
    """Paths and arrays; an empty mapping is a leaf of its own, None."""
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} in trajectory{list(above)} is no string")
        keys = (*above, key)
        if not isinstance(value, Mapping):
            yield keys, _array(keys, value)
        elif value:
            yield from _leaves(value, keys)
        else:
            yield keys, None


def _array(keys: Keys, value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"trajectory{list(keys)} is no array: {error}") from error
    # Extension types such as bfloat16 would be written as raw bytes.
    if array.dtype.hasobject or npy.descr_to_dtype(npy.dtype_to_descr(array.dtype)) != array.dtype:
        raise TypeError(
            f"trajectory{list(keys)} is a {type(value).__name__} of dtype {array.dtype}, which "
            "cannot be stored without pickling; convert it to a plain array"
        )
    return array


def _write(archive: zipfile.ZipFile, name: str, keys: Keys, array: NDArray[Any] | None) -> None:
    member = zipfile.ZipInfo(name)  # dated 1980: equal trajectories make equal files
    if _keys(member) != keys:
        member.comment = json.dumps(keys).encode()
    if array is None:
        archive.writestr(member, b"")
        return
    member.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(member, "w", force_zip64=True) as file:
        npy.write_array(file, array, allow_pickle=False)


def _keys(member: zipfile.ZipInfo) -> Keys:
    if member.comment:
        return tuple(json.loads(member.comment))
    name = member.filename
    return tuple((name[:-1] if member.is_dir() else name.removesuffix(_ENDING)).split("/"))
