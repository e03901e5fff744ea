"""What the runner is worth: one queue of episodes against waves, overlap against alternation.

- lockstep: Meta-World's ten experts, state only, 16 envs, 20 episodes a task. The peer drives the
  same engine task by task in waves of 16, and steps slots that have succeeded on until the slowest
  has, as LeRobot does; its second wave of a task holds the 4 episodes that are left. Its envs are
  built beforehand, while our run pays for every switch of task. `lockstep_idle` lets slots that
  have succeeded idle instead.
- overlap: 200 steps an episode in chunks of 8, and a policy that sleeps 2 ms per observation, as a
  GPU would keep it waiting. The peer simulates all envs, then infers for all, in turn.
- overhead: the zero policy in chunks of 8 against the bare engine in lockstep.

    python benchmarks/evaluation.py --rounds 3
    python benchmarks/evaluation.py --expert-score     # 50 tasks × 10 episodes, and nothing else
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import measure
import numpy as np

import polyarm
from polyarm import registry
from polyarm.contracts import EpisodeKey
from polyarm.policies import ExpertPolicy, ZeroPolicy
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule
from polyarm.testing import SleepyPolicy

ENVS = 16
EPISODES = 20
EXPERT_STEPS = 16
CHUNK = 8
HORIZON = 200
TASKS = [f"metaworld/{task}" for _, task in registry.resolve("metaworld/mt10")]
REACH = "metaworld/reach-v3"
FIXED = {"terminate_on_success": False, "max_steps": HORIZON}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--expert-score", action="store_true", help="only score the 50 experts")
    options = parser.parse_args()
    if options.expert_score:
        score_experts()
        return
    with ExitStack() as stack:
        report(measure.interleave(contenders(stack), options.rounds), options)


def contenders(stack: ExitStack) -> dict[str, Callable[[], float]]:
    """One function per contender that does its whole job and returns its rate."""

    def make(tasks: Any, **kwargs: Any) -> polyarm.VectorEnv:
        envs = polyarm.make_vec(tasks, num_envs=ENVS, autoreset="disabled", **kwargs)
        return stack.enter_context(envs)

    queue, waves = make(TASKS), make(TASKS[0], terminate_on_success=False)
    fixed = make(REACH, **FIXED)
    space = fixed.single_action_space
    slow = SleepyPolicy(0.002, space.shape, CHUNK)
    return {
        "queue": lambda: run_queue(queue, ExpertPolicy(EXPERT_STEPS), mt10_keys()),
        "lockstep": lambda: run_waves(waves, step_on=True),
        "lockstep_idle": lambda: run_waves(waves, step_on=False),
        "overlap": lambda: run_queue(fixed, slow, reach_keys(), steps=True),
        "alternation": lambda: alternate(fixed, sleep_s=0.002),
        "zero_policy": lambda: run_queue(fixed, ZeroPolicy(space, CHUNK), reach_keys(), steps=True),
        "bare_engine": lambda: alternate(fixed, sleep_s=0.0),
    }


def mt10_keys() -> list[EpisodeKey]:
    return [
        EpisodeKey("metaworld", task.partition("/")[2], index)
        for task in TASKS
        for index in range(EPISODES)
    ]


def reach_keys() -> list[EpisodeKey]:
    return [EpisodeKey("metaworld", "reach-v3", index) for index in range(2 * ENVS)]


def run_queue(
    env: polyarm.VectorEnv, policy: Any, keys: list[EpisodeKey], *, steps: bool = False
) -> float:
    """Episodes, or env steps, per second of our runner."""
    began = time.perf_counter()
    runner = Runner(env, policy, Schedule(keys), RunnerOptions())
    results = [episode.result for episode in runner.episodes() if episode is not None]
    spent = time.perf_counter() - began
    assert len(results) == len(keys)
    assert all(result is not None and result.outcome != "error" for result in results)
    made = sum(result.steps for result in results if result is not None) if steps else len(keys)
    return made / spent


def run_waves(env: polyarm.VectorEnv, *, step_on: bool) -> float:
    """Episodes per second, task by task in waves; building envs is not counted."""
    spent = 0.0
    for task in TASKS:
        env.switch_task(range(ENVS), task)
        began = time.perf_counter()
        for first in range(0, EPISODES, ENVS):
            wave(env, list(range(first, min(first + ENVS, EPISODES))), step_on=step_on)
        spent += time.perf_counter() - began
    return len(TASKS) * EPISODES / spent


def wave(env: polyarm.VectorEnv, episodes: list[int], *, step_on: bool) -> None:
    playing = list(range(len(episodes)))
    env.send_reset(playing, options={"episodes": episodes})
    env.recv(len(playing))
    unfinished = set(playing)
    while unfinished:
        stepped = playing if step_on else sorted(unfinished)
        env.send_expert(EXPERT_STEPS, stepped)
        ready = env.recv(len(stepped))
        ended = ready.info["is_success"] | ready.terminated | ready.truncated
        unfinished -= set(ready.slots[ended].tolist())
        if (ready.terminated | ready.truncated).any():
            assert not unfinished  # all reach the horizon together
            return


def alternate(env: polyarm.VectorEnv, *, sleep_s: float) -> float:
    """Env steps per second of simulating all envs, then deciding for all."""
    actions = np.zeros((ENVS, CHUNK, *env.single_action_space.shape), np.float32)
    began = time.perf_counter()
    made = 0
    for first in (0, ENVS):
        env.reset(options={"episodes": list(range(first, first + ENVS))})
        for _ in range(HORIZON // CHUNK):
            if sleep_s:
                time.sleep(sleep_s * ENVS)
            *_, info = env.step_chunk(actions)
            made += int(info["steps"].sum())
    return made / (time.perf_counter() - began)


def report(results: measure.Rounds, options: argparse.Namespace) -> None:
    rates = measure.medians(results)
    overheads = [
        1e6 / ours - 1e6 / bare
        for ours, bare in zip(results["zero_policy"], results["bare_engine"], strict=True)
    ]
    figures = {
        "ratio_lockstep": measure.ratio(results, "queue", "lockstep"),
        "ratio_lockstep_idle": measure.ratio(results, "queue", "lockstep_idle"),
        "ratio_overlap": measure.ratio(results, "overlap", "alternation"),
        "overhead_us_per_env_step": float(np.median(overheads)),
    }
    rows = [(name, f"{value:,.1f} /s") for name, value in rates.items()]
    rows += [(name, f"{value:.2f}") for name, value in figures.items()]
    measure.print_table(f"evaluation, {ENVS} envs", rows)
    measure.print_json(
        {"benchmark": "evaluation", "rounds": options.rounds, **figures, "per_s": rates}
    )


def score_experts() -> None:
    tasks = [task.name for task in registry.load("metaworld").tasks()]
    results = polyarm.evaluate("expert", tasks, episodes=10, num_envs=8)
    rows = [(task.name, f"{task.rate.successes}/{task.rate.episodes}") for task in results.tasks]
    measure.print_table("experts", rows)
    measure.print_json(
        {
            "benchmark": "evaluation",
            "expert_score": results.success_rate,
            "episodes": len(results.episodes),
            "errors": results.errors,
            "seconds": results.wall["total"],
        }
    )


if __name__ == "__main__":
    main()
