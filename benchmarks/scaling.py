"""How env-steps/s grow with workers, where the time goes, and what larger hosts would reach.

Meta-World reach, eight actions per call, 1 … cores workers with 1 and 4 envs each: from state, and
with one 256×256 frame at each chunk's end. Bare loops over one env, as many as workers at the same
time in independent processes, are the limit; efficiency is our rate divided by that of one bare
loop per core. AsyncVectorEnv runs beside, and so does a lockstep without any engine: an eventfd per
core and a pipe, nothing else. A model (host_model.py) is fitted to the measurements; fitted to the
smaller ones alone, it is tested on the largest.

    python benchmarks/scaling.py                 a few minutes
    python benchmarks/scaling.py --quick         fewer and shorter, about a minute
    python benchmarks/scaling.py --part state    where nothing can render
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import measure
import numpy as np
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
from processes import descendants, gpu_memory_mib
from scaling_report import Engine, episode_calls, ladder, name

import polyarm
from polyarm.display import select
from polyarm.vector.host import cores

CAMERA = "corner2"
FULL = 4
"""Envs per worker that keep a lockstep's workers busy."""
MANY = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("state", "frames"), action="append", help="default: all")
    parser.add_argument("--seconds", type=float, help="per contender and round, at least")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.seconds = options.seconds or (0.5 if options.quick else 1.2)
    options.rounds = options.rounds or (2 if options.quick else 5)
    warnings.filterwarnings("ignore", module="gymnasium")
    figures: dict[str, Any] = {}
    if not options.part or "state" in options.part:
        with mock.patch.dict(os.environ, MUJOCO_GL="disable"):  # no window library
            figures |= state_study(options)
    if not options.part or "frames" in options.part:
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
    most, full, seconds = cores(), FULL * cores(), options.seconds
    with ExitStack() as stack:
        bare = BareLoops(most)
        stack.callback(bare.close)
        engines = {name(w, n): engine(stack, w, n) for w, n in shapes(quick=options.quick)}
        alone = engine(stack, full, full)
        busiest = engines[name(most, full)].envs
        runs: dict[str, Callable[[], float]] = {
            f"bare_{number}": partial(bare.rate, seconds, number) for number in ladder()
        }
        for key, one in engines.items():
            runs[key] = partial(our_rate, one.envs, CHUNK, seconds)
        runs["worker_per_env"] = partial(our_rate, alone.envs, CHUNK, seconds)
        runs["single_steps"] = partial(our_rate, busiest, 1, seconds)
        runs["first_ready"] = partial(first_ready_rate, busiest, seconds)
        for num_envs in (most, full):
            lockstep = Lockstep(num_envs, most, CHUNK)
            stack.callback(lockstep.close)
            step = partial(episode_rate, lockstep.step, CHUNK, seconds)
            runs[f"without_engine_{num_envs}"] = step
        for num_envs in (most,) if options.quick else (most, full):
            runs[f"async_{num_envs}"] = partial(measure.rate, peer(stack, num_envs), seconds)
        results = measure.interleave(told(runs), options.rounds)
        costs = profiles(engines, seconds, episode_calls(CHUNK))
        return scaling_report.state(results, costs, {**engines, "worker_per_env": alone})


def frames_study(options: argparse.Namespace) -> dict[str, Any]:
    workers = [1, cores()] if options.quick else ladder()
    with ExitStack() as stack:
        bare = BareLoops(cores(), (CAMERA,))
        stack.callback(bare.close)
        engines = {name(w, w): engine(stack, w, w, (CAMERA,)) for w in workers}
        runs: dict[str, Callable[[], float]] = {}
        for number, (key, one) in zip(workers, engines.items(), strict=True):
            step = our_stepper(one.envs, random_actions(number), CHUNK)
            runs[f"bare_{number}"] = partial(bare.rate, options.seconds, number)
            runs[key] = partial(measure.rate, step, options.seconds)
        results = measure.interleave(told(runs), min(3, options.rounds))
        costs = profiles(engines, options.seconds, 1)
        return scaling_report.frames(results, costs, engines)


def shapes(*, quick: bool) -> list[tuple[int, int]]:
    """Workers and envs of the study, all with as many envs in each worker."""
    each = [(number, number * FULL) for number in ladder()]
    alone = [(number, number) for number in ladder() if not quick or number >= cores() // 2]
    return each + alone + ([] if quick else [(cores(), cores() * MANY)])


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
    envs.reset()
    start_s = time.perf_counter() - began
    envs.step_chunk(random_actions(num_envs)[:CHUNK].swapaxes(0, 1))
    mine = tuple(set(descendants(os.getpid())).difference(others))
    gpu_mib = gpu_memory_mib() - gpu_mib if cameras else 0
    tell(f"{name(workers, num_envs)} started in {start_s:.2f} s")
    return Engine(envs, workers, start_s, mine, gpu_mib)


def peer(stack: ExitStack, num_envs: int) -> Callable[[], int]:
    envs = AsyncVectorEnv([PlainEnv(seed) for seed in range(num_envs)], context="spawn")
    stack.callback(envs.close)
    return peer_stepper(envs, random_actions(num_envs))


def our_rate(envs: polyarm.VectorEnv, chunk: int, seconds: float) -> float:
    return episode_rate(our_stepper(envs, random_actions(envs.num_envs), chunk), chunk, seconds)


def episode_rate(step: Callable[[], int], chunk: int, seconds: float) -> float:
    """Env-steps/s over whole episodes: a reset costs many steps, and all slots reset together."""
    calls = episode_calls(chunk)
    made, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        made += sum(step() for _ in range(calls))
    return made / spent


def first_ready_rate(envs: polyarm.VectorEnv, seconds: float) -> float:
    """Env-steps/s when slots go on as soon as they are ready, whoever else is."""
    actions = np.ascontiguousarray(random_actions(envs.num_envs)[:CHUNK].swapaxes(0, 1))
    envs.reset()
    envs.send(actions)
    made, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        ready = envs.recv()
        made += int(ready.info["steps"].sum())
        envs.send(actions[ready.slots], ready.slots)
    envs.recv(envs.num_envs)
    return made / spent


def profiles(engines: dict[str, Engine], seconds: float, calls: int) -> dict[str, ChunkCosts]:
    found = {}
    for key, one in engines.items():
        step = our_stepper(one.envs, random_actions(one.envs.num_envs), CHUNK)
        found[key] = profile(one.envs, step, one.workers, seconds, calls)
        tell(str(found[key]))
    return found


def told(runs: dict[str, Callable[[], float]]) -> dict[str, Callable[[], float]]:
    """The same runs, each of which says what it reached."""

    def run(key: str) -> float:
        rate = runs[key]()
        tell(f"{key}: {rate:,.0f} env-steps/s")
        return rate

    return {key: partial(run, key) for key in runs}


def tell(line: str) -> None:
    """Say how far the study is, apart from its results."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
