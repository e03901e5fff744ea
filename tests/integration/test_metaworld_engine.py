"""Meta-World through the vector engine: the same bits however it is run."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import polyarm

TASK = "metaworld/drawer-open-v3"
NUM_ENVS = 8
STEPS = 48


def actions(num_envs=NUM_ENVS, steps=STEPS):
    rng = np.random.default_rng(7)
    return rng.uniform(-1, 1, (steps, num_envs, 4)).astype(np.float32)


def roll(envs, chunk, steps=STEPS):
    """States at every ``chunk``-th step, all rewards, and the task's own infos."""
    obs, _ = envs.reset(seed=3)
    states, rewards, infos = [obs["state"].copy()], [], []
    plan = actions(envs.num_envs, steps)
    for first in range(0, steps, chunk):
        batch = plan[first : first + chunk].swapaxes(0, 1)
        obs, reward, _, _, info = envs.step_chunk(batch) if chunk > 1 else envs.step(batch[:, 0])
        states.append(obs["state"].copy())
        rewards.append(reward.reshape(envs.num_envs, -1))
        infos.append(info["obj_to_target"].copy())
    return np.array(states), np.concatenate(rewards, axis=1), np.array(infos)


@pytest.fixture(scope="module")
def reference():
    with polyarm.make_vec(TASK, num_envs=NUM_ENVS, num_workers=0) as envs:
        return roll(envs, 1)


@pytest.mark.parametrize("chunk", [1, 8])
@pytest.mark.parametrize(
    ("num_workers", "start"),
    [(0, "auto"), (1, "built"), (2, "built"), (8, "built"), (8, "imports"), (2, "fresh")],
)
def test_trajectories_do_not_depend_on_workers_chunks_or_start(
    reference, num_workers, start, chunk
):
    with polyarm.make_vec(TASK, num_envs=NUM_ENVS, num_workers=num_workers, start=start) as envs:
        states, rewards, infos = roll(envs, chunk)
    np.testing.assert_array_equal(states, reference[0][::chunk])
    np.testing.assert_array_equal(rewards, reference[1])
    np.testing.assert_array_equal(infos, reference[2][chunk - 1 :: chunk])


def test_a_restarted_env_plays_the_same_episode(reference):
    with polyarm.make_vec(TASK, num_envs=NUM_ENVS) as envs:
        envs.reset()
        envs.step(actions()[0])
        os.kill(envs.worker_pids[2], signal.SIGKILL)
        *_, info = envs.step(actions()[1])
        while "error" not in info:
            *_, info = envs.step(actions()[1])
        states, rewards, _ = roll(envs, 1)
    np.testing.assert_array_equal(states, reference[0])
    np.testing.assert_array_equal(rewards, reference[1])


def test_frames_on_demand_are_those_of_every_step_and_change_no_physics(reference):
    frames = {}
    for mode in ("last", "every"):
        with polyarm.make_vec(
            TASK, num_envs=2, cameras=("corner2", "gripperPOV"), image_size=(48, 64), frames=mode
        ) as envs:
            envs.reset(options={"episodes": [3 * 2**32, 3 * 2**32 + 1]})
            seen = []
            for first in range(0, 16, 4):
                batch = actions()[first : first + 4, :2].swapaxes(0, 1)
                obs, _, _, _, info = envs.step_chunk(batch)
                assert info["frame_valid"].all()
                seen.append({key: np.array(value) for key, value in obs.items()})
            frames[mode] = seen
    for place, (last, every) in enumerate(zip(frames["last"], frames["every"], strict=True)):
        for key in ("pixels/corner2", "pixels/gripperPOV", "state"):
            np.testing.assert_array_equal(last[key], every[key][:, -1], err_msg=key)
        np.testing.assert_array_equal(last["state"], reference[0][4 * (place + 1), :2])
        assert last["pixels/corner2"].std() > 10  # a picture, not a blank


def test_an_episode_that_ends_inside_a_chunk_delivers_its_last_frame():
    options = {"cameras": ("corner",), "image_size": (48, 48), "max_steps": 6}
    delivered = {}
    for mode in ("last", "every"):
        with polyarm.make_vec(TASK, num_envs=1, frames=mode, **options) as envs:
            envs.reset(seed=0)
            obs, _, _, truncated, info = envs.step_chunk(actions(1)[:8].swapaxes(0, 1))
            assert truncated.all()
            assert info["steps"].tolist() == [6]
            frame = obs["pixels/corner"]
            delivered[mode] = np.array(frame[:, 5] if mode == "every" else frame)
    np.testing.assert_array_equal(delivered["last"], delivered["every"])


def test_tasks_share_a_batch_and_each_plays_as_it_does_alone():
    tasks = ["metaworld/reach-v3", "metaworld/push-v3", "metaworld/drawer-open-v3"]
    with polyarm.make_vec(tasks, num_envs=3) as envs:
        assert envs.tasks == tuple(tasks)
        mixed, _, _ = roll(envs, 8, 16)
    for slot, task in enumerate(tasks):
        with polyarm.make_vec(task, num_envs=3, num_workers=0) as envs:
            alone, _, _ = roll(envs, 8, 16)
        np.testing.assert_array_equal(mixed[:, slot], alone[:, slot])
