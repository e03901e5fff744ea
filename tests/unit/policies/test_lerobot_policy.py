"""LeRobot's policies in our runner give what LeRobot gives an episode alone."""

import numpy as np
import pytest
from lerobot_models import (
    act_policy,
    diffusion_policy,
    episode,
    processors,
    run_rows,
    upstream_actions,
)

from polyarm.policies.lerobot import LeRobotPolicy


def wrapped(policy):
    before, after = processors(policy)
    return LeRobotPolicy(policy, preprocessor=before, postprocessor=after)


def one_by_one(ready):
    return [[row] for row in ready]


@pytest.mark.parametrize(
    "options",
    [{}, {"n_action_steps": 1, "temporal_ensemble_coeff": 0.1}],
    ids=["queue", "ensemble"],
)
def test_act_gives_each_episode_what_lerobot_gives_it_alone(options):
    policy = act_policy(**options)
    rows = [episode(index, steps=8) for index in range(3)]
    expected = [upstream_actions(policy, processors(policy), row) for row in rows]
    ours = run_rows(wrapped(policy), rows, one_by_one)
    np.testing.assert_array_equal(ours, expected)
    assert np.ptp(ours[0], axis=0).min() > 1e-4, "the actions say nothing"
    together = run_rows(wrapped(policy), rows)
    np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"noise_scheduler_type": "DDIM"}, {"n_obs_steps": 1}],
    ids=["ddpm", "ddim", "no history"],
)
def test_diffusion_gives_each_episode_what_lerobot_gives_it_alone(options):
    policy = diffusion_policy(**options)
    rows = [episode(index, steps=8) for index in range(3)]
    expected = [upstream_actions(policy, processors(policy), row) for row in rows]
    ours = run_rows(wrapped(policy), rows, one_by_one)
    np.testing.assert_array_equal(ours, expected)
    together = run_rows(wrapped(policy), rows)
    np.testing.assert_allclose(together, expected, rtol=1e-3, atol=1e-4)
    assert np.abs(np.subtract(ours[0], ours[1])).max() > 1e-2
