"""Policies that fail: the run ends with a message, the journal is intact, the run can go on."""

from __future__ import annotations

import logging
import signal
import time

import evaluation_faults as faults
import pytest

from polyarm.errors import PolicyError
from polyarm.rollout.evaluate import evaluate
from polyarm.rollout.evaluator import Evaluator
from polyarm.rollout.options import EvalOptions

pytestmark = pytest.mark.usefixtures("plan")

FAULTS = [
    ("raise", "FloatingPointError: the gambler is broke"),
    ("nan", "nan"),
    ("shape", "shape"),
    ("hang", "has not answered for 1 s"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_policy_that_fails_ends_the_run_which_goes_on_when_it_is_mended(
    tmp_path, plan, fault, message
):
    out = tmp_path / "out"
    options = {"episodes": 12, "num_envs": 2, "policy_timeout": "1s", "out": out}
    faults.plan(plan, policy=fault, policy_after=20)
    began = time.monotonic()
    with pytest.raises(PolicyError) as caught:
        evaluate(faults.Gambler(), faults.GAMBLE, **options)
    assert time.monotonic() - began < 30
    assert message in str(caught.value)
    assert f"callable/{faults.GAMBLE}#" in str(caught.value)
    assert "step" in str(caught.value)
    assert 0 < faults.lines(out) < 12
    faults.assert_each_once(out)
    assert not (out / ".rank0.lock").exists()

    refusal = faults.conflict(faults.OtherGambler(), faults.GAMBLE, **options)
    assert "policy: 'another gambler' here, 'gambler' there" in refusal
    faults.plan(plan)
    policy = faults.Gambler()
    results = evaluate(policy, faults.GAMBLE, **options)
    faults.assert_each_once(out)
    assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, 12)


def test_the_command_says_which_episode_and_step_a_policy_failed_at(tmp_path, plan):
    faults.plan(plan, policy="nan", policy_after=4)
    out = tmp_path / "out"
    command = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--episodes", "3"]
    code, said = faults.run(out, *command, "--num-envs", "1")
    assert code == 2, said
    line = next(line for line in said.splitlines() if line.startswith("polyarm: "))
    assert "nan" in line
    lengths = [steps for _, steps, *_ in faults.undisturbed(faults.GAMBLE, 3).values()]
    decisions = [(index, at) for index, steps in enumerate(lengths) for at in range(0, steps, 3)]
    index, step = decisions[4]
    assert f"episode callable/{faults.GAMBLE}#{index}, step {step}" in line
    assert "Traceback" not in said


def test_a_policy_out_of_memory_gets_smaller_batches_and_the_scores_stay(plan, caplog):
    faults.plan(plan, policy="memory", step_s=0.005)
    policy = faults.Gambler()
    options = EvalOptions(episodes=16, num_envs=8)
    with (
        caplog.at_level(logging.WARNING, "polyarm"),
        Evaluator([faults.GAMBLE], options) as evaluator,
    ):
        results = evaluator.run({"": policy})
    too_large = [size for size in policy.batch_sizes if size > 1]
    halved = [f"with {size} rows; going on with {size // 2} at most" for size in too_large]
    said = [each.getMessage() for each in caplog.records if "GPU memory" in each.getMessage()]
    assert 1 <= len(said) == len(halved) <= 3
    assert all(part in line for part, line in zip(halved, said, strict=True))
    assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, 16)


def test_an_alarm_that_the_caller_has_set_is_still_set_afterwards():
    theirs = signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        evaluate(faults.Gambler(), faults.GAMBLE, episodes=4, num_envs=1, num_workers=0)
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *theirs)
    assert 50 < left_s <= 100


@pytest.mark.parametrize("method", ["begin", "end"])
def test_a_policy_that_fails_between_episodes_is_named_with_the_episode(monkeypatch, method):
    def fail(_, keys):
        if keys[0].index == 2:
            raise FloatingPointError("the gambler is lost")

    monkeypatch.setattr(faults.Gambler, method, fail, raising=False)
    said = rf"{method}\(\) raised FloatingPointError: the gambler is lost .*; episode callable/.*#2"
    with pytest.raises(PolicyError, match=said):
        evaluate(faults.Gambler(), faults.GAMBLE, episodes=4, num_envs=1, num_workers=0)


def test_a_policy_that_is_out_of_memory_for_a_single_row_fails(plan, monkeypatch):
    def act(batch):
        raise faults.OutOfMemoryError("CUDA out of memory")

    policy = faults.Gambler()
    monkeypatch.setattr(policy, "act", act)
    with pytest.raises(
        PolicyError, match=r"OutOfMemoryError: CUDA out of memory .*; episode .*#\d"
    ):
        evaluate(policy, faults.GAMBLE, episodes=4, num_envs=4)
