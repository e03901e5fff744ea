"""The examples run as they stand, and what they teach is right."""

from __future__ import annotations

import importlib.util
import math
import re
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

import polyarm

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_rloo.py"


@pytest.fixture(scope="module")
def rloo():
    spec = importlib.util.spec_from_file_location("finetune_rloo", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _one_thread():
    """As the example itself does; threads of tiny products mostly wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Aim(gymnasium.Env):
    """Succeeds if the first action is near the target, which the state shows; there is no hint."""

    observation_space = Dict({"state": Box(-1, 1, (2,), np.float32)})
    action_space = Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._target = self.np_random.uniform(-0.8, 0.8)
        return self._state(), {}

    def step(self, action):
        hit = abs(float(action[0]) - self._target) < 0.2
        return self._state(), 0.0, True, False, {"is_success": hit}

    def _state(self):
        return {"state": np.array([self._target, 1.0], np.float32)}


def aim_rates(rloo, algorithm="rloo"):
    """Success without noise on held-out episodes, before and after."""
    torch.manual_seed(0)
    actor = rloo.Actor(torch.tensor([[-0.8, 1.0], [0.8, 1.0]]), 1, std=0.3)
    options = rloo.Options(
        algorithm=algorithm, iterations=10, groups=16, learning_rate=3e-3, num_envs=16
    )
    with polyarm.make_vec(Aim, num_envs=16, num_workers=0, autoreset="disabled") as env:
        held_out = rloo.initial_states(env.tasks[0], 0, range(100))

        def rate():
            policy = actor.policy(noisy=False)
            groups = polyarm.collect(policy, held_out, group_size=1, env=env)
            return sum(group.successes for group in groups) / len(held_out)

        before = rate()
        rloo.finetune(actor, env, options)
        return before, rate()


@pytest.mark.parametrize("algorithm", ["rloo", "grpo"])
def test_a_policy_learns_to_aim_from_success_alone(rloo, algorithm):
    before, after = aim_rates(rloo, algorithm)
    assert before < 0.5
    assert after > 0.85


def test_with_its_advantages_turned_round_it_learns_nothing(rloo, monkeypatch):
    right = rloo.advantages
    monkeypatch.setattr(rloo, "advantages", lambda *given: -right(*given))
    before, after = aim_rates(rloo)
    assert after < before


def test_a_repeat_is_held_against_the_mean_of_the_others(rloo):
    successes = [1.0, 0.0, 0.0, 1.0, 0.0]
    found = rloo.advantages(torch.tensor(successes), "rloo").tolist()
    for place, success in enumerate(successes):
        others = successes[:place] + successes[place + 1 :]
        assert found[place] == pytest.approx(success - sum(others) / len(others))
    assert sum(found) == pytest.approx(0)


def test_grpo_divides_by_the_spread_of_the_group(rloo):
    successes = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
    found = rloo.advantages(torch.from_numpy(successes), "grpo").numpy()
    np.testing.assert_allclose(found, (successes - successes.mean()) / successes.std(ddof=1))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # at first it is the gradient of log-probability times advantage
        (1.0, -2.0, 2.0, 2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # far enough
        (0.5, -2.0, 1.6, 0.0),
        (0.5, 2.0, -1.0, -1.0),  # the wrong way: must come back
        (1.5, -2.0, 3.0, 3.0),
    ],
)
def test_a_decision_moves_by_its_advantage_until_it_has_moved_far(
    rloo, ratio, advantage, loss, slope
):
    log_prob = torch.tensor([math.log(ratio) - 3.0], requires_grad=True)
    found = rloo.clipped_loss(log_prob, torch.tensor([-3.0]), torch.tensor([advantage]), 0.2)
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert log_prob.grad.item() == pytest.approx(slope, rel=1e-5)


def test_every_decision_has_the_advantage_of_its_episode_and_its_own_probability(rloo):
    actor = rloo.Actor(torch.tensor([[-0.8, 1.0], [0.8, 1.0]]), 1, std=0.5)
    keys = rloo.initial_states("callable/Aim", 1, range(6))
    with polyarm.make_vec(Aim, num_envs=4, num_workers=0, autoreset="disabled") as env:
        accept = polyarm.is_informative
        found = polyarm.collect(
            actor.policy(noisy=True), keys, group_size=4, accept=accept, env=env
        )
        groups = list(found)
    states, actions, log_prob, advantage = rloo.decisions(groups, "rloo")
    assert len(groups) > 1
    assert len(states) == 4 * len(groups)
    hits = (actions[:, 0] - states[:, 0]).abs() < 0.2
    assert torch.equal(hits, advantage > 0)
    torch.testing.assert_close(actor.log_prob(states, actions).detach(), log_prob)


SHORT = {"task": "metaworld/reach-v3", "demos": 4, "iterations": 2, "groups": 2, "group_size": 3,
         "eval_episodes": 4, "max_steps": 60}  # fmt: skip


@pytest.mark.simulator
def test_the_whole_of_it_runs_and_depends_on_its_seed_alone(rloo, tmp_path, capsys):
    said = []
    for name, num_envs in (("a", 3), ("b", 5)):
        rloo.main(rloo.Options(**SHORT, num_envs=num_envs, out=tmp_path / name))
        said.append(re.sub(r"\(\d+\.\d s\)", "", capsys.readouterr().out))
    assert re.fullmatch(
        r"before: .*% of 4 succeed \(95% interval .*\)\n(update  \d: .* succeed .*\n){2}"
        r"after: .*% of 4 succeed .*\nA is before, B is after\. .* 4 paired episodes.*\n",
        said[0],
    )
    assert said[0] == said[1]
    weights = [torch.load(tmp_path / name) for name in ("a", "b")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.simulator
def test_ctrl_c_ends_it_without_a_trace():
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SHORT.items()]
    command = [sys.executable, str(EXAMPLE), *flags, "--iterations=1000", "--num-envs=2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as example:
        try:
            while not (line := example.stdout.readline()).startswith("update"):
                assert line, example.stderr.read()
            example.send_signal(signal.SIGINT)
            _, errors = example.communicate(timeout=60)
        finally:
            example.kill()  # nothing, if it has ended
    assert example.returncode == 130
    assert "Traceback" not in errors
