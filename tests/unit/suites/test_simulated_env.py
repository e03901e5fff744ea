"""What all simulated envs have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import InvalidCall
from polyarm.suites.simulated_env import SimulatedEnv


class StillEnv(SimulatedEnv):
    """Its frames are all the same."""

    def _frames(self) -> Any:
        return {f"pixels/{camera}": np.zeros((2, 2, 3), np.uint8) for camera in self._spec.cameras}


def still(*cameras: str) -> StillEnv:
    return StillEnv(EnvSpec("toy", "still", cameras), "stand still", 9)


def test_frames_are_on_where_there_are_cameras() -> None:
    blind, seeing = still(), still("front", "wrist")
    assert (blind.frames_enabled, seeing.frames_enabled) == (False, True)
    assert blind.terminal_frame() is None
    frames = seeing.terminal_frame()
    assert frames is not None
    assert frames.keys() == {"pixels/front", "pixels/wrist"}
    seeing.frames_enabled = False
    assert seeing.terminal_frame() is not None
    assert (blind.instruction, blind.max_steps, blind.frame_seconds) == ("stand still", 9, 0.0)


def test_an_episode_is_the_one_that_is_named_or_the_streams_first_or_the_next() -> None:
    env = still()
    assert [env._begin(None, None) for _ in range(3)] == [0, 1, 2]
    assert env._begin(None, {"episode": 7}) == 7
    assert env._begin(None, {}) == 8
    assert env._begin(3, None) == 3 * STREAM
    assert env._begin(None, {"episode": None}) == 3 * STREAM + 1
    assert env._begin(3, {"episode": 5}) == 5
    assert env._begin(0, None) == 0
    assert env._begin(None, {"episode": np.int64(4)}) == 4


def test_an_episode_that_cannot_be_is_refused_and_changes_nothing() -> None:
    env = still()
    env._begin(None, {"episode": 4})
    with pytest.raises(InvalidCall, match="episode -1 does not exist"):
        env._begin(None, {"episode": -1})
    for wrong in (1.0, "1"):
        with pytest.raises(TypeError):
            env._begin(None, {"episode": wrong})
    assert env._begin(None, None) == 5


def test_arrays_are_the_bound_ones_while_there_are_any() -> None:
    env = still()
    state = np.zeros(3, np.float32)
    env.bind({"state": state})
    assert env._array("state", (3,), np.float32) is state
    other = env._array("task_state", (2,), np.float32)
    assert (other.shape, other.dtype) == ((2,), np.float32)
    env.bind(None)
    first, second = (env._array("state", (3,), np.float32) for _ in range(2))
    assert first is not state
    assert first is not second
