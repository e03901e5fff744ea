"""Which envs write their observations in place, and what of those that only seem to."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import (
    DelayObservation,
    FilterObservation,
    FrameStackObservation,
    OrderEnforcing,
    RecordEpisodeStatistics,
    TimeLimit,
)

from polyarm.testing import BindingEnv, CountingEnv
from polyarm.vector.envcalls import binder, expert_of, source


@pytest.mark.parametrize(
    "bind",
    [lambda self, address: 1 / 0, lambda self: 1 / 0, "0.0.0.0", None],
    ids=["method", "method of nothing", "text", "none"],
)
def test_a_bind_of_another_kind_is_the_envs_own_affair(make, bind):
    class SocketEnv(CountingEnv):
        pass

    SocketEnv.bind = bind
    env = make(SocketEnv)
    obs, _ = env.reset(seed=3)
    assert obs["state"][:, 0].tolist() == [3, 4, 5, 6]
    assert env.step(np.zeros((4, 2), np.float32))[0]["state"][:, 1].tolist() == [1] * 4


def test_a_bind_that_fails_fails_in_the_reset(make_any):
    class FailingEnv(BindingEnv):
        def bind(self, buffers):
            raise OSError("no memory to write to")

    env = make_any(FailingEnv, num_envs=1)
    env.send_reset()
    error = env.recv().info["error"][0]
    assert (error.phase, error.error_class) == ("reset", "OSError")


def change(env):
    """Observations less those before: whoever writes over what is kept, shows."""

    class Change(gymnasium.ObservationWrapper):
        before = None

        def reset(self, **options):
            self.before = None
            return super().reset(**options)

        def observation(self, obs):
            kept, self.before = self.before or obs, obs
            return {key: value - kept[key] for key, value in obs.items()}

    return Change(env)


def inverted(env):
    class Inverted(gymnasium.ObservationWrapper):
        def observation(self, obs):
            return {**obs, "pixels/front": 255 - obs["pixels/front"]}

    return Inverted(env)


@pytest.mark.parametrize("ring", [2, 3, 5])
@pytest.mark.parametrize(
    "wrap",
    [
        change,
        inverted,
        lambda env: DelayObservation(env, 2),
        lambda env: FrameStackObservation(env, 3),
        lambda env: FilterObservation(env, ["state"]),
        lambda env: change(TimeLimit(OrderEnforcing(env), 6)),
        lambda env: TimeLimit(change(RecordEpisodeStatistics(env)), 6),
    ],
    ids=["change", "inverted", "delay", "stack", "filter", "above", "below"],
)
def test_what_wrappers_keep_of_observations_is_theirs(make, rollout, wrap, ring):
    """Rows of the block had been handed to wrappers, which then saw them change."""
    ours = rollout(make(lambda: wrap(BindingEnv(length=9)), ring=ring), steps=25)
    theirs = rollout(SyncVectorEnv([lambda: wrap(BindingEnv(length=9))] * 4), steps=25)
    for (obs, *rest), (expected, *others) in zip(ours, theirs, strict=True):
        for key, value in expected.items():
            np.testing.assert_array_equal(obs[key], value)
        for mine, other in zip(rest[:-1], others[:-1], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_an_end_inside_a_chunk_delivers_the_frame_that_wrappers_show(make):
    env = make(lambda: inverted(CountingEnv(length=3)), autoreset="disabled")
    env.reset(seed=1)
    obs, *_, info = env.step_chunk(np.zeros((4, 8, 2), np.float32))
    by_chunk = obs["pixels/front"].copy()
    assert info["frame_valid"].all()
    env.reset(seed=1)
    for _ in range(3):
        obs, *_ = env.step(np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(by_chunk, obs["pixels/front"])


def test_wrappers_that_hand_on_observations_cost_no_copy():
    class Doubled(gymnasium.ActionWrapper):
        def action(self, action):
            return 2 * action

    class Halved(gymnasium.RewardWrapper):
        def reward(self, reward):
            return reward / 2

    class Watched(gymnasium.Wrapper):
        def step(self, action):
            return super().step(action)

    env = BindingEnv()
    for wrap in (OrderEnforcing, RecordEpisodeStatistics, Doubled, Halved, gymnasium.Wrapper):
        assert binder(TimeLimit(wrap(env), 5)) == env.bind
        assert source(wrap(env), "frames_enabled") is env
    for wrap in (change, inverted, Watched):
        assert binder(wrap(env)) is None
        assert source(TimeLimit(wrap(env), 5), "frames_enabled") is None
    assert expert_of(Halved(env)) == env.expert_action
    assert expert_of(Doubled(env)) is None, "its actions would be doubled once more"
