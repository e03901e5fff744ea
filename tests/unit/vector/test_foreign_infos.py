"""Infos of envs that were written without polyarm in mind: nothing in them may stop the batch."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest

STEP = np.zeros(4, np.int64)


def telling(*infos, length=100):
    """An env that returns these infos, one after the other, and then the last one for ever."""

    class TellingEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.step_number = 0
            return 0, infos[0]

        def step(self, action):
            self.step_number += 1
            info = infos[min(self.step_number, len(infos) - 1)]
            return 0, 0.0, self.step_number >= length, False, info

    return TellingEnv


@contextmanager
def caught():
    """The texts of all warnings."""
    texts = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
        texts += [str(one.message) for one in found]


@pytest.mark.parametrize("infos", ["auto", "full"])
def test_an_envs_own_keys_are_not_taken_for_the_engines(make, infos):
    own = {"error": 0.25, "steps": 7, "frame_valid": False, "_error": 3, "gap": 1.5}
    env = make(telling(own), infos=infos)
    with caught() as said:
        delivered = [env.reset()[1], *(env.step(STEP)[4] for _ in range(4))]
    for step, info in enumerate(delivered):
        assert "error" not in info
        assert "_error" not in info
        assert info["env_error"].tolist() == [0.25] * 4
        assert info["_env_error"].all()
        assert info["env__error"].tolist() == [3] * 4
        assert info["env_steps"].tolist() == [7] * 4
        assert info["env_frame_valid"].tolist() == [False] * 4
        assert info["frame_valid"].all()
        assert info["gap"].tolist() == [1.5] * 4
        assert "steps" not in info if step == 0 else info["steps"].tolist() == [1] * 4
    (text,) = said
    assert "['_error', 'error', 'frame_valid', 'steps'] of the envs" in text


@pytest.mark.filterwarnings("ignore:info keys:UserWarning")
def test_an_envs_own_keys_are_not_taken_for_the_engines_at_an_episodes_end(make):
    own = {"error": 0.25, "final_obs": "mine", "final_info": {"a": 1}, "final_frame_valid": 5}
    env = make(telling(own, length=2), autoreset="same_step")
    env.reset()
    for _ in range(4):
        *_, info = env.step(STEP)
    assert info["_final_obs"].all()
    assert info["final_obs"].tolist() == [0] * 4
    assert info["final_frame_valid"].dtype == np.bool_
    for one in (info, info["final_info"]):
        assert "error" not in one
        assert one["env_error"].tolist() == [0.25] * 4
        assert one["env_final_obs"].tolist() == ["mine"] * 4
        assert one["env_final_info"]["a"].tolist() == [1] * 4
        assert one["env_final_frame_valid"].tolist() == [5] * 4
