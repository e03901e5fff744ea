"""The rows of the ring: how long views of them live, and what the whole ring says."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from polyarm.testing import CountingEnv

LONG = partial(CountingEnv, length=100)
NOTHING = np.zeros((4, 2), np.float32)


def chunk(length, slots=4):
    return np.zeros((slots, length, 2), np.float32)


# What the whole ring says.


@pytest.mark.parametrize("frames", ["last", "every"])
def test_longer_chunks_leave_the_history_as_it_was(make, frames):
    env = make(LONG, ring=6, frames=frames)
    env.reset(seed=0)
    env.rewind()
    for _ in range(2):
        env.step(NOTHING)
    env.step_chunk(chunk(3))
    history = env.history()
    made = [[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 4, 5]]
    for slot in range(4):
        assert history["rewards"][:4, slot].tolist() == made
        shown = history["obs"]["state"][:4, slot, ..., 1].tolist()
        assert shown == (made if frames == "every" else [0, 1, 2, 5])


@pytest.mark.parametrize("frames", ["last", "every"])
def test_what_was_under_way_when_chunks_grew_is_in_the_history(make, frames):
    env = make(LONG, ring=4, frames=frames)
    env.reset(seed=0)
    env.rewind()
    env.send(NOTHING[:2], [0, 1])
    env.send(chunk(3, 2), [2, 3])
    env.recv(4)
    history = env.history()
    made = [[1, 0, 0], [1, 0, 0], [1, 2, 3], [1, 2, 3]]
    assert history["rewards"][1].tolist() == made
    if frames == "every":
        assert history["obs"]["state"][1, ..., 1].tolist() == made
