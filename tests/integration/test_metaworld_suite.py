"""Meta-World behind the suite: Meta-World's own bits, from the episode's index alone."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from typing import Any

import metaworld.env_dict
import mujoco
import numpy as np
import pytest
from metaworld.policies import ENV_POLICY_MAP
from metaworld.types import Task

from polyarm.contracts import STREAM, EnvSpec, SuiteEnv
from polyarm.errors import InvalidCall
from polyarm.suites.metaworld import CAMERAS, CORNER2_POSITION, MetaWorld

pytestmark = pytest.mark.simulator

SUITE = MetaWorld()
CLASSES = metaworld.env_dict.ALL_V3_ENVIRONMENTS
ACTIONS = np.random.default_rng(0).uniform(-1, 1, (80, 4)).astype(np.float32)
SIDE = 48


def make(task: str, *cameras: str, **options: Any) -> Any:
    spec = EnvSpec("metaworld", task, cameras, (SIDE, SIDE), options)
    return SUITE.make(SUITE.check(spec))


def physics(sim: Any) -> dict[str, Any]:
    """Everything that MuJoCo integrates, warm start included."""
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(sim.model, kind))
    mujoco.mj_getState(sim.model, sim.data, state, kind)
    return {"qpos": sim.data.qpos.copy(), "qvel": sim.data.qvel.copy(), "all": state}


def play(env: Any, episode: int, num_steps: int) -> list[Any]:
    obs, info = env.reset(options={"episode": episode})
    record: list[Any] = [(obs, info, physics(env._sim))]
    for action in ACTIONS[:num_steps]:
        record.append((*env.step(action), physics(env._sim)))
    return record


def play_upstream(task: str, rand_vec: Any, num_steps: int) -> list[Any]:
    """The same episode in a new env of Meta-World's own, used as its documentation shows."""
    env = CLASSES[task]()
    data = {"env_cls": CLASSES[task], "rand_vec": rand_vec, "partially_observable": False}
    env.set_task(Task(env_name=task, data=pickle.dumps(data)))
    record: list[Any] = [(env.reset()[0], physics(env))]
    for action in ACTIONS[:num_steps]:
        obs, reward, _, _, info = env.step(action)
        record.append((obs, reward, info, physics(env)))
    return record


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.array_equal(left, right))


def model_arrays(model: Any) -> dict[str, Any]:
    fields = ((name, getattr(model, name)) for name in dir(model) if not name.startswith("_"))
    return {name: value.copy() for name, value in fields if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("task", sorted(CLASSES))
def test_an_episode_is_meta_worlds_own_whatever_ran_before_it(task: str) -> None:
    env = make(task, terminate_on_success=False)
    as_built = model_arrays(env._sim.model)
    fresh = play(env, episode=3, num_steps=20)
    rand_vec = env._sim._last_rand_vec.copy()
    upstream = play_upstream(task, rand_vec, num_steps=20)

    play(env, episode=7, num_steps=30)
    for _ in range(30):
        env.step(env.expert_action())
    assert not np.array_equal(env._sim._last_rand_vec, rand_vec)
    again = play(env, episode=3, num_steps=20)

    assert same(again, fresh)
    for ours, (obs, *outcome, state) in zip(fresh, upstream, strict=True):
        assert same(ours[0], {"state": obs.astype(np.float32)})
        assert same(ours[-1], state)
        if outcome:
            reward, info = outcome
            assert ours[1] == reward
            assert same({**ours[4], "is_success": None}, {**info, "is_success": None})
    changed = {
        name
        for name, value in model_arrays(env._sim.model).items()
        if not np.array_equal(value, as_built[name], equal_nan=value.dtype.kind == "f")
    }
    assert changed <= {"body_pos", "site_pos"}


@pytest.mark.parametrize("task", sorted(CLASSES))
def test_a_lean_step_has_the_bits_of_meta_worlds_own(task: str) -> None:
    lean, own = (make(task, terminate_on_success=False, max_steps=150) for _ in range(2))
    for env in (lean, own):
        env.reset(options={"episode": 5})
    wild = np.random.default_rng(1).uniform(-2, 2, (150, 4)).astype(np.float32)
    for step, noise in enumerate(wild):
        # The expert touches and moves things; what is out of range is clipped.
        action = noise if step % 8 == 7 else lean.expert_action()
        _, reward, _, truncated, info = lean.step(action)
        obs, own_reward, _, own_truncated, own_info = own._sim.step(action)
        assert same(lean._last_obs, obs)
        assert same(lean._sim._prev_obs, own._sim._prev_obs)
        assert (reward, truncated) == (own_reward, own_truncated)
        assert same({**info, "is_success": None}, {**own_info, "is_success": None})
        assert same(physics(lean._sim), physics(own._sim))
    assert truncated
    with pytest.raises(ValueError, match="reset"):
        lean.step(wild[0])


@pytest.mark.parametrize("task", ["push-v3", "push-back-v3", "push-wall-v3", "box-close-v3"])
def test_goals_that_hang_on_physics_or_are_drawn_again_are_meta_worlds_too(task: str) -> None:
    env = make(task)
    for episode in range(8):
        (obs, _, state), *_ = play(env, episode, num_steps=0)
        [(upstream_obs, upstream_state)] = play_upstream(task, env._sim._last_rand_vec, 0)
        assert same(obs["state"], upstream_obs.astype(np.float32))
        assert same(state, upstream_state)


def test_an_episode_is_the_same_in_another_process() -> None:
    script = (
        "import hashlib, sys\n"
        "from polyarm.contracts import EnvSpec\n"
        "from polyarm.suites.metaworld import MetaWorld\n"
        "env = MetaWorld().make(EnvSpec('metaworld', 'push-v3'))\n"
        "env.reset(seed=11)\n"
        "state = env.reset(options={'episode': 2**62 + 1})[0]['state']\n"
        "sys.stdout.write(hashlib.sha256(state).hexdigest())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    state = make("push-v3").reset(options={"episode": 2**62 + 1})[0]["state"]
    assert child.stdout == hashlib.sha256(state).hexdigest()


def test_a_seed_starts_a_stream_and_a_plain_reset_goes_on_in_it() -> None:
    env = make("reach-v3")
    first, _ = env.reset(seed=5)
    second, _ = env.reset()
    assert same(env.reset(options={"episode": 5 * STREAM})[0], first)
    assert same(env.reset(seed=9, options={"episode": 5 * STREAM + 1})[0], second)
    assert same(make("reach-v3").reset()[0], env.reset(options={"episode": 0})[0])
    with pytest.raises(InvalidCall, match="-1"):
        env.reset(options={"episode": -1})


def test_the_lists_are_those_of_the_installed_meta_world() -> None:
    names = [task.name.removeprefix("metaworld/") for task in SUITE.tasks()]
    assert sorted(names) == sorted(CLASSES) == sorted(ENV_POLICY_MAP)
    sets = SUITE.sets()
    for size in (10, 25, 50):
        assert sets[f"mt{size}"] == tuple(getattr(metaworld.env_dict, f"MT{size}_V3"))
    for size in (10, 25, 45):
        for split in ("train", "test"):
            members = getattr(metaworld.env_dict, f"ML{size}_V3")[split]
            assert sets[f"ml{size}-{split}"] == tuple(members)
    by_difficulty = [sets[name] for name in ("easy", "medium", "hard", "very_hard")]
    assert sorted(sum(by_difficulty, ())) == sorted(names)
    model = make("reach-v3")._sim.model
    assert tuple(model.camera(index).name for index in range(model.ncam)) == CAMERAS


def test_the_env_is_what_the_suite_describes() -> None:
    env = make("reach-v3")
    description = SUITE.describe(EnvSpec("metaworld", "reach-v3"))
    assert isinstance(env, SuiteEnv)
    assert env.observation_space == description.observation_space
    assert env.action_space == description.action_space
    assert env.reset()[0] in env.observation_space
    obs, reward, _, _, info = env.step(env.action_space.sample())
    assert obs in env.observation_space
    assert type(reward) is float
    assert type(info["is_success"]) is bool
    assert {type(value) for value in info.values()} == {float, bool}


def test_a_hidden_goal_is_zero_and_the_expert_still_reaches_it() -> None:
    visible, hidden = make("reach-v3"), make("reach-v3", goal="hidden")
    seen, unseen = (env.reset(options={"episode": 4})[0]["state"] for env in (visible, hidden))
    assert same(seen[:36], unseen[:36])
    assert seen[36:].all()
    assert not unseen[36:].any()
    for _ in range(150):
        action = hidden.expert_action()
        assert same(action, visible.expert_action())
        visible.step(action)
        _, _, terminated, _, info = hidden.step(action)
        if terminated:
            break
    assert terminated
    assert info["is_success"]


def test_success_is_kept_or_that_of_the_last_step() -> None:
    kept = make("reach-v3", terminate_on_success=False, max_steps=150)
    last = make("reach-v3", success="last", max_steps=150)
    away = np.array([0, -1, 1, 0], np.float32)
    outcomes = []
    for env in (kept, last):
        env.reset(options={"episode": 0})
        flags = []
        for step in range(150):
            action = away if any(flags) else env.expert_action()
            *_, terminated, truncated, info = env.step(action)
            flags.append(info["is_success"])
            assert not terminated
            assert truncated == (step == 149)
        outcomes.append((any(flags), flags[-1]))
    assert outcomes == [(True, True), (True, False)]


def test_the_reward_function_of_version_1_is_an_option() -> None:
    rewards = []
    for version in ("v1", "v2"):
        env = make("reach-v3", reward_version=version)
        env.reset(options={"episode": 0})
        rewards.append(env.step(ACTIONS[0])[1])
    assert rewards[0] != rewards[1]


def upstream_frames(task: str, camera: str, rand_vec: Any, num_steps: int) -> list[Any]:
    """Meta-World renders in whichever GL context is current, so all its frames come first."""
    env = CLASSES[task](render_mode="rgb_array", camera_name=camera, width=SIDE, height=SIDE)
    env.model.cam_pos[env.model.camera("corner2").id] = CORNER2_POSITION
    data = {"env_cls": CLASSES[task], "rand_vec": rand_vec, "partially_observable": False}
    env.set_task(Task(env_name=task, data=pickle.dumps(data)))
    env.reset()
    frames = [env.render()]
    for action in ACTIONS[:num_steps]:
        env.step(action)
        frames.append(env.render())
    env.close()
    return frames


@pytest.mark.frames
@pytest.mark.parametrize("task", ["drawer-open-v3", "push-v3"])
def test_frames_are_meta_worlds_own(task: str) -> None:
    env = make(task, "corner", "corner2")
    env.frames_enabled = False
    env.reset(options={"episode": 3})
    expected = {
        camera: upstream_frames(task, camera, env._sim._last_rand_vec, num_steps=3)
        for camera in ("corner", "corner2")
    }
    SUITE.attach_display(env)
    SUITE.attach_display(env)
    env.frames_enabled = True
    for step, (obs, *_) in enumerate(play(env, episode=3, num_steps=3)):
        assert same(obs["pixels/corner"], expected["corner"][step])
        assert same(obs["pixels/corner2"], expected["corner2"][step][::-1, ::-1])
    env.close()


@pytest.mark.frames
def test_closing_an_env_leaves_the_frames_of_its_neighbours_alone() -> None:
    first, second = make("drawer-open-v3", "corner"), make("drawer-open-v3", "corner")
    expected = first.reset(options={"episode": 0})[0]
    second.reset(options={"episode": 0})
    first.render()
    second.close()
    assert same(first.reset(options={"episode": 0})[0], expected)
    first.close()


@pytest.mark.frames
@pytest.mark.parametrize("task", ["reach-v3", "drawer-open-v3"])
def test_asking_for_frames_less_often_changes_nothing_else(task: str) -> None:
    always, seldom, never = (make(task, "corner2", "gripperPOV") for _ in range(3))
    seldom.frames_enabled = never.frames_enabled = False
    envs = (always, seldom, never)
    observations = [env.reset(options={"episode": 1})[0] for env in envs]
    for step, action in enumerate(ACTIONS[:12]):
        seldom.frames_enabled = step % 4 == 3
        results = [env.step(action) for env in envs]
        observations = [result[0] for result in results]
        assert same(*(result[1:] for result in results[:2]))
        assert same(*(observation["state"] for observation in observations[:2]))
        if seldom.frames_enabled:
            assert same(observations[1], observations[0])
        else:
            assert observations[1].keys() == {"state"}
    assert same(physics(always._sim), physics(seldom._sim))
    assert same(physics(always._sim), physics(never._sim))
    assert never.frame_seconds == 0.0 < seldom.frame_seconds
    frames = {key: value for key, value in observations[0].items() if key != "state"}
    assert same(never.terminal_frame(), frames)
    assert same(never.render(), frames["pixels/corner2"])
    for env in envs:
        env.close()


@pytest.mark.frames
def test_rendering_without_cameras_leaves_no_trace() -> None:
    shown, hidden = make("reach-v3"), make("reach-v3")
    for env in (shown, hidden):
        SUITE.attach_display(env)
        env.reset(options={"episode": 2})
    for action in ACTIONS[:5]:
        assert shown.render().shape == (SIDE, SIDE, 3)
        assert same(shown.step(action), hidden.step(action))
    assert same(physics(shown._sim), physics(hidden._sim))
    assert shown.terminal_frame() is None
    assert hidden._renderer is None
    shown.close()


@pytest.mark.frames
def test_cheaper_rendering_changes_pixels_and_nothing_else() -> None:
    fine, coarse = make("reach-v3", "corner2"), make("reach-v3", "corner2", shadow_size=256, msaa=0)
    fine_obs, coarse_obs = (env.reset(options={"episode": 2})[0] for env in (fine, coarse))
    assert same(fine_obs["state"], coarse_obs["state"])
    assert not same(fine_obs["pixels/corner2"], coarse_obs["pixels/corner2"])
    for env in (fine, coarse):
        env.close()


@pytest.mark.frames
def test_observations_are_written_into_bound_buffers() -> None:
    bound, plain = make("reach-v3", "corner2"), make("reach-v3", "corner2")
    space = plain.observation_space
    buffers = {key: np.zeros(space[key].shape, space[key].dtype) for key in space}
    bound.bind(buffers)
    obs, _ = bound.reset(options={"episode": 6})
    assert all(obs[key] is buffers[key] for key in space)
    assert same(obs, plain.reset(options={"episode": 6})[0])
    for env in (bound, plain):
        env.close()


def test_rendering_in_a_process_without_a_display_says_what_to_ask_for() -> None:
    script = (
        "from polyarm.contracts import EnvSpec\n"
        "from polyarm.errors import DisplayError\n"
        "from polyarm.suites.metaworld import MetaWorld\n"
        "env = MetaWorld().make(EnvSpec('metaworld', 'reach-v3'))\n"
        "env.reset()\n"
        "try: env.render()\n"
        "except DisplayError as error: assert \"display='egl'\" in str(error)\n"
        "else: raise AssertionError('rendered')\n"
    )
    variables = {**os.environ, "MUJOCO_GL": "disable"}
    subprocess.run([sys.executable, "-c", script], env=variables, timeout=60, check=True)
