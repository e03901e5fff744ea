"""How much of the machine is left for the simulator: Meta-World reach without frames.

The baseline is as many bare loops over one of Meta-World's own envs as there are cores, at the same
time in independent processes: what a machine does with Meta-World when nobody waits for anybody.
Efficiency is our rate divided by theirs: with one worker per core, which suits cheap envs, and with
one per env, the default. AsyncVectorEnv with as many of Meta-World's own envs runs beside.

Our suite's env makes the same steps in less time (`suites/metaworld_step.py`), so part of that
figure is the env's, not the engine's. What the engine alone loses is told by the figures that end
in ``_own_env``: the same rates divided by those of bare loops over the suite's env. The smallest
lockstep there can be, one eventfd and one byte of a pipe per core and batch without any engine,
runs with that env too: what it loses, the machine takes. All play the same random actions, episodes
of 500 steps, resets included.

    python benchmarks/efficiency.py --num-envs 8 --seconds 2 --rounds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import measure
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from metaworld_envs import OPTIONS, TASK, PlainEnv, suite_env

import polyarm
from polyarm.vector.host import cores

CHUNK = 8
ACTIONS = 512


class BareLoops:
    """Processes with one env each, which they step when told to.

    Args:
        number: How many.
        env: Makes the env that loop i steps, given i.
        cameras: If the env has some, the last of every eight steps renders, as a chunk does.
    """

    def __init__(
        self,
        number: int,
        env: Callable[[int], gymnasium.Env[Any, Any]],
        cameras: tuple[str, ...] = (),
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for seed in range(number):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=bare_loop, args=(theirs, seed, env, cameras), daemon=True
            )
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()
        self.step_cpu_s: dict[int, float] = {}
        """CPU seconds per step when last measured, by how many ran."""

    def rate(self, seconds: float, number: int | None = None) -> float:
        """Steps per second of the first ``number`` of them together, or of all."""
        pipes = self._pipes[:number]
        for pipe in pipes:
            pipe.send(seconds)
        rates, cpu = zip(*(pipe.recv() for pipe in pipes), strict=True)
        self.step_cpu_s[len(pipes)] = sum(cpu) / len(pipes)
        return sum(rates)

    def close(self) -> None:
        for pipe in self._pipes:
            with suppress(BrokenPipeError):  # ended by the signal that ends this process
                pipe.send(None)
        for process in self._processes:
            process.join(10)


class Lockstep:
    """One process per core that steps its share of the envs whenever its eventfd is rung."""

    def __init__(self, num_envs: int, number: int, chunk: int = 1) -> None:
        self._share = num_envs // number
        self._steps = self._share * number * chunk
        self._bells = [os.eventfd(0) for _ in range(number)]
        self._answers, answer = os.pipe()
        context = multiprocessing.get_context("fork")
        self._processes = [
            context.Process(
                target=lockstep_loop, args=(bell, answer, self._share, chunk), daemon=True
            )
            for bell in self._bells
        ]
        for process in self._processes:
            process.start()
        self._wait()

    def step(self) -> int:
        for bell in self._bells:
            os.eventfd_write(bell, 1)
        self._wait()
        return self._steps

    def _wait(self) -> None:
        answered = 0
        while answered < len(self._bells):
            answered += len(os.read(self._answers, len(self._bells)))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(10)


def lockstep_loop(bell: int, answer: int, share: int, chunk: int) -> None:
    envs = [suite_env() for _ in range(share)]
    actions = random_actions(1)[:, 0]
    episode = place = 0
    for env in envs:
        env.reset(options={"episode": (episode := episode + 1)})
    os.write(answer, b"r")
    while os.eventfd_read(bell):
        for env in (env for env in envs for _ in range(chunk)):
            _, _, terminated, truncated, _ = env.step(actions[(place := place + 1) % ACTIONS])
            if terminated or truncated:
                env.reset(options={"episode": (episode := episode + 1)})
        os.write(answer, b"d")


def plain_env(seed: int) -> gymnasium.Env[Any, Any]:
    """Meta-World's own env; it takes the options of a reset and ignores them."""
    return PlainEnv(seed)()


def own_env(_: int) -> gymnasium.Env[Any, Any]:
    """Our suite's env."""
    return suite_env()


def bare_loop(
    pipe: Connection,
    seed: int,
    make: Callable[[int], gymnasium.Env[Any, Any]],
    cameras: tuple[str, ...],
) -> None:
    env = make(seed)
    switch: Any = env.unwrapped
    actions = random_actions(1)[:, 0]
    place, episode = 0, seed
    env.reset(options={"episode": episode})
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        made, began, cpu_began = 0, time.perf_counter(), time.process_time()
        while (spent := time.perf_counter() - began) < seconds:
            if cameras:
                switch.frames_enabled = place % CHUNK == CHUNK - 1
            _, _, terminated, truncated, _ = env.step(actions[place % ACTIONS])
            place += 1
            made += 1
            if terminated or truncated:
                episode += 1
                env.reset(options={"episode": episode})
        pipe.send((made / spent, (time.process_time() - cpu_began) / made))


def random_actions(num_envs: int) -> np.ndarray[Any, Any]:
    """(ACTIONS, N, 4), the same whenever asked."""
    return np.random.default_rng(0).uniform(-1, 1, (ACTIONS, num_envs, 4)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="per contender and round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["MUJOCO_GL"] = "disable"  # nobody renders: no window library
    warnings.filterwarnings("ignore", module="gymnasium")
    with ExitStack() as stack:
        runs = contenders(options, stack)
        report(measure.interleave(runs, options.rounds), options)


def contenders(options: argparse.Namespace, stack: ExitStack) -> dict[str, Callable[[], float]]:
    num_envs, seconds = options.num_envs, options.seconds
    bare, bare_own = BareLoops(cores(), plain_env), BareLoops(cores(), own_env)
    stack.callback(bare.close)
    stack.callback(bare_own.close)
    lockstep = Lockstep(num_envs, cores())
    stack.callback(lockstep.close)
    peer = AsyncVectorEnv([PlainEnv(seed) for seed in range(num_envs)], context="spawn")
    stack.callback(peer.close)
    steps = {
        "async": peer_stepper(peer, random_actions(num_envs)),
        "lockstep_without_engine": lockstep.step,
    }
    for name, chunk, num_workers in (
        ("step", 1, cores()),
        ("chunk8", CHUNK, cores()),
        ("step_worker_per_env", 1, None),
        ("chunk8_worker_per_env", CHUNK, None),
    ):
        envs = stack.enter_context(
            polyarm.make_vec(
                f"metaworld/{TASK}", num_envs=num_envs, num_workers=num_workers, seed=0, **OPTIONS
            )
        )
        steps[name] = our_stepper(envs, random_actions(num_envs), chunk)
    runs: dict[str, Callable[[], float]] = {
        "bare": lambda: bare.rate(seconds),
        "bare_own_env": lambda: bare_own.rate(seconds),
    }
    for name, step in steps.items():
        runs[name] = lambda step=step: measure.rate(step, seconds)
    return runs


def peer_stepper(envs: AsyncVectorEnv, actions: np.ndarray[Any, Any]) -> Callable[[], int]:
    """Its autoreset spends a step on every reset; those are not env steps, as with ours."""
    envs.reset()
    place, resetting = 0, 0

    def step() -> int:
        nonlocal place, resetting
        _, _, terminated, truncated, _ = envs.step(actions[place % ACTIONS])
        place += 1
        made = len(terminated) - resetting
        resetting = int((terminated | truncated).sum())
        return made

    return step


def our_stepper(
    envs: polyarm.VectorEnv, actions: np.ndarray[Any, Any], chunk: int
) -> Callable[[], int]:
    envs.reset()
    chunks = np.ascontiguousarray(
        actions.reshape(ACTIONS // chunk, chunk, *actions.shape[1:]).swapaxes(1, 2)
    )
    place = 0

    def step() -> int:
        nonlocal place
        batch = chunks[place % len(chunks)]
        place += 1
        *_, info = envs.step(batch[:, 0]) if chunk == 1 else envs.step_chunk(batch)
        return int(info["steps"].sum())

    return step


def report(results: measure.Rounds, options: argparse.Namespace) -> None:
    rates = measure.medians(results)
    figures = {
        "efficiency_step": measure.ratio(results, "step", "bare"),
        "efficiency_chunk8": measure.ratio(results, "chunk8", "bare"),
        "ratio_async": measure.ratio(results, "step", "async"),
        "efficiency_async": measure.ratio(results, "async", "bare"),
    }
    for name in ("step", "chunk8"):
        key = f"{name}_worker_per_env"
        figures[f"efficiency_{key}"] = measure.ratio(results, key, "bare")
        figures[f"efficiency_{name}_own_env"] = measure.ratio(results, name, "bare_own_env")
    figures["efficiency_lockstep_without_engine_own_env"] = measure.ratio(
        results, "lockstep_without_engine", "bare_own_env"
    )
    figures["ratio_own_env"] = measure.ratio(results, "bare_own_env", "bare")
    rows = [(name, f"{value:,.0f} /s") for name, value in rates.items()]
    rows += [(name, f"{value:.3f}") for name, value in figures.items()]
    measure.print_table(f"efficiency, {options.num_envs} envs on {cores()} cores", rows)
    measure.print_json(
        {
            "benchmark": "efficiency",
            "num_envs": options.num_envs,
            "num_workers": cores(),
            "bare_loops": cores(),
            "rounds": options.rounds,
            "seconds": options.seconds,
            **figures,
            "env_steps_per_s": rates,
        }
    )


if __name__ == "__main__":
    main()
