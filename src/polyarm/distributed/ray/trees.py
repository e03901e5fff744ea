"""Batches put together and taken apart, leaf by leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyarm.vector.infos import split_info


def concatenated(trees: Sequence[Any]) -> Any:
    """Batches of one structure, mappings and tuples of arrays, as one."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {name: concatenated([tree[name] for tree in trees]) for name in first}
    if isinstance(first, tuple):
        return tuple(concatenated(each) for each in zip(*trees, strict=True))
    return np.concatenate(trees)


def rows(tree: Any, start: int, stop: int) -> Any:
    """Some rows of a batch."""
    if isinstance(tree, Mapping):
        return {name: rows(value, start, stop) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(rows(value, start, stop) for value in tree)
    return tree[start:stop]


def merged_infos(infos: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> dict[str, Any]:
    """Infos of the parts of a batch as those of the whole, in Gymnasium's form.

    Args:
        infos: Of each part; what only some of them have is masked out in the others.
        counts: Rows of each part.
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for info in infos for name in info):
        values = [info.get(name) for info in infos]
        nested = [isinstance(value, Mapping) for value in values if value is not None]
        if all(nested):
            merged[name] = merged_infos([value or {} for value in values], counts)
            continue
        if any(nested):
            values = [
                split_info(value, info[f"_{name}"]) if isinstance(value, Mapping) else value
                for value, info in zip(values, infos, strict=True)
            ]
        example = next(value for value in values if value is not None)
        filled = [
            _absent(example, count) if value is None else value
            for value, count in zip(values, counts, strict=True)
        ]
        if len({(value.dtype == object, value.shape[1:]) for value in filled}) > 1:
            filled = [_as_objects(value) for value in filled]
        merged[name] = np.concatenate(filled)
    return merged


def _absent(example: Any, count: int) -> Any:
    fill = None if example.dtype == object else 0
    return np.full((count, *example.shape[1:]), fill, example.dtype)


def _as_objects(values: Any) -> Any:
    objects = np.full(len(values), None, dtype=object)
    for place, value in enumerate(values):
        objects[place] = value
    return objects
