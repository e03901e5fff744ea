"""Spaces to bytes: which array of the shared block lives where.

Pure: trainer and workers compute the same layout from the same spaces, so only numbers travel.
Every field is one C-contiguous array; rows are not padded, so ``(T, N, …)`` views of the block
are contiguous tensors at any image size. What workers write many times per wake-up (phase, step,
clock) lives in the control board instead, one cache line per worker.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from polyarm.contracts import FRAME_KEYS
from polyarm.errors import UnsupportedSpace

Path = tuple[str, ...]
Array = NDArray[Any]
Slots = NDArray[np.intp]
"""Rows of the batch, by number."""

_LINE = 64
_PAGE = 4096
FLAGS = ("terminated", "truncated", "frame_valid")
"""Flags of a slot in a row; frame_valid is per step instead when every step is delivered."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array-valued part of a space.

    Attributes:
        path: Keys that lead to it through nested Dict spaces; empty for a bare space.
        shape: Shape of one sample.
        dtype: NumPy dtype of one sample.
        space: The leaf's own space.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    space: spaces.Space[Any]

    @property
    def label(self) -> str:
        """The path as people write it."""
        return ".".join(self.path) or "<root>"

    @property
    def is_frame(self) -> bool:
        """Whether this leaf holds camera frames."""
        return bool(self.path) and self.path[0].startswith(FRAME_KEYS)


def leaves(space: spaces.Space[Any], what: str, path: Path = ()) -> list[Leaf]:
    """The leaves of ``space`` in a fixed order.

    Args:
        space: A Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of such, nested at will.
        what: ``"observation"`` or ``"action"``, for the error message.
        path: Where ``space`` sits inside the whole.

    Raises:
        UnsupportedSpace: For any other space, named with its path.
    """
    if isinstance(space, spaces.Dict):
        found: list[Leaf] = []
        for key, child in space.spaces.items():
            if not isinstance(key, str):
                raise UnsupportedSpace(f"{what} space has a key that is not a str: {key!r}")
            found += leaves(child, what, (*path, key))
        return found
    known = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(space, known) or np.dtype(space.dtype).hasobject:
        raise UnsupportedSpace(
            f"{what} space {type(space).__name__} at {'.'.join(path) or '<root>'} has no fixed byte"
            f" layout; supported are Box, Discrete, MultiDiscrete, MultiBinary and Dicts of them."
            f" Flatten it in the env (gymnasium.wrappers.FlattenObservation) or drop it."
        )
    return [Leaf(path, tuple(space.shape or ()), np.dtype(space.dtype), space)]


def nest(space: spaces.Space[Any], values: Mapping[Path, Any], path: Path = ()) -> Any:
    """Arrange leaf values in the structure of ``space`` (nested dicts, or the bare value)."""
    if isinstance(space, spaces.Dict):
        return {key: nest(child, values, (*path, key)) for key, child in space.spaces.items()}
    return values[path]


def pick(value: Any, path: Path) -> Any:
    """The part of a nested mapping that ``path`` leads to."""
    for key in path:
        value = value[key]
    return value


@dataclass(frozen=True, slots=True)
class Field:
    """A named array of a segment, at a byte offset."""

    name: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of fields that is mapped as a whole."""

    fields: tuple[Field, ...]
    nbytes: int

    def views(self, buffer: Any) -> dict[Path, Array]:
        """Arrays over ``buffer``, one per field; empty fields get arrays of their own."""
        return {
            field.name: np.ndarray(field.shape, field.dtype, buffer, field.offset)
            if field.nbytes
            else np.zeros(field.shape, field.dtype)
            for field in self.fields
        }


def segment(arrays: Iterable[tuple[Path, Sequence[int], Any]]) -> Segment:
    """Lay out ``(name, shape, dtype)`` arrays one after the other.

    Fields start on a cache line, large ones on a page, so that no two share one at their borders.
    """
    fields: list[Field] = []
    end = 0
    for name, shape, dtype in arrays:
        field = Field(name, tuple(shape), np.dtype(dtype), 0)
        step = _PAGE if field.nbytes >= _PAGE else _LINE
        offset = -(-end // step) * step
        fields.append(Field(field.name, field.shape, field.dtype, offset))
        end = offset + field.nbytes
    return Segment(tuple(fields), max(end, 1))


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Layout of all segments of one vector env.

    Attributes:
        num_envs: Number of slots, N.
        rows: Number of ring rows, T.
        every: Whether each step of a chunk has an observation row of its own.
        observation: Leaves of the observation.
        action: Leaves of the action.
    """

    num_envs: int
    rows: int
    every: bool
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]

    def row_segment(self) -> Segment:
        """``[T][N][…]``: flags, step counts and, unless ``every``, the observations.

        The flags of a row lie together (terminated, truncated, frame_valid), so that the trainer
        takes them with one copy.
        """
        grid = (self.rows, self.num_envs)
        arrays: list[tuple[Path, Sequence[int], Any]] = [
            (("flags",), (self.rows, len(FLAGS), self.num_envs), np.bool_),
            (("steps",), grid, np.int32),
        ]
        if not self.every:
            arrays += [(("obs", *o.path), (*grid, *o.shape), o.dtype) for o in self.observation]
        return segment(arrays)

    def chunk_segment(self, capacity: int) -> Segment:
        """``[N][K][…]`` actions, ``[T][N][K]`` rewards and, if ``every``, the observations."""
        grid = (self.rows, self.num_envs, capacity)
        arrays: list[tuple[Path, Sequence[int], Any]] = [(("rewards",), grid, np.float64)]
        arrays += [
            (("action", *a.path), (self.num_envs, capacity, *a.shape), a.dtype) for a in self.action
        ]
        if self.every:
            arrays.append((("frame_valid",), grid, np.bool_))
            arrays += [(("obs", *o.path), (*grid, *o.shape), o.dtype) for o in self.observation]
        return segment(arrays)

    def digest(self) -> int:
        """A 63-bit number that differs when the bytes would; guards workers against a mix-up."""
        parts = [
            (self.num_envs, self.rows, self.every),
            [(leaf.path, leaf.shape, leaf.dtype.str) for leaf in self.observation],
            [(leaf.path, leaf.shape, leaf.dtype.str) for leaf in self.action],
        ]
        raw = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(raw, "little") >> 1


def without_frames(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """``space`` less its frame keys, as ``frames="none"`` shows it."""
    if not isinstance(space, spaces.Dict):
        return space
    return spaces.Dict({k: s for k, s in space.spaces.items() if not k.startswith(FRAME_KEYS)})
