"""What a dataset holds of an observation, under LeRobot's names and in its types.

A policy of LeRobot takes every ``observation.*`` of a dataset for an input that its env delivers.
So this prefix is kept for what LeRobot's own env of a suite delivers; all else that a suite
observes goes under ``extra.*``, which no policy looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import FRAME_KEYS

Array = NDArray[Any]

STATE = "observation.state"
ACTION = "action"
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
TIMESTAMP, FRAME_INDEX = "timestamp", "frame_index"
EPISODE_INDEX, INDEX, TASK_INDEX = "episode_index", "index", "task_index"

_EXTRA = "extra"
_STORED = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
"""What is stored of each kind of number; LeRobot's policies compute in float32."""


def observation_columns(obs: Any, state_size: int = 0) -> dict[str, Array]:
    """Copies of the numbers of one observation, by feature: scalars and vectors.

    Frames, what has more dimensions, and what is empty are left out.

    Args:
        obs: An array, or mappings of arrays, nested or with ``/`` in their keys.
        state_size: How many numbers of ``"state"`` are LeRobot's state, if not all; the whole is
            then kept as ``extra.state``.
    """
    columns = {}
    for name, value in _leaves(obs, ""):
        column = as_column(value)
        if column.ndim > 1 or not column.size or column.dtype.kind not in _STORED:
            continue
        if name != "state":
            columns[f"{_EXTRA}.{name}"] = column
            continue
        columns[STATE] = column[:state_size] if state_size else column
        if state_size and state_size < len(column):
            columns[f"{_EXTRA}.state"] = column
    return columns


def as_column(values: Any) -> Array:
    """A copy in the type that is stored; what is no number stays as it is."""
    array = np.asarray(values)
    return np.array(array, _STORED.get(array.dtype.kind, array.dtype))


def _leaves(obs: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(obs, Mapping):
        yield prefix or "state", obs
        return
    for key, value in obs.items():
        if not str(key).startswith(FRAME_KEYS):
            name = str(key).replace("/", ".")
            yield from _leaves(value, f"{prefix}.{name}" if prefix else name)
