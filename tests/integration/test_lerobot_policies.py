"""Real LeRobot policies on real simulators, against LeRobot's own rollout of one env."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from lerobot.envs import configs
from lerobot.envs.factory import make_env_pre_post_processors
from lerobot.scripts.lerobot_eval import rollout
from lerobot_models import ACTION, IMAGE, STATE, act_policy, processors

import polyarm
from polyarm import registry
from polyarm.contracts import EnvSpec, stack_leaves
from polyarm.policies import loading
from polyarm.policies.lerobot import lerobot_policy
from polyarm.policies.lerobot_observations import to_lerobot
from polyarm.recording.trajectory import load_trajectory

pytestmark = [
    pytest.mark.simulator,
    pytest.mark.frames,
    pytest.mark.usefixtures("one_torch_thread"),
]

TASKS = ["metaworld/reach-v3", "metaworld/push-v3"]
STEPS = 5


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """LeRobot leaves a file where temporary files are, whenever it reads a configuration."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class LeRobotEnv(gymnasium.Env):
    """One of our envs as LeRobot's rollout wants it; a seed is the number of an episode."""

    metadata = {"render_fps": 80}

    def __init__(self, spec):
        suite = registry.load(spec.suite)
        self._spec = suite.check(spec)
        self._env = suite.make(self._spec)
        suite.attach_display(self._env)
        self.task = self.task_description = self._env.instruction
        self._max_episode_steps = self._env.max_steps
        self.action_space = self._env.action_space
        self.observation_space = gymnasium.spaces.Dict(
            _spaces(self._shown(self._env.observation_space.sample()))
        )

    def _shown(self, obs):
        shown = to_lerobot(stack_leaves([obs]), self._spec.suite)
        return _first(shown)

    def reset(self, *, seed=None, options=None):
        obs, info = self._env.reset(options={"episode": seed or 0})
        return self._shown(obs), info

    def step(self, action):
        obs, *rest = self._env.step(action)
        return self._shown(obs), *rest

    def close(self):
        self._env.close()


def _first(tree):
    return (
        {name: _first(each) for name, each in tree.items()} if isinstance(tree, dict) else tree[0]
    )


def _spaces(tree):
    if isinstance(tree, dict):
        return gymnasium.spaces.Dict({name: _spaces(each) for name, each in tree.items()})
    low, high = (0, 255) if tree.dtype == np.uint8 else (-np.inf, np.inf)
    return gymnasium.spaces.Box(low, high, tree.shape, tree.dtype)


def lerobots_rollout(policy, spec, index, env_config):
    """What LeRobot's own loop executes in one env."""
    around = make_env_pre_post_processors(env_config, policy.config)
    envs = SyncVectorEnv([lambda: LeRobotEnv(spec)])
    try:
        found = rollout(envs, policy, *around, *processors(policy), seeds=[index])
    finally:
        envs.close()
    return found["action"][0].numpy()


def save(policy, folder):
    for part in (policy, *processors(policy)):
        part.save_pretrained(folder)
    return f"lerobot:{folder}"


def executed(results, out):
    return {
        episode.key: load_trajectory(out / episode.trajectory)["actions"]
        for episode in results.episodes
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"n_action_steps": 1, "temporal_ensemble_coeff": 0.1}],
    ids=["queue", "ensembling"],
)
def test_tasks_in_one_batch_get_the_actions_of_lerobots_own_rollouts(
    options, tmp_path, monkeypatch
):
    policy = act_policy(**options)
    name = save(policy, tmp_path / "checkpoint")
    loaded = []
    monkeypatch.setattr(
        loading, "lerobot_policy", lambda name: loaded.append(lerobot_policy(name)) or loaded[-1]
    )
    shared = {"cameras": ("corner2",), "image_size": (64, 64), "save_trajectories": True}
    shared["suite_options"] = (f"max_steps={STEPS}",)
    exact, mixed = (
        executed(
            polyarm.evaluate(name, TASKS, episodes=1, num_envs=2, out=out, **shared, **batches), out
        )
        for out, batches in ((tmp_path / "a", {"max_batch": 1}), (tmp_path / "b", {}))
    )
    assert len(exact) == len(mixed) == 2
    assert len(loaded) == 2, "one set of weights per run, however many tasks"
    for key in exact:
        spec = EnvSpec(key.suite, key.task, ("corner2",), (64, 64), options={"max_steps": STEPS})
        expected = lerobots_rollout(policy, spec, key.index, configs.MetaworldEnv())
        assert expected.shape == (STEPS, 4)
        np.testing.assert_array_equal(exact[key], expected)
        # In larger batches PyTorch may sum in another order.
        np.testing.assert_allclose(mixed[key], expected, rtol=1e-3, atol=1e-4)
    first, second = exact.values()
    assert np.abs(first - second).max() > 1e-3, "all episodes are alike"


def test_libero_is_seen_through_lerobots_own_processor(tmp_path):
    features = {
        "observation.state": replace(STATE, shape=(8,)),
        "observation.images.image": IMAGE,
        "observation.images.image2": IMAGE,
    }
    arms = {"action": replace(ACTION, shape=(7,))}
    policy = act_policy(input_features=features, output_features=arms)
    name, out = save(policy, tmp_path / "checkpoint"), tmp_path / "run"
    cameras = ("agentview", "robot0_eye_in_hand")
    options = {"protocol": "lerobot", "max_steps": STEPS}
    results = polyarm.evaluate(
        name, "libero/libero_spatial/0", episodes=1, num_envs=1, num_workers=0, out=out,
        cameras=cameras, image_size=(64, 64), save_trajectories=True, suite_options=options,
    )  # fmt: skip
    ((key, ours),) = executed(results, out).items()
    spec = EnvSpec(key.suite, key.task, cameras, (64, 64), options=options)
    expected = lerobots_rollout(policy, spec, key.index, configs.LiberoEnv())
    np.testing.assert_array_equal(ours, expected)
    assert expected.shape == (STEPS, 7)
