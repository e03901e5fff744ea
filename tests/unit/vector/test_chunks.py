from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from polyarm import InvalidCall
from polyarm.testing import BindingEnv, CountingEnv, DictActionEnv, NoisyEnv

K = 8


def zeros(chunk=K, num_envs=4):
    return np.zeros((num_envs, chunk, 2), np.float32)


def actions_for(env, steps, seed=0):
    """``(N, steps, …)`` random actions."""
    env.action_space.seed(seed)
    return np.stack([env.action_space.sample() for _ in range(steps)], axis=1)


@pytest.mark.parametrize(
    "task", [partial(NoisyEnv, end_probability=0.0), "gym/CartPole-v1", "gym/Pendulum-v1"]
)
def test_a_chunk_equals_single_steps_bit_for_bit(make, make_any, task):
    chunked, single = make(task), make_any(task)
    actions = actions_for(single, K)
    for env in (chunked, single):
        env.reset(seed=3)
    each = [single.step(actions[:, k]) for k in range(K)]
    obs, rewards, terminated, truncated, info = chunked.step_chunk(actions)
    assert not terminated.any()
    assert not truncated.any()
    assert info["steps"].tolist() == [K] * 4
    np.testing.assert_array_equal(rewards, np.stack([step[1] for step in each], axis=1))
    np.testing.assert_array_equal(obs, each[-1][0])


def test_episodes_in_chunks_equal_episodes_in_steps(make):
    """Every slot is followed through its ends: a chunk stops there, a single step does not."""
    env = make(partial(NoisyEnv, end_probability=0.15))
    alone = [NoisyEnv(end_probability=0.15) for _ in range(4)]
    env.reset(seed=3)
    for slot, reference in enumerate(alone):
        reference.reset(seed=3 + slot)
    ended = [False] * 4
    rng = np.random.default_rng(0)
    for _ in range(12):
        actions = rng.uniform(-1, 1, (4, K, 2)).astype(np.float32)
        obs, rewards, terminated, _, info = env.step_chunk(actions)
        for slot, reference in enumerate(alone):
            if ended[slot]:
                expected, _ = reference.reset()
                found = []
                ended[slot] = False
            else:
                found = []
                for action in actions[slot]:
                    expected, reward, ended[slot], _, _ = reference.step(action)
                    found.append(reward)
                    if ended[slot]:
                        break
            assert info["steps"][slot] == len(found)
            assert rewards[slot].tolist() == found + [0.0] * (K - len(found))
            assert terminated[slot] == ended[slot]
            np.testing.assert_array_equal(obs[slot], expected)


def test_next_step_the_call_after_an_end_only_resets(make_any):
    env = make_any(partial(CountingEnv, length=10, truncate=True))
    env.reset(seed=0)
    env.step_chunk(zeros())
    obs, rewards, terminated, truncated, info = env.step_chunk(zeros())
    assert rewards.tolist() == [[9, 10, 0, 0, 0, 0, 0, 0]] * 4
    assert info["steps"].tolist() == [2] * 4
    assert truncated.all()
    assert not terminated.any()
    assert obs["state"][:, 1].tolist() == [10] * 4
    obs, rewards, terminated, truncated, info = env.step_chunk(zeros())
    assert not rewards.any()
    assert not truncated.any()
    assert info["steps"].tolist() == [0] * 4
    assert obs["state"][:, 1].tolist() == [0] * 4
    assert env.step_chunk(zeros())[4]["steps"].tolist() == [K] * 4


@pytest.mark.parametrize("frames", ["last", "every"])
def test_same_step_the_remaining_actions_are_dropped(make, frames):
    env = make(partial(CountingEnv, length=3), autoreset="same_step", frames=frames)
    env.reset(seed=0)
    obs, rewards, terminated, _, info = env.step_chunk(zeros())
    last = {key: value[:, 2] if frames == "every" else value for key, value in obs.items()}
    assert rewards.tolist() == [[1, 2, 3, 0, 0, 0, 0, 0]] * 4
    assert info["steps"].tolist() == [3] * 4
    assert terminated.all()
    assert last["state"].tolist() == [[slot + 1, 0, 0, 0] for slot in range(4)]
    for slot, final in enumerate(info["final_obs"]):
        assert final["state"].tolist() == [slot, 3, 0, 0]
        np.testing.assert_array_equal(final["pixels/front"], frame(slot, 3))
        np.testing.assert_array_equal(last["pixels/front"][slot], frame(slot + 1, 0))
    assert info["final_frame_valid"].all()
    assert info["final_info"]["step"].tolist() == [3] * 4
    assert info["step"].tolist() == [0] * 4


def test_disabled_a_chunk_for_an_ended_slot_is_refused(make):
    env = make(partial(CountingEnv, length=3), autoreset="disabled")
    env.reset(seed=0)
    _, _, terminated, _, info = env.step_chunk(zeros())
    assert terminated.all()
    assert info["steps"].tolist() == [3] * 4
    for send in (env.step_chunk, env.send):
        with pytest.raises(InvalidCall, match="autoreset is disabled"):
            send(zeros())
    env.reset(options={"reset_mask": np.array([True, False, True, True])})
    with pytest.raises(InvalidCall, match=r"slots \[1\]"):
        env.step_chunk(zeros())
    env.reset(options={"reset_mask": np.array([False, True, False, False])})
    assert env.step_chunk(zeros(2))[4]["steps"].tolist() == [2] * 4


def test_slots_end_their_chunks_each_at_its_own_step(make):
    env = make([partial(CountingEnv, length=n) for n in (2, 5, 8, 20)])
    env.reset(seed=0)
    obs, rewards, terminated, _, info = env.step_chunk(zeros())
    assert info["steps"].tolist() == [2, 5, 8, 8]
    assert terminated.tolist() == [True, True, True, False]
    assert (rewards > 0).sum(axis=1).tolist() == [2, 5, 8, 8]
    assert info["frame_valid"].all()
    for slot in range(4):
        np.testing.assert_array_equal(
            obs["pixels/front"][slot], frame(slot, int(info["steps"][slot]))
        )


def test_chunks_of_discrete_actions(make_any):
    env = make_any("gym/CartPole-v1")
    env.reset(seed=0)
    obs, rewards, *_ = env.step_chunk(np.tile([0, 1], (4, 3)))
    assert rewards.shape == (4, 6)
    assert obs.shape == (4, 4)


def test_chunks_of_nested_actions(make):
    env = make(DictActionEnv, frames="every")
    env.reset(seed=0)
    env.action_space.seed(1)
    samples = [env.action_space.sample() for _ in range(3)]
    chunk = _stack(samples)
    obs, rewards, *_ = env.step_chunk(chunk)
    assert rewards.shape == (4, 3)
    for path in [("mode",), ("tools",), ("buttons",), ("arm", "delta"), ("arm", "gripper")]:
        found, sent = obs["echo"], chunk
        for key in path:
            found, sent = found[key], sent[key]
        np.testing.assert_array_equal(found, sent)
    assert obs["step"].tolist() == [[1, 2, 3]] * 4


def _stack(samples):
    if isinstance(samples[0], dict):
        return {key: _stack([sample[key] for sample in samples]) for key in samples[0]}
    return np.stack(samples, axis=1)


@pytest.mark.parametrize("frames", ["last", "every"])
def test_chunks_may_grow_and_shrink(make, frames):
    env = make(partial(CountingEnv, length=200), frames=frames)
    env.reset(seed=0)
    count = 0
    for chunk in (1, 3, 2, 8, 5, 30, 1):
        obs, rewards, _, _, info = env.step_chunk(zeros(chunk))
        expected = list(range(count + 1, count + chunk + 1))
        count += chunk
        assert rewards.tolist() == [expected] * 4
        assert info["steps"].tolist() == [chunk] * 4
        steps = obs["state"][..., 1]
        assert steps.tolist() == [expected if frames == "every" else count] * 4
        obs, reward, *_ = env.step(zeros(1)[:, 0])
        count += 1
        assert reward.tolist() == [count] * 4
        assert obs["state"][:, 1].tolist() == [count] * 4
    obs, _ = env.reset(seed=7)
    assert obs["state"][:, :2].tolist() == [[7, 0], [8, 0], [9, 0], [10, 0]]


# Frames.


def frame(origin, step, camera="front", size=8):
    env = CountingEnv(length=100, cameras=(camera,), image_size=(size, size))
    env.reset(seed=origin)
    for _ in range(step):
        env.step(np.zeros(2, np.float32))
    return env.terminal_frame()[f"pixels/{camera}"]


@pytest.mark.parametrize("env_class", [CountingEnv, BindingEnv])
def test_every_step_delivers_its_frame(make, env_class):
    env = make(partial(env_class, length=3), frames="every")
    obs, info = env.reset(seed=0)
    assert obs["pixels/front"].shape == (4, 8, 8, 3)
    obs, _, _, _, info = env.step_chunk(zeros(5))
    assert obs["pixels/front"].shape == (4, 5, 8, 8, 3)
    assert info["frame_valid"].tolist() == [[True] * 3 + [False] * 2] * 4
    for slot in range(4):
        for k in range(3):
            np.testing.assert_array_equal(obs["pixels/front"][slot, k], frame(slot, k + 1))
    assert not obs["pixels/front"][:, 3:].any()
    assert not obs["state"][:, 3:].any()
    obs, _, _, _, info = env.step_chunk(zeros(5))
    assert info["frame_valid"].tolist() == [[True] + [False] * 4] * 4
    np.testing.assert_array_equal(obs["pixels/front"][1, 0], frame(2, 0))


@pytest.mark.parametrize("env_class", [CountingEnv, BindingEnv])
def test_an_episode_that_ends_inside_a_chunk_delivers_its_terminal_frame(make, env_class):
    env = make(partial(env_class, length=5))
    env.reset(seed=0)
    obs, _, terminated, _, info = env.step_chunk(zeros())
    assert terminated.all()
    assert info["frame_valid"].all()
    for slot in range(4):
        np.testing.assert_array_equal(obs["pixels/front"][slot], frame(slot, 5))
        assert obs["state"][slot, 1] == 5


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_an_env_without_a_terminal_frame_delivers_black_and_says_so(make, autoreset):
    class BlindEnv(CountingEnv):
        def terminal_frame(self):
            return None

    env = make(partial(BlindEnv, length=5), autoreset=autoreset)
    obs, info = env.reset(seed=0)
    assert info["frame_valid"].all()
    obs, _, terminated, _, info = env.step_chunk(zeros())
    assert terminated.all()
    if autoreset == "same_step":
        assert not info["final_frame_valid"].any()
        assert not any(final["pixels/front"].any() for final in info["final_obs"])
        assert info["frame_valid"].all()
    else:
        assert not info["frame_valid"].any()
        assert not obs["pixels/front"].any()
        assert obs["state"][:, 1].tolist() == [5] * 4
        _, _, _, _, info = env.step_chunk(zeros())
    assert info["frame_valid"].all()
    obs, _, _, _, info = env.step_chunk(zeros(4))
    assert info["frame_valid"].all()
    np.testing.assert_array_equal(obs["pixels/front"][0], frame(1, 4))


def test_a_frame_is_rendered_only_where_it_is_delivered(make):
    lengths = [partial(CountingEnv, length=10)] * 4
    for frames, expected in [
        ("last", 1 + 1 + 1 + 1 + 1),
        ("every", 1 + 8 + 2 + 1 + 1),
        ("none", 0),
    ]:
        env = make(lengths, frames=frames)
        env.reset(seed=0)
        env.step_chunk(zeros())  # eight steps
        env.step_chunk(zeros())  # two steps to the end
        env.step_chunk(zeros())  # the reset
        env.step(zeros(1)[:, 0])
        assert env.get_attr("frames_rendered") == (expected,) * 4


def test_without_frames_there_are_no_frame_keys(make_any):
    env = make_any("toy/count-10", cameras=("front", "wrist"), image_size=(4, 4), frames="none")
    assert set(env.single_observation_space) == {"state"}
    obs, _ = env.reset(seed=0)
    assert set(obs) == {"state"}
    obs, *_ = env.step_chunk(zeros())
    assert set(obs) == {"state"}
    assert obs["state"][:, 1].tolist() == [K] * 4


def test_frames_on_demand_are_those_of_every_step(make_any):
    """Over many episodes: pixels delivered by chunks are those of the every-step env."""
    options = {"cameras": ("front", "wrist"), "image_size": (5, 3), "num_workers": 2}
    last = make_any("toy/count-10", frames="last", **options)
    every = make_any("toy/count-10", frames="every", **options)
    rng = np.random.default_rng(0)
    first, second = last.reset(seed=0)[0], every.reset(seed=0)[0]
    for chunk in (8, 8, 3, 4, 1, 8, 8, 2, 5, 5, 5):
        for key, value in first.items():
            np.testing.assert_array_equal(value, second[key])
        actions = rng.uniform(-1, 1, (4, chunk, 2)).astype(np.float32)
        first, rewards, _, _, info = last.step_chunk(actions)
        whole, expected, *_ = every.step_chunk(actions)
        at = np.maximum(info["steps"] - 1, 0)
        second = {key: value[np.arange(4), at] for key, value in whole.items()}
        np.testing.assert_array_equal(rewards, expected)
        assert info["frame_valid"].all()
