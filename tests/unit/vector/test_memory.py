"""Letters: what is large in them and what is not."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import polyarm
from polyarm.errors import HostLimit
from polyarm.testing import NullEnv
from polyarm.vector.memory import Block, Mail, pickled


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 255, (64, 64, 3), np.uint8),
        Box(-np.inf, np.inf, (300,), np.float64),
        Box(-0.1, 0.1, (300,), np.float32),
        Box(-(2**63), 2**63 - 2, (300,), np.int64),
        Box(0, 1, (300,), bool),
    ],
)
def test_a_space_with_the_same_bounds_everywhere_travels_as_two_numbers(space):
    sent = pickled({"space": Dict({"one": space})})
    assert len(sent) < 1000
    (got,) = pickle.loads(sent)["space"].values()
    assert got == space
    assert got.dtype == space.dtype
    for name in ("low", "high", "bounded_below", "bounded_above"):
        assert np.array_equal(getattr(got, name), getattr(space, name)), name


def test_a_space_with_bounds_of_its_own_and_a_seeded_one_travel_as_they_are():
    bounds = np.arange(300, dtype=np.float32)
    ragged = Box(bounds, bounds + 1)
    assert pickle.loads(pickled(ragged)) == ragged
    seeded = Box(0, 255, (300,), np.uint8, seed=3)
    assert np.array_equal(pickle.loads(pickled(seeded)).sample(), seeded.sample())


def test_the_bounds_of_the_whole_batch_are_made_when_they_are_asked_for():
    """Four times the memory of the batch, which frames make much."""
    with polyarm.make_vec(NullEnv, num_envs=3, num_workers=0) as envs:
        obs, _ = envs.reset()
        envs.step(envs.action_space.sample())
        assert "observation_space" not in vars(envs)
        assert envs.observation_space.contains(obs)
        assert envs.observation_space is envs.observation_space


@pytest.mark.parametrize("make", [Block, Mail])
def test_a_kernel_without_memory_files_is_told_with_what_it_takes(make, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.memfd_create", refused)
    with pytest.raises(HostLimit, match=r"no memory files.*seccomp=unconfined"):
        make()
