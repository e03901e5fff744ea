"""How env-steps/s grow with workers, where the time goes, and what larger hosts would reach.

Meta-World reach, eight actions per call, 1 … cores workers with 1 and 4 envs each: from state, and
with one 256×256 frame at each chunk's end. The headline, ``efficiency_<envs>``, is our rate divided
by that of one bare loop per core over Meta-World's own env, at the same time in independent
processes. Our suite's env makes the same steps in less time, so ``efficiency_<envs>_own_env`` and
the rest of the study compare with bare loops over that one: what the engine loses. AsyncVectorEnv
runs beside, and so does a lockstep without any engine: an eventfd per core and a pipe, nothing
else. A model (host_model.py) is fitted to the measurements; fitted to the smaller ones alone, it is
tested on the largest.

The figures come first, then the rest; stderr has every result as it comes, and SIGTERM ends the
study with what is known by then.

    python benchmarks/scaling.py                 a few minutes
    python benchmarks/scaling.py --quick         fewer and shorter
    python benchmarks/scaling.py --part state    where nothing can render
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import measure
import numpy as np
import scaling_report
from chunk_costs import ChunkCosts, Engine, profile
from efficiency import (
    CHUNK,
    BareLoops,
    Lockstep,
    our_stepper,
    own_env,
    peer_stepper,
    plain_env,
    random_actions,
)
from gymnasium.vector import AsyncVectorEnv
from metaworld_envs import OPTIONS, TASK, PlainEnv, suite_env
from processes import descendants, gpu_memory_mib
from scaling_report import episode_calls, ladder, name

import polyarm
from polyarm.display import select
from polyarm.vector.host import cores

CAMERA = "corner2"
FULL = 4
"""Envs per worker that keep a lockstep's workers busy."""
MANY = 16


class OutOfTime(SystemExit):
    """Somebody wants the study to end; processes that were forked from it end without a word."""


@dataclass(slots=True)
class Study:
    """What all parts share.

    Attributes:
        seconds: Per contender and round, at least.
        rounds: How often every contender runs.
        quick: Whether to leave out what is not needed for the figures and the model.
        stack: What is to be closed.
        figures: What is known so far.
    """

    seconds: float
    rounds: int
    quick: bool
    stack: ExitStack
    figures: dict[str, Any]

    def interleave(self, runs: dict[str, Callable[[], float]]) -> measure.Rounds:
        """Run the contenders; what they reach is known at once."""
        results: measure.Rounds = {key: [] for key in runs}
        rates = self.figures.setdefault("env_steps_per_s", {})

        def run(key: str) -> float:
            results[key].append(runs[key]())
            rates[key] = statistics.median(results[key])
            tell(f"{key}: {results[key][-1]:,.0f} env-steps/s")
            return results[key][-1]

        measure.interleave({key: partial(run, key) for key in runs}, self.rounds)
        return results

    def engine(self, workers: int, num_envs: int, cameras: tuple[str, ...] = ()) -> Engine:
        """Start a vector env, and take note of what that takes."""
        others = descendants(os.getpid())
        gpu_mib = gpu_memory_mib() if cameras else 0
        began = time.perf_counter()
        envs = self.stack.enter_context(
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

    def bare_loops(self, env: Callable[[int], Any], cameras: tuple[str, ...] = ()) -> BareLoops:
        """As many as cores."""
        bare = BareLoops(cores(), env, cameras)
        self.stack.callback(bare.close)
        return bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("state", "frames"), action="append", help="default: all")
    parser.add_argument("--seconds", type=float, help="per contender and round, at least")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="gymnasium")
    signal.signal(signal.SIGTERM, out_of_time)
    with ExitStack() as stack:
        study = Study(
            seconds=options.seconds or (0.5 if options.quick else 1.2),
            rounds=options.rounds or (3 if options.quick else 5),
            quick=options.quick,
            stack=stack,
            figures={"benchmark": "scaling", "chunk": CHUNK, "complete": False},
        )
        try:
            run_parts(study, options.part or ("state", "frames"))
            study.figures["complete"] = True
        except OutOfTime:
            tell("out of time")
        finish(study)


def out_of_time(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise OutOfTime


def run_parts(study: Study, parts: Sequence[str]) -> None:
    if "state" in parts:
        with mock.patch.dict(os.environ, MUJOCO_GL="disable"):  # no window library
            state_study(study)
        study.stack.close()
    if "frames" in parts:
        screen = select("auto", frames=True)
        own: dict[str, Any] = {"renderer": screen.description}
        study.figures["frames"] = own
        with mock.patch.dict(os.environ, screen.env):
            frames_study(replace(study, rounds=min(3, study.rounds), figures=own))


def finish(study: Study) -> None:
    load = measure.LOAD_BEFORE
    if load > cores() / 4:
        print(f"the machine was busy (load {load:.1f}): trust no wall time, nor the model of them")
    facts = {
        "rounds": study.rounds,
        "seconds": study.seconds,
        "physical_cores": scaling_report.physical_cores(),
    }
    measure.print_json({**study.figures, **facts})


def state_study(study: Study) -> None:
    most, full, seconds = cores(), FULL * cores(), study.seconds
    metaworld, bare = study.bare_loops(plain_env), study.bare_loops(own_env)
    engines = {name(most, number): study.engine(most, number) for number in (full, most)}
    runs: dict[str, Callable[[], float]] = {
        f"metaworld_{most}": partial(metaworld.rate, seconds),
        f"bare_{most}": partial(bare.rate, seconds),
    }
    for key, one in engines.items():
        runs[key] = partial(our_rate, one.envs, CHUNK, seconds)
    scaling_report.headline(study.interleave(runs), study.figures)

    for workers, num_envs in shapes(quick=study.quick):
        key = name(workers, num_envs)
        engines[key] = engines.get(key) or study.engine(workers, num_envs)
    alone = study.engine(full, full)
    runs = {f"bare_{number}": partial(bare.rate, seconds, number) for number in ladder()}
    for key, one in engines.items():
        runs[key] = partial(our_rate, one.envs, CHUNK, seconds)
    runs["worker_per_env"] = partial(our_rate, alone.envs, CHUNK, seconds)
    busiest = engines[name(most, full)].envs
    runs["single_steps"] = partial(our_rate, busiest, 1, seconds)
    runs["first_ready"] = partial(first_ready_rate, busiest, seconds)
    for num_envs in (most, full):
        lockstep = Lockstep(num_envs, most, CHUNK)
        study.stack.callback(lockstep.close)
        runs[f"without_engine_{num_envs}"] = partial(episode_rate, lockstep.step, CHUNK, seconds)
    for num_envs in (most,) if study.quick else (most, full):
        runs[f"async_{num_envs}"] = partial(measure.rate, peer(study.stack, num_envs), seconds)
    costs = profiles(engines, seconds, episode_calls(CHUNK))
    scaling_report.where_time_goes(costs, bare.step_cpu_s[cores()], study.figures)
    results = study.interleave(runs)
    scaling_report.sweep(results, costs, study.figures)
    scaling_report.model(results, costs, {**engines, "worker_per_env": alone}, study.figures)


def frames_study(study: Study) -> None:
    workers = [1, cores()] if study.quick else ladder()
    bare = study.bare_loops(rendering_env, (CAMERA,))
    engines = {name(w, w): study.engine(w, w, (CAMERA,)) for w in workers}
    runs: dict[str, Callable[[], float]] = {}
    for number, (key, one) in zip(workers, engines.items(), strict=True):
        step = our_stepper(one.envs, random_actions(number), CHUNK)
        runs[f"bare_{number}"] = partial(bare.rate, study.seconds, number)
        runs[key] = partial(measure.rate, step, study.seconds)
    results = study.interleave(runs)
    costs = profiles(engines, study.seconds, 1)
    scaling_report.where_time_goes(costs, bare.step_cpu_s[cores()], study.figures)
    scaling_report.frames(results, costs, engines, study.figures)


def rendering_env(_: int) -> Any:
    return suite_env((CAMERA,))


def shapes(*, quick: bool) -> list[tuple[int, int]]:
    """Workers and envs of the study, all with as many envs in each worker."""
    each = [(number, number * FULL) for number in ladder()]
    alone = [(number, number) for number in ladder() if not quick or number >= cores() // 2]
    return each + alone + ([] if quick else [(cores(), cores() * MANY)])


def peer(stack: ExitStack, num_envs: int) -> Callable[[], int]:
    envs = AsyncVectorEnv([PlainEnv(seed) for seed in range(num_envs)], context="spawn")
    stack.callback(envs.close, terminate=True)  # a signal may have ended its workers before
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
        found[key] = profile(one, step, seconds, calls)
        tell(str(found[key]))
    return found


def tell(line: str) -> None:
    """Say how far the study is, apart from its results."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
