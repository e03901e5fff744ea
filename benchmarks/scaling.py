"""How env-steps/s grow with workers, where the time goes, and what larger hosts would reach.

Meta-World reach, eight actions per call, 1 … cores workers with 1 and 4 envs each: from state, and
with one 256×256 frame at each chunk's end. Bare loops over one env, as many as workers at the same
time in independent processes, are the limit; efficiency is our rate divided by that of one bare
loop per core. AsyncVectorEnv runs beside, and so does a lockstep without any engine: an eventfd per
core and a pipe, nothing else. A model (host_model.py) is fitted to the measurements; fitted to the
smaller ones alone, it is tested on the largest.

    python benchmarks/scaling.py               a few minutes
    python benchmarks/scaling.py --quick       less exact
    python benchmarks/scaling.py --no-frames   where nothing can render
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import measure
import scaling_report
from chunk_costs import ChunkCosts, profile
from efficiency import (
    CHUNK,
    BareLoops,
    Lockstep,
    our_stepper,
    peer_stepper,
    random_actions,
)
from gymnasium.vector import AsyncVectorEnv
from metaworld_envs import OPTIONS, TASK, PlainEnv
from processes import descendants, gpu_memory_mib, proportional_memory
from scaling_report import EPISODE_CALLS, Engine, ladder, name

import polyarm
from polyarm.display import select
from polyarm.vector.host import cores

CAMERA = "corner2"
FULL = 4
"""Envs per worker that keep a lockstep's workers busy."""
MANY = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.2, help="per contender and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds of half a second")
    parser.add_argument("--no-frames", dest="frames", action="store_false")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 0.5, 2
    warnings.filterwarnings("ignore", module="gymnasium")
    with mock.patch.dict(os.environ, MUJOCO_GL="disable"):  # nobody renders: no window library
        figures = state_study(options)
    if options.frames:
        screen = select("auto", frames=True)
        with mock.patch.dict(os.environ, screen.env):
            figures["frames"] = {**frames_study(options), "renderer": screen.description}
    measure.print_json(
        {
            "benchmark": "scaling",
            "chunk": CHUNK,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "physical_cores": scaling_report.physical_cores(),
            **figures,
        }
    )


def state_study(options: argparse.Namespace) -> dict[str, Any]:
    most = cores()
    with ExitStack() as stack:
        bare = BareLoops(most)
        stack.callback(bare.close)
        engines = {name(w, n): engine(stack, w, n) for w, n in shapes(ladder())}
        alone = engine(stack, FULL * most, FULL * most)
        ready = engine(stack, most, FULL * most)
        runs: dict[str, Callable[[], float]] = {
            f"bare_{number}": partial(bare.rate, options.seconds, number) for number in ladder()
        }
        for key, one in engines.items():
            runs[key] = partial(episode_rate, one.step, options.seconds)
        runs["worker_per_env"] = partial(episode_rate, alone.step, options.seconds)
        runs["first_ready"] = partial(first_ready_rate, ready.envs, options.seconds)
        for num_envs in (most, FULL * most):
            lockstep = Lockstep(num_envs, most, CHUNK)
            stack.callback(lockstep.close)
            runs[f"without_engine_{num_envs}"] = partial(
                episode_rate, lockstep.step, options.seconds
            )
            runs[f"async_{num_envs}"] = partial(
                measure.rate, peer(stack, num_envs), options.seconds
            )
        results = measure.interleave(runs, options.rounds)
        costs = profiles(engines, options.seconds, EPISODE_CALLS)
    return scaling_report.state(results, costs, {**engines, "worker_per_env": alone})


def frames_study(options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        bare = BareLoops(cores(), (CAMERA,))
        stack.callback(bare.close)
        engines = {name(w, w): engine(stack, w, w, (CAMERA,)) for w in ladder()}
        runs: dict[str, Callable[[], float]] = {}
        for number, (key, one) in zip(ladder(), engines.items(), strict=True):
            runs[f"bare_{number}"] = partial(bare.rate, options.seconds, number)
            runs[key] = partial(measure.rate, one.step, options.seconds)
        results = measure.interleave(runs, min(3, options.rounds))
        costs = profiles(engines, options.seconds, 1)
    return scaling_report.frames(results, costs, engines)


def shapes(workers: list[int]) -> list[tuple[int, int]]:
    """Workers and envs of the study."""
    each = [(number, number * share) for number in workers for share in (1, FULL)]
    return [*each, (workers[-1], workers[-1] * MANY)]


def engine(stack: ExitStack, workers: int, num_envs: int, cameras: tuple[str, ...] = ()) -> Engine:
    others = descendants(os.getpid())
    gpu_mib = gpu_memory_mib() if cameras else 0
    began = time.perf_counter()
    envs = stack.enter_context(
        polyarm.make_vec(
            f"metaworld/{TASK}",
            num_envs=num_envs,
            num_workers=workers,
            cameras=cameras,
            seed=0,
            **OPTIONS,
        )
    )
    step = our_stepper(envs, random_actions(num_envs), CHUNK)  # resets
    start_s = time.perf_counter() - began
    step()
    mine = set(descendants(os.getpid())).difference(others)
    pss_nbytes = proportional_memory(sorted(mine))
    gpu_mib = gpu_memory_mib() - gpu_mib if cameras else 0
    return Engine(envs, workers, step, start_s, pss_nbytes, gpu_mib)


def peer(stack: ExitStack, num_envs: int) -> Callable[[], int]:
    envs = AsyncVectorEnv([PlainEnv(seed) for seed in range(num_envs)], context="spawn")
    stack.callback(envs.close)
    return peer_stepper(envs, random_actions(num_envs))


def episode_rate(step: Callable[[], int], seconds: float) -> float:
    """Env-steps/s over whole episodes: a reset costs many steps, and all slots reset together."""
    step()
    made, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        made += sum(step() for _ in range(EPISODE_CALLS))
    return made / spent


def first_ready_rate(envs: polyarm.VectorEnv, seconds: float) -> float:
    """Env-steps/s when slots go on as soon as they are ready, whoever else is."""
    actions = random_actions(envs.num_envs)[:CHUNK].swapaxes(0, 1)
    envs.send(actions)
    made, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        ready = envs.recv()
        made += int(ready.info["steps"].sum())
        envs.send(actions[ready.slots], ready.slots)
    envs.recv(envs.num_envs)
    return made / spent


def profiles(engines: dict[str, Engine], seconds: float, calls: int) -> dict[str, ChunkCosts]:
    return {
        key: profile(one.envs, one.step, one.workers, seconds, calls)
        for key, one in engines.items()
    }


if __name__ == "__main__":
    main()
