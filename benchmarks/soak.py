"""Minutes of random kills, stops and crashes, during which nothing may grow.

Vector envs of random shape are opened one after the other, stepped by ``step``, ``step_chunk`` and
``send``/``recv`` while their workers are hit by SIGKILL, SIGSTOP and SIGSEGV, and closed. Watched:
descriptors and memory of the trainer over the whole run, those of each fork server over its life,
and that every process is gone after ``close``. Exits with 1 when something has grown.

    python benchmarks/soak.py --minutes 10
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import measure
import numpy as np
import processes

import polyarm

TASKS = ("toy/count-10", "toy/count-50", "metaworld/reach-v3")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
HIT_EVERY_S = 0.15
CLOSE_S = 10.0
SETTLE_S = 20.0

# Allocators keep some of what they were given: runs of minutes measured less than 0.1 MB.
SPARE_NBYTES = 4 << 20
SPARE_DESCRIPTORS = 0
REST_S = 0.5


@dataclass
class Findings:
    """What happened, and what is wrong with it."""

    hits: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    envs_opened: int = 0
    env_steps: int = 0
    slowest_close_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    growth: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """Descriptors and anonymous memory of a process."""

    descriptors: int
    nbytes: int

    @classmethod
    def of(cls, pid: int) -> Sizes:
        return cls(processes.descriptors(pid), processes.private_memory(pid))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--envs-minutes", type=float, default=0.5, help="life of a vector env")
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="what the vector envs run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("polyarm").setLevel(logging.CRITICAL)  # failures are meant here
    dice = random.Random(options.seed)
    findings = Findings()
    end = time.monotonic() + 60 * options.minutes
    # The first envs fill caches and load libraries; growth is counted from there.
    for task in options.tasks:
        live(task, dice, findings, time.monotonic() + min(5.0, 6 * options.minutes))
    before = settled()
    while time.monotonic() < end:
        until = min(end, time.monotonic() + 60 * options.envs_minutes)
        live(dice.choice(options.tasks), dice, findings, until)
    compare("trainer", before, settled(), findings)
    report(findings, options)
    sys.exit(1 if findings.problems else 0)


def live(task: str, dice: random.Random, findings: Findings, until: float) -> None:
    """One vector env, from opening to closing, under fire."""
    num_envs = dice.randint(1, 8)
    num_workers = dice.randint(1, num_envs)
    envs = polyarm.make_vec(
        task,
        num_envs=num_envs,
        num_workers=num_workers,
        step_timeout_s=1.0,
        reset_timeout_s=5.0,
        build_timeout_s=5.0,
        max_restarts=10**6,
        seed=dice.randrange(1000),
    )
    findings.envs_opened += 1
    try:
        envs.reset()
        server = fork_server()
        recover(envs)
        before = at_rest(server)
        fire(envs, dice, findings, until)
        recover(envs)
        compare(f"fork server of {task}", before, at_rest(server), findings)
        if fork_server() != server:
            findings.problems.append(f"the fork server of {task} was replaced")
    finally:
        began = time.monotonic()
        envs.close()
        took = time.monotonic() - began
        findings.slowest_close_s = max(findings.slowest_close_s, took)
    if took > CLOSE_S:
        findings.problems.append(f"close() took {took:.1f} s")
    if left := [f"{processes.name(pid)} ({pid})" for pid in everybody_gone()]:
        findings.problems.append(f"left behind after close(): {', '.join(left)}")


def fire(envs: polyarm.VectorEnv, dice: random.Random, findings: Findings, until: float) -> None:
    """Step in every way there is while workers are hit."""
    hit_at = time.monotonic()
    while time.monotonic() < until:
        if time.monotonic() >= hit_at:
            hit(envs, dice, findings)
            hit_at = time.monotonic() + dice.expovariate(1 / HIT_EVERY_S)
        way = dice.choice((step, step_chunk, send_and_receive, send_and_receive))
        count(way(envs, dice), findings)


def hit(envs: polyarm.VectorEnv, dice: random.Random, findings: Findings) -> None:
    """Signal a worker; never a stranger that was given the pid of one that has just ended."""
    below = set(processes.descendants(os.getpid()))
    pids = [pid for pid in envs.worker_pids if pid in below]
    if pids:
        chosen = dice.choice(SIGNALS)
        os.kill(dice.choice(pids), chosen)
        findings.hits[chosen.name] += 1


def step(envs: polyarm.VectorEnv, _: random.Random) -> dict[str, Any]:
    info: dict[str, Any] = envs.step(actions(envs, envs.num_envs))[-1]
    return info


def step_chunk(envs: polyarm.VectorEnv, dice: random.Random) -> dict[str, Any]:
    chunk = dice.randint(1, 12)
    batch = actions(envs, envs.num_envs * chunk)
    info: dict[str, Any] = envs.step_chunk(batch.reshape(envs.num_envs, chunk, -1))[-1]
    return info


def send_and_receive(envs: polyarm.VectorEnv, dice: random.Random) -> dict[str, Any]:
    slots = dice.sample(range(envs.num_envs), dice.randint(1, envs.num_envs))
    envs.send(actions(envs, len(slots)), slots)
    received = 0
    steps, errors = [], []
    while received < len(slots):
        ready = envs.recv(dice.randint(1, len(slots) - received), timeout_s=30.0)
        if len(ready.slots) == 0:
            raise SystemExit("recv delivered nothing for 30 s")
        received += len(ready.slots)
        steps.append(ready.info["steps"].sum())
        errors += list(ready.info.get("error", ()))
    return {"steps": np.array(steps), "error": errors}


def actions(envs: polyarm.VectorEnv, number: int) -> np.ndarray[Any, Any]:
    shape = envs.single_action_space.shape or ()
    return np.zeros((number, *shape), np.float32)


def count(info: dict[str, Any], findings: Findings) -> None:
    findings.env_steps += int(np.sum(info["steps"]))
    findings.errors.update(error.kind for error in info.get("error", ()) if error is not None)


def recover(envs: polyarm.VectorEnv) -> None:
    """Step until every slot works again."""
    end = time.monotonic() + SETTLE_S
    good = 0
    while good < 3:
        *_, info = envs.step(actions(envs, envs.num_envs))
        good = 0 if "error" in info else good + 1
        if time.monotonic() > end:
            raise SystemExit(f"slots did not recover within {SETTLE_S:g} s: {info['error']}")


def fork_server() -> int:
    for pid in processes.descendants(os.getpid()):
        if processes.name(pid) == "polyarm-server":
            return pid
    raise SystemExit("there is no fork server")


def everybody_gone() -> list[int]:
    """Processes still below this one after some patience."""
    end = time.monotonic() + 3.0
    while (left := processes.descendants(os.getpid())) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def settled() -> Sizes:
    gc.collect()
    return Sizes.of(os.getpid())


def at_rest(server: int) -> Sizes:
    """Of a fork server that has its spare workers, one for each kind, and nothing to do."""
    end, since, sizes = time.monotonic() + SETTLE_S, time.monotonic(), Sizes.of(server)
    while (now := time.monotonic()) < min(end, since + REST_S):
        time.sleep(0.02)
        if (found := Sizes.of(server)).descriptors != sizes.descriptors:
            since, sizes = now, found
    return sizes


def compare(who: str, before: Sizes, after: Sizes, findings: Findings) -> None:
    grown = {
        f"{who}: descriptors": (after.descriptors - before.descriptors, SPARE_DESCRIPTORS),
        f"{who}: nbytes": (after.nbytes - before.nbytes, SPARE_NBYTES),
    }
    for what, (growth, spare) in grown.items():
        findings.growth[what] = max(findings.growth.get(what, 0), growth)
        if growth > spare:
            findings.problems.append(f"{what} grew by {growth:,}")


def report(findings: Findings, options: argparse.Namespace) -> None:
    rows = [
        ("hits", f"{sum(findings.hits.values()):,}"),
        ("errors delivered", f"{sum(findings.errors.values()):,}"),
        ("vector envs opened", f"{findings.envs_opened:,}"),
        ("env steps", f"{findings.env_steps:,}"),
        ("slowest close", f"{findings.slowest_close_s:.2f} s"),
        *((what, f"{growth:+,}") for what, growth in findings.growth.items()),
        *(("PROBLEM", problem) for problem in findings.problems),
    ]
    measure.print_table(f"soak, {options.minutes:g} minutes", rows)
    measure.print_json(
        {
            "benchmark": "soak",
            "minutes": options.minutes,
            "seed": options.seed,
            "hits": dict(findings.hits),
            "errors": dict(findings.errors),
            "envs_opened": findings.envs_opened,
            "env_steps": findings.env_steps,
            "slowest_close_s": findings.slowest_close_s,
            "growth": findings.growth,
            "problems": findings.problems,
        }
    )


if __name__ == "__main__":
    main()
