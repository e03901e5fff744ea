"""Actions on their way into the block, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from polyarm.contracts import to_host
from polyarm.errors import InvalidAction
from polyarm.vector.layout import Array, Leaf, Slots, pick


class ActionCheck:
    """Validates batches of actions against a space.

    Args:
        space: Action space of a single env.
        leaves: Its leaves.
        clip: Whether Box actions are clipped to their bounds; they are otherwise left alone.
    """

    def __init__(
        self, space: gymnasium.Space[Any], leaves: Sequence[Leaf], *, clip: bool = False
    ) -> None:
        self._space = space
        self._leaves = list(leaves)
        self._clip = clip
        only = self._leaves[0] if len(self._leaves) == 1 else None
        self._plain = (only.shape, only.dtype, only) if only is not None and not only.path else None

    def __call__(
        self, actions: Any, slots: Slots, *, chunked: bool | None
    ) -> tuple[list[Array], int | None]:
        """Check a batch.

        Args:
            actions: ``(n, …)`` per leaf, or ``(n, K, …)`` for a chunk.
            slots: The slots the rows are for.
            chunked: Whether a chunk is expected; None to tell from the shape.

        Returns:
            One ``(n, K, …)`` array per leaf, and K, or None for single steps.

        Raises:
            InvalidAction: Naming the slot and the value.
        """
        if self._plain is not None and type(actions) is np.ndarray:
            shape, dtype, leaf = self._plain
            if not chunked and actions.shape == (len(slots), *shape) and actions.dtype == dtype:
                return [self._check_values(actions[:, np.newaxis], leaf, slots)], None
        checked: list[Array] = []
        chunk: int | None = None
        for place, leaf in enumerate(self._leaves):
            array = self._array(actions, leaf, slots)
            is_chunk = array.ndim == len(leaf.shape) + 2
            if chunked is not None and is_chunk is not chunked:
                is_chunk = chunked
            head = array.shape[: 2 if is_chunk else 1]
            whole = len(head) == (2 if is_chunk else 1) and head[0] == len(slots)
            if array.shape != (*head, *leaf.shape) or not whole:
                wanted = f"({len(slots)}, {'K, ' if is_chunk else ''}{_tail(leaf.shape)})"
                raise InvalidAction(
                    f"action {leaf.label!r} has shape {array.shape}, expected {wanted}"
                )
            length = head[1] if is_chunk else None
            if place and length != chunk:
                raise InvalidAction(f"action {leaf.label!r} has {length} steps, others {chunk}")
            if length == 0:
                raise InvalidAction("a chunk of no actions")
            chunk = length
            checked.append(self._check_values(array if is_chunk else array[:, None], leaf, slots))
        return checked, chunk

    def _array(self, actions: Any, leaf: Leaf, slots: Slots) -> Array:
        try:
            value = pick(actions, leaf.path)
        except (KeyError, TypeError, IndexError):
            raise InvalidAction(f"the actions have no {leaf.label!r}") from None
        value = to_host(value)
        if (array := _as_array(value)) is None:
            raise InvalidAction(f"{_misfit(value, leaf, slots)}the actions are not an array")
        if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
            raise InvalidAction(
                f"{_misfit(value, leaf, slots)}action {leaf.label!r} has dtype {array.dtype}, the"
                f" space says {leaf.dtype}; only casts within a kind are made"
            )
        return array

    def _check_values(self, array: Array, leaf: Leaf, slots: Slots) -> Array:
        space = leaf.space
        if leaf.dtype.kind == "f":
            finite = np.isfinite(array)
            if np.count_nonzero(finite) != finite.size:
                raise _refusal(array, ~finite, leaf, slots, "is not finite")
            if array.dtype != leaf.dtype:
                if self._clip and isinstance(space, spaces.Box):
                    array = np.clip(array, space.low, space.high)
                with np.errstate(over="ignore"):
                    cast = array.astype(leaf.dtype)
                if not (finite := np.isfinite(cast)).all():
                    raise _refusal(array, ~finite, leaf, slots, f"is not finite as {leaf.dtype}")
                array = cast
        if isinstance(space, spaces.Box):
            if array.dtype != leaf.dtype and leaf.dtype.kind in "iu":
                cast = array.astype(leaf.dtype)
                if (wrapped := cast != array).any():
                    raise _refusal(array, wrapped, leaf, slots, f"does not fit in {leaf.dtype}")
                array = cast
            return np.clip(array, space.low, space.high) if self._clip else array
        low, high = discrete_limits(space)
        outside = (array < low) | (array > high)
        if outside.any():
            raise _refusal(array, outside, leaf, slots, f"is outside of {space}")
        return array


def discrete_limits(space: gymnasium.Space[Any]) -> tuple[Any, Any]:
    """The least and the greatest action of a Discrete, MultiDiscrete or MultiBinary space."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _tail(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _as_array(value: Any) -> Array | None:
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        return None


def _misfit(value: Any, leaf: Leaf, slots: Slots) -> str:
    """Names the first slot whose action does not fit, if any one is to blame."""
    if not np.iterable(value) or isinstance(value, Mapping):
        return ""
    for slot, row in zip(slots, value, strict=False):
        array = _as_array(row)
        fits = array is not None and np.can_cast(array.dtype, leaf.dtype, "same_kind")
        if array is None or not fits or array.shape[array.ndim - len(leaf.shape) :] != leaf.shape:
            return f"slot {int(slot)}: action = {row!r} does not fit: "
    return ""


def _refusal(array: Array, bad: Array, leaf: Leaf, slots: Slots, why: str) -> InvalidAction:
    row, step, *rest = (int(n) for n in np.argwhere(bad)[0])
    where = f"[{_tail(tuple(rest))}]" if rest else ""
    name = f" {leaf.label!r}" if leaf.path else ""
    return InvalidAction(
        f"slot {int(slots[row])}: action{name}{where} = {array[(row, step, *rest)]!s} at step"
        f" {step} of the chunk {why}; nothing was sent"
    )
