"""Independent copies of observations, in memory that is used again once nobody holds it.

A fresh array of some megabytes costs more in page faults than in copying. An array whose only
reference is the pool's can't be seen by anybody: views, tensors and wrappers all hold one.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from polyarm.vector.layout import Array

_KEPT = 4


def _references(arrays: list[Array]) -> list[int]:
    """How many references each array has, seen from in here."""
    counts = []
    for array in arrays:
        counts.append(sys.getrefcount(array))
    return counts


# Measured, not assumed: how many references a call adds differs between versions of Python.
(_UNSEEN,) = _references([np.zeros(1)])


class CopyPool:
    """Hands out copies; keeps a few arrays of each shape and dtype."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[tuple[int, ...], str], list[Array]] = {}

    def copy(self, value: Any) -> Any:
        """A copy of an array, or of a nested dict of them."""
        if isinstance(value, dict):
            return {key: self.copy(child) for key, child in value.items()}
        kept = self._arrays.setdefault((value.shape, value.dtype.str), [])
        for place, references in enumerate(_references(kept)):
            if references == _UNSEEN:
                np.copyto(kept[place], value)
                return kept[place]
        fresh = np.array(value)
        if len(kept) == _KEPT:
            kept.pop(0)
        kept.append(fresh)
        return fresh
