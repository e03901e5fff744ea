"""One policy, the same episodes: our runner, LeRobot's surface and RIPT-VLA's agree on each."""

import numpy as np
import pytest
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import LiberoEnv
from lerobot.envs.factory import make_env_pre_post_processors
from lerobot_reacher import Reacher, no_processors

import polyarm
from polyarm.compat.lerobot import eval_policy_all, make_env
from polyarm.compat.ript import LiberoRunner
from polyarm.policies.lerobot import LeRobotPolicy
from polyarm.recording.trajectory import load_trajectory

pytestmark = [pytest.mark.simulator, pytest.mark.frames, pytest.mark.slow]

TASK = "libero/libero_spatial/0"
EPISODES = 3
SMALL = (32, 32)


class ByRote(Reacher):
    """Does what brought one episode to its end, whatever it sees: some others it fails."""

    def __init__(self, actions):
        self.actions = torch.from_numpy(actions)
        super().__init__(n_action_steps=len(actions))
        self.config.input_features = {"observation.state": PolicyFeature(FeatureType.STATE, (8,))}
        self.config.output_features = {"action": PolicyFeature(FeatureType.ACTION, (7,))}

    def predict_action_chunk(self, batch, **_):
        return self.actions.repeat(len(batch["observation.state"]), 1, 1)


@pytest.fixture(scope="module")
def actions(tmp_path_factory):
    """What the expert does in the first episode."""
    folder = tmp_path_factory.mktemp("expert")
    options = {"protocol": "lerobot", "save_trajectories": True}
    results = polyarm.evaluate("expert", TASK, episodes=1, num_envs=1, out=folder, **options)
    assert results.success_rate == 1
    return load_trajectory(folder / results.episodes[0].trajectory)["actions"].astype(np.float32)


def test_all_surfaces_agree_on_every_episode(actions):
    policy, horizon = ByRote(actions), len(actions)
    scored = polyarm.evaluate(
        LeRobotPolicy(policy),
        TASK,
        episodes=EPISODES,
        num_envs=2,
        protocol="lerobot",
        suite_options={"max_steps": horizon},
    )
    ours = [episode.outcome == "success" for episode in scored.episodes]
    assert ours == [True, True, False]

    height, width = SMALL
    size = {"observation_height": height, "observation_width": width}
    cfg = LiberoEnv(task="libero_spatial", task_ids=[0], episode_length=horizon, **size)
    around = dict(
        zip(
            ("env_preprocessor", "env_postprocessor"),
            make_env_pre_post_processors(cfg, policy.config),
            strict=True,
        )
    )
    told = eval_policy_all(
        make_env(cfg, n_envs=2),
        policy,
        **{**no_processors(), **around},
        n_episodes=EPISODES,
        start_seed=1000,
    )
    assert told["per_task"][0]["metrics"]["successes"] == ours

    runner = LiberoRunner(
        "libero_spatial", EPISODES, 2, horizon, protocol="lerobot", image_size=SMALL
    )
    with runner:
        rollouts = list(runner.run_policy_in_env(0, LeRobotPolicy(policy)))
    assert [success for success, _, _ in rollouts] == ours
