"""Copies share memory with nobody who can still see it."""

from __future__ import annotations

import numpy as np
import pytest

from polyarm.vector.copies import CopyPool


def test_a_copy_that_is_held_is_never_written_again():
    pool = CopyPool()
    held = [pool.copy(np.full((3, 4), number)) for number in range(20)]
    for number, array in enumerate(held):
        assert (array == number).all()


def test_memory_that_nobody_holds_is_used_again():
    pool = CopyPool()
    first = pool.copy(np.zeros(1000)).ctypes.data
    assert {pool.copy(np.ones(1000)).ctypes.data for _ in range(10)} == {first}


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array[1:],
        lambda array: array.reshape(-1),
        lambda array: memoryview(array),
        lambda array: [array],
        lambda array: np.asarray(array)[...],
    ],
)
def test_any_way_of_holding_a_copy_protects_it(hold):
    pool = CopyPool()
    held = hold(pool.copy(np.zeros((2, 3))))
    for _ in range(6):
        pool.copy(np.ones((2, 3)))
    assert not np.any(np.asarray(held))


def test_a_tensor_protects_the_copy_it_was_made_from():
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    pool = CopyPool()
    tensor = torch.from_numpy(pool.copy(np.zeros((2, 3))))
    for _ in range(6):
        pool.copy(np.ones((2, 3)))
    assert not tensor.any()


def test_nested_observations_are_copied_leaf_by_leaf():
    pool = CopyPool()
    source = {"a": np.arange(3), "b": {"c": np.zeros((2, 0)), "d": np.array(5)}}
    copied = pool.copy(source)
    source["a"][:] = -1
    source["b"]["d"][...] = -1
    assert copied["a"].tolist() == [0, 1, 2]
    assert copied["b"]["c"].shape == (2, 0)
    assert copied["b"]["d"] == 5
