"""Simulators that fail during an evaluation: an episode is tried again, and given up alone."""

from __future__ import annotations

import json
import os
import random
import signal

import evaluation_faults as faults
import pytest

from polyarm import registry
from polyarm.errors import ForkServerDied
from polyarm.rollout.evaluate import evaluate
from polyarm.rollout.evaluator import Evaluator, Progress
from polyarm.rollout.options import EvalOptions

pytestmark = pytest.mark.usefixtures("plan")


@pytest.mark.parametrize("num_workers", [None, 2])
def test_workers_killed_now_and_then_change_no_score(plan, num_workers):
    faults.plan(plan, step_s=0.002)
    options = EvalOptions(episodes=40, num_envs=4, num_workers=num_workers, max_attempts=20)
    chance, killed = random.Random(0), []

    def kill_some(now: Progress) -> None:
        if now.last is not None and now.made % 4 == 1:
            killed.append(chance.choice(faults.named("polyarm-w")))
            os.kill(killed[-1], signal.SIGKILL)

    with Evaluator([faults.GAMBLE], options) as evaluator:
        results = evaluator.run({"": faults.Gambler()}, kill_some)
    assert len(killed) == 10
    assert max(each.attempts for each in results.episodes) > 1
    assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, 40)


def test_a_dead_fork_server_ends_the_run_and_the_same_call_goes_on(tmp_path, plan):
    faults.plan(plan, step_s=0.01)
    out = tmp_path / "out"
    options = EvalOptions(episodes=12, num_envs=2)

    def kill_server(now: Progress) -> None:
        if now.made == 3:
            os.kill(*faults.named("polyarm-server"), signal.SIGKILL)

    with Evaluator([faults.GAMBLE], options, out) as evaluator, pytest.raises(ForkServerDied):
        evaluator.run({"": faults.Gambler()}, kill_server)
    assert 3 <= faults.lines(out) < 12
    faults.plan(plan)
    results = evaluate(faults.Gambler(), faults.GAMBLE, episodes=12, num_envs=2, out=out)
    faults.assert_each_once(out)
    assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, 12)


@pytest.mark.parametrize(
    ("fault", "kind", "phase", "message"),
    [
        ("step:raise", "exception", "step", "the gamble is off"),
        ("reset:raise", "exception", "reset", "the gamble is off"),
        ("step:crash", "died", "step", "SIGSEGV"),
        ("step:hang", "hung", "step", ""),
        ("reset:hang", "hung", "reset", ""),
    ],
)
def test_an_episode_that_always_fails_is_an_error_and_the_others_are_unaffected(
    tmp_path, plan, fault, kind, phase, message
):
    faults.plan(plan, env={"2": fault})
    out = tmp_path / "out"
    limits = {"step_timeout": "0.5s", "reset_timeout": "0.5s"}
    results = evaluate(faults.Gambler(), faults.GAMBLE, episodes=6, num_envs=2, out=out, **limits)
    (bad,) = [each for each in results.episodes if each.outcome == "error"]
    assert (bad.key.index, bad.attempts, results.errors, results.missing) == (2, 3, 1, 0)
    expected = faults.undisturbed(faults.GAMBLE, 6)
    del expected[bad.key]
    assert faults.scores(results.episodes) == expected
    succeeded = sum(outcome == "success" for outcome, *_ in expected.values())
    assert results.success_rate == succeeded / 5
    in_file = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    (error,) = [line["error"] for line in in_file if line["outcome"] == "error"]
    assert (error["kind"], error["phase"]) == (kind, phase)
    assert error["message"]
    assert message in " ".join(error.values())


def test_more_errors_than_allowed_show_in_the_exit_code_and_can_be_retried(tmp_path, plan):
    out = tmp_path / "out"
    command = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--episodes", "6"]
    command += ["--num-envs", "2"]
    faults.plan(plan, env={"1": "step:raise", "4": "reset:raise"})
    code, said = faults.run(out, *command)
    assert code == 1, said
    assert "2 of 6 episodes ended as errors" in said
    assert "--retry-errors" in said
    faults.plan(plan)
    code, said = faults.run(out, *command, "--max-errors", "0.34")
    assert code == 0, said
    assert "2 of 6 episodes ended as errors" in said
    assert faults.lines(out) == 6, "errors are not tried again unasked"
    code, said = faults.run(out, *command, "--retry-errors")
    assert code == 0, said
    assert faults.lines(out) == 8
    assert faults.in_journal(out) == faults.undisturbed(faults.GAMBLE, 6)


@pytest.mark.parametrize(
    ("num_envs", "order"), [(1, ("3", "10", "50")), (1, ("3", "50", "10")), (2, ("3", "50", "10"))]
)
def test_a_task_that_cannot_be_built_is_given_up_and_all_other_tasks_run(
    monkeypatch, num_envs, order
):
    monkeypatch.setitem(registry._UNLISTED, "breaking", "evaluation_faults:BreakingSuite")
    tasks = [f"breaking/count-{length}" for length in order]
    results = evaluate("random", tasks, episodes=5, num_envs=num_envs)
    assert results.missing == 0
    outcomes = {(each.key.task, each.outcome) for each in results.episodes}
    assert outcomes == {("count-3", "success"), ("count-50", "success"), ("count-10", "error")}
    for each in results.episodes:
        if each.outcome == "error":
            assert each.error["phase"] == "build"
            assert "this task cannot be built" in each.error["message"]


def test_a_task_that_can_never_be_built_ends_the_run_with_a_message(tmp_path, monkeypatch, plan):
    code, said = faults.run(tmp_path / "out", "--policy", "random", "--task", "no_module:build")
    assert code == 2, said
    assert "no_module" in said
    assert "Traceback" not in said
