"""Gymnasium's own vector wrappers around our env, against the same wrapper around theirs."""

from __future__ import annotations

import copy
import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from polyarm.testing import CountingEnv, NoisyEnv

MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}
OURS = {"steps", "frame_valid", "final_frame_valid", "_final_frame_valid"}
CARTPOLE = partial(gymnasium.make, "CartPole-v1")
PENDULUM = partial(gymnasium.make, "Pendulum-v1", max_episode_steps=20)
CAMERA = partial(CountingEnv, length=6)

WRAPPERS = {
    "RecordEpisodeStatistics": (CARTPOLE, wrappers.RecordEpisodeStatistics),
    "NormalizeObservation": (CARTPOLE, wrappers.NormalizeObservation),
    "NormalizeReward": (PENDULUM, wrappers.NormalizeReward),
    "ClipReward": (PENDULUM, lambda env: wrappers.ClipReward(env, -1, 0)),
    "TransformReward": (PENDULUM, lambda env: wrappers.TransformReward(env, lambda r: r * 2)),
    "ClipAction": (PENDULUM, wrappers.ClipAction),
    "RescaleAction": (PENDULUM, lambda env: wrappers.RescaleAction(env, -1, 1)),
    "TransformObservation": (
        CARTPOLE,
        lambda env: wrappers.TransformObservation(env, lambda obs: obs * 2),
    ),
    "VectorizeTransformObservation": (
        CARTPOLE,
        lambda env: wrappers.VectorizeTransformObservation(
            env,
            gymnasium.wrappers.TransformObservation,
            func=lambda x: x + 1,
            observation_space=None,
        ),
    ),
    "FlattenObservation": (CAMERA, wrappers.FlattenObservation),
    "FilterObservation": (CAMERA, lambda env: wrappers.FilterObservation(env, ["state"])),
    "DtypeObservation": (CARTPOLE, lambda env: wrappers.DtypeObservation(env, np.float64)),
    "ReshapeObservation": (CARTPOLE, lambda env: wrappers.ReshapeObservation(env, (2, 2))),
}


class ReferenceEnv(SyncVectorEnv):
    """Leaves the caller's options alone; else its wrappers never see which slots are reset."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options and dict(options))


def run(env, steps=60):
    """Everything delivered; where nobody else resets, slots are reset as their episodes end."""
    env.action_space.seed(0)
    *parts, info = env.reset(seed=0)
    delivered = [copy.deepcopy((*parts, _plain(info)))]
    for _ in range(steps):
        *parts, info = env.step(env.action_space.sample())
        delivered.append(copy.deepcopy((*parts, _plain(info))))
        ended = parts[2] | parts[3]
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            *parts, info = env.reset(options={"reset_mask": ended})
            delivered.append(copy.deepcopy((*parts, _plain(info))))
    return delivered


def _plain(info):
    """Infos without our own, and without wall-clock times."""
    plain = {key: value for key, value in info.items() if key not in OURS}
    if "episode" in plain:
        plain["episode"] = {k: v for k, v in plain["episode"].items() if k not in ("t", "_t")}
    return plain


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("name", list(WRAPPERS))
def test_a_wrapper_around_our_env_is_the_wrapper_around_gymnasiums(make_any, name, mode):
    factory, wrap = WRAPPERS[name]
    theirs = ReferenceEnv([factory] * 4, autoreset_mode=MODES[mode])
    in_place = name == "VectorizeTransformObservation"  # it writes into what it is given
    ours = make_any(factory, autoreset=mode, infos="full", copy=in_place)
    try:
        expected_env = wrap(theirs)
    except ValueError as refused:
        assert mode != "next_step"
        with pytest.raises(ValueError, match=re.escape(str(refused))):
            wrap(ours)
        return
    found, expected = run(wrap(ours)), run(expected_env)
    for step, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert data_equivalence(left, right, exact=True), f"step {step}"


def test_wrappers_stack_over_workers(make):
    env = make(NoisyEnv)
    stacked = wrappers.NormalizeReward(
        wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(env))
    )
    stacked.reset(seed=0)
    episodes = 0
    for _ in range(60):
        obs, rewards, _, _, info = stacked.step(stacked.action_space.sample())
        assert obs.shape == (4, 4)
        assert rewards.shape == (4,)
        episodes += int(info.get("_episode", np.zeros(4)).sum())
    assert episodes > 5
    assert stacked.num_envs == 4
    assert stacked.unwrapped is env


def test_a_wrapper_leaves_the_block_alone(make_any):
    env = make_any("gym/CartPole-v1")
    wrapped = wrappers.NormalizeObservation(env)
    wrapped.reset(seed=0)
    raw = np.array(env.history()["obs"])
    wrapped.observations(env.history()["obs"][0])
    np.testing.assert_array_equal(env.history()["obs"], raw)


def test_infos_become_a_list(make):
    env = wrappers.DictInfoToList(make(CAMERA))
    _, infos = env.reset(seed=0)
    assert [info["seed"] for info in infos] == [0, 1, 2, 3]
    for _ in range(6):
        *_, infos = env.step(np.zeros((4, 2), np.float32))
    assert [info["is_success"] for info in infos] == [True] * 4
    assert [info["steps"] for info in infos] == [1] * 4


def test_infos_with_final_observations_become_a_list(make_any):
    env = wrappers.DictInfoToList(make_any(partial(CountingEnv, length=2), autoreset="same_step"))
    env.reset(seed=0)
    for _ in range(2):
        *_, infos = env.step(np.zeros((4, 2), np.float32))
    assert [info["final_obs"]["state"][1] for info in infos] == [2] * 4
    assert [info["final_info"]["step"] for info in infos] == [2] * 4


def test_observations_become_tensors(make_any):
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    pytest.importorskip("array_api_compat", reason="needs pip install array-api-compat")
    from gymnasium.wrappers.vector import NumpyToTorch

    env = NumpyToTorch(make_any(CAMERA))
    obs, _ = env.reset(seed=0)
    assert isinstance(obs["pixels/front"], torch.Tensor)
    obs, rewards, *_ = env.step(torch.zeros((4, 2)))
    assert obs["state"][:, 1].tolist() == [1] * 4
    assert isinstance(rewards, torch.Tensor)


def test_gymnasiums_video_recorder_works(make_any, tmp_path):
    pytest.importorskip("moviepy", reason="needs moviepy: pip install moviepy")
    folder = str(tmp_path / "videos")
    env = wrappers.RecordVideo(make_any(CAMERA), folder, video_aspect_ratio=(1, 1))
    env.reset(seed=0)
    for _ in range(8):
        env.step(np.zeros((4, 2), np.float32))
    env.close()
    assert list((tmp_path / "videos").glob("*.mp4"))
