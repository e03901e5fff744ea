"""How soon a slot delivers again after its worker was killed in mid-run: Meta-World reach.

The clock runs from SIGKILL to the observation of the slot's new episode, over the step that
reports the error and the one that resets. Against building and resetting one env in a process
that has already imported the simulator: our suite's env, the cheaper one, and Meta-World's own.

    python benchmarks/restart.py --rounds 10
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

import measure
import numpy as np
from metaworld_envs import OPTIONS, TASK, PlainEnv, suite_env

import polyarm

GIVE_UP_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    os.environ["MUJOCO_GL"] = "disable"  # nobody renders: no window library
    warnings.filterwarnings("ignore", module="gymnasium")
    logging.getLogger("polyarm").setLevel(logging.CRITICAL)  # kills are meant here
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    builder = context.Process(target=build_on_request, args=(theirs,), daemon=True)
    builder.start()
    pipe.recv()

    def built(who: str) -> float:
        pipe.send(who)
        seconds: float = pipe.recv()
        return seconds

    with polyarm.make_vec(
        f"metaworld/{TASK}", num_envs=options.num_envs, max_restarts=10**6, seed=0, **OPTIONS
    ) as envs:
        envs.reset()
        runs = {
            "restart": killer(envs),
            "build": lambda: built("suite"),
            "build_plain": lambda: built("plain"),
        }
        results = measure.interleave(runs, options.rounds)
    pipe.send(None)
    builder.join(10)
    report(results, options)


def build_on_request(pipe: Connection) -> None:
    makers: dict[str, Callable[[], object]] = {"suite": suite_env, "plain": PlainEnv(0)}
    for make in makers.values():
        make()
    pipe.send("imported")
    while (who := pipe.recv()) is not None:
        began = time.perf_counter()
        env = makers[who]()
        env.reset()  # type: ignore[attr-defined]
        pipe.send(time.perf_counter() - began)


def killer(envs: polyarm.VectorEnv) -> Callable[[], float]:
    """Seconds from killing a worker, another one each time, to its slot's next episode."""
    actions = np.random.default_rng(0).uniform(-1, 1, (envs.num_envs, 4)).astype(np.float32)
    victim = 0

    def kill_and_wait() -> float:
        nonlocal victim
        victim = (victim + 1) % envs.num_envs
        for _ in range(20):
            envs.step(actions)
        began = time.perf_counter()
        os.kill(envs.worker_pids[victim], signal.SIGKILL)
        errored = False
        while time.perf_counter() - began < GIVE_UP_S:
            *_, info = envs.step(actions)
            if "error" in info and info["_error"][victim]:
                errored = True
            elif errored and info["steps"][victim] == 0:
                return time.perf_counter() - began
        raise SystemExit(f"slot {victim} did not deliver again within {GIVE_UP_S:g} s")

    return kill_and_wait


def report(results: measure.Rounds, options: argparse.Namespace) -> None:
    seconds = measure.medians(results)
    figures = {
        "ratio_restart": measure.ratio(results, "build", "restart"),
        "ratio_restart_plain": measure.ratio(results, "build_plain", "restart"),
    }
    rows = [(name, f"{value * 1e3:,.1f} ms") for name, value in seconds.items()]
    rows += [(name, f"{value:.2f}x") for name, value in figures.items()]
    measure.print_table(f"restart, {options.num_envs} Meta-World envs", rows)
    measure.print_json(
        {
            "benchmark": "restart",
            "num_envs": options.num_envs,
            "rounds": options.rounds,
            **figures,
            "seconds": seconds,
        }
    )


if __name__ == "__main__":
    main()
