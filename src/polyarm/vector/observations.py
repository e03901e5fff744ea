"""A slot's observation rows in the block: checked, cast and copied once, or bound in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from polyarm.errors import InvalidObservation
from polyarm.vector.layout import Array, BlockLayout, Leaf, nest, pick

FrameSource = Mapping[str, Array]


class ObservationRows:
    """Where one slot's observations go: ``[row][place]``, place 0 unless every step has its own.

    Args:
        layout: The block's layout.
        views: Arrays of the segment that holds the observations.
        valid: This slot's frame validity, ``[row][place]``.
        slot: Row of the batch.
        space: The observation space as delivered.
    """

    def __init__(
        self,
        layout: BlockLayout,
        views: Mapping[tuple[str, ...], Array],
        valid: NDArray[np.bool_],
        slot: int,
        space: gymnasium.Space[Any],
    ) -> None:
        self._space = space
        arrays = [(leaf, views[("obs", *leaf.path)]) for leaf in layout.observation]
        self._valid = valid
        places = range(valid.shape[1])
        self._targets: list[list[list[tuple[Leaf, Array]]]] = [
            [
                [(leaf, array[row, slot, *((k,) if layout.every else ()), ...])
                 for leaf, array in arrays]
                for k in places
            ]
            for row in range(layout.rows)
        ]  # fmt: skip
        flat = all(len(leaf.path) == 1 for leaf in layout.observation)
        self._flat = [
            [[(leaf.path[0], leaf, view) for leaf, view in targets] for targets in r]
            for r in (self._targets if flat else [()] * layout.rows)
        ]
        self._buffers = [
            [{leaf.path[0]: view for leaf, view in targets if len(leaf.path) == 1} for targets in r]
            for r in self._targets
        ]
        self.has_frames = any(leaf.is_frame for leaf in layout.observation)

    def buffers(self, row: int, place: int) -> dict[str, Array]:
        """The arrays an env with ``bind`` writes into, by observation key."""
        return self._buffers[row][place]

    def write(self, row: int, place: int, obs: Any, frames: FrameSource | None = None) -> None:
        """Copy an observation into its row.

        Args:
            row: Ring row.
            place: Step of the chunk, 0 unless every step has a row.
            obs: What the env returned; arrays it wrote in place are not copied.
            frames: Where frames come from if the observation carries none; a missing one makes
                the row's frames invalid and black, never stale.
        """
        self._valid[row, place] = True
        if frames is None and type(obs) is dict and (flat := self._flat[row]):
            for key, leaf, view in flat[place]:
                if (value := obs.get(key)) is not view:
                    _copy(leaf, _value_at(obs, leaf) if value is None else value, view)
            return
        valid = True
        for leaf, view in self._targets[row][place]:
            if frames is None or not leaf.is_frame:
                value = _value_at(obs, leaf)
            elif (value := frames.get(leaf.path[0])) is None:
                view[...] = 0
                valid = False
                continue
            if value is not view:
                _copy(leaf, value, view)
        self._valid[row, place] = valid

    def clear(self, row: int, first: int, end: int) -> None:
        """Blank the places of steps that did not run."""
        self._valid[row, first:end] = False
        for targets in self._targets[row][first:end]:
            for _, view in targets:
                view[...] = 0

    def owned(self, row: int, place: int) -> tuple[Any, bool]:
        """A copy of a row in the env's own structure, and whether its frames are valid."""
        values = {leaf.path: np.array(view) for leaf, view in self._targets[row][place]}
        return nest(self._space, values), bool(self._valid[row, place])


def _value_at(obs: Any, leaf: Leaf) -> Any:
    try:
        return pick(obs, leaf.path)
    except (KeyError, TypeError, IndexError):
        found = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
        raise InvalidObservation(
            f"the observation has no {leaf.label!r}, which its space declares; found: {found}"
        ) from None


def _copy(leaf: Leaf, value: Any, view: Array) -> None:
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.shape == leaf.shape and (array.dtype is leaf.dtype or array.dtype == leaf.dtype):
        view[...] = array
        return
    if array.shape != leaf.shape:
        raise InvalidObservation(
            f"observation {leaf.label!r} has shape {array.shape}, its space says {leaf.shape}"
        )
    try:
        np.copyto(view, array, casting="same_kind")
    except TypeError:
        raise InvalidObservation(
            f"observation {leaf.label!r} has dtype {array.dtype}, its space says {leaf.dtype}; only"
            f" casts within a kind are made"
        ) from None
