"""Where a chunk's actions come from: the trainer, through the block, or the env's own expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from polyarm.vector.layout import Array, nest


class ExpertActions:
    """The actions of a chunk as its steps come: asked of the expert, and left for the trainer."""

    def __init__(self, expert: Callable[[], Array], rows: Array) -> None:
        self._expert = expert
        self._rows = rows

    def __getitem__(self, step: int) -> Any:
        self._rows[step] = self._expert()
        return self._rows[step].copy()


def action_reader(
    space: gymnasium.Space[Any], actions: Mapping[tuple[str, ...], Array]
) -> Callable[[int], list[Any]]:
    """A function from a chunk's length to its actions, which the env may keep and change."""
    if isinstance(space, gymnasium.spaces.Dict):

        def read_nested(chunk: int) -> list[Any]:
            owned = {path: values[:chunk].copy() for path, values in actions.items()}
            return [
                nest(space, {path: own[k] for path, own in owned.items()}) for k in range(chunk)
            ]

        return read_nested
    (values,) = actions.values()
    if values.ndim == 1:
        return lambda chunk: list(values[:chunk].copy())
    first = values[0]
    return lambda chunk: list(values[:chunk].copy()) if chunk > 1 else [first.copy()]
