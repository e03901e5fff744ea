"""The ramp: 1, 2, 4, 8 … workers, until the host gives in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyarm.contracts import EnvSpec
from polyarm.doctor.case import Case
from polyarm.errors import InvalidCall, PolyarmError
from polyarm.vector import host
from polyarm.vector.make import make_vec

STEPS = 10
"""Steps that each env makes on each rung."""

SHARE = 0.9
"""Of the free memory, what the next rung may take; beyond it the kernel starts to kill."""

_FAMILIAR = ("reach_target", "reach-v3")


@dataclass(frozen=True, slots=True)
class Ramp:
    """What is started.

    Attributes:
        task: Full name of the task.
        max_workers: The last rung; 1, 2, 4, 8 … up to it.
        cameras: Cameras whose frames are rendered.
        options: Options of the suite.
    """

    task: str
    max_workers: int
    cameras: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rung:
    """How so many workers went.

    Attributes:
        workers: How many.
        first_obs_s: From nothing to the first observation of all.
        steps_per_s: Env steps of all together.
        nbytes_per_worker: Memory of a worker with all its processes.
        error: Why it failed, or was not tried.
    """

    workers: int
    first_obs_s: float = 0.0
    steps_per_s: float = 0.0
    nbytes_per_worker: int = 0
    error: str = ""


def plan(case: Case, task: str | None, max_workers: int | None) -> Ramp:
    """The ramp for the asked task, or for a plain task of the asked suite.

    Raises:
        InvalidCall: Neither is asked for, or there is no worker to start.
    """
    if max_workers is not None and max_workers < 1:
        raise InvalidCall(f"--max-workers must be at least 1, found {max_workers}")
    most = max_workers or max(8, 4 * host.cores())
    suite = case.suite_name if task is None else task.partition("/")[0]
    if suite is None:
        raise InvalidCall(
            "--ramp needs a task: add --suite metaworld, or --task metaworld/reach-v3"
        )
    of_task = case if suite == case.suite_name else Case(suite, case.num_envs)
    spec = of_task.spec() or EnvSpec(suite, "")
    if task is None:
        names = [one.name for one in of_task.suite.tasks()] if of_task.suite else []
        familiar = [name for name in names if name.partition("/")[2] in _FAMILIAR]
        task = next(iter(familiar), spec.name)
    # Standing still is valid in joint velocities; a random pose mostly cannot be reached.
    options = {"arm_mode": "joint_velocity"} if suite == "rlbench" else {}
    return Ramp(task, most, spec.cameras, options)


def climb(ramp: Ramp) -> Iterator[Rung]:
    """Start more and more workers; ends with the first rung that fails or would not fit."""
    workers, each = 1, 0
    while True:
        room = host.available_memory()
        if each * workers > SHARE * room:
            need, have = each * workers / 2**30, room / 2**30
            error = f"not tried: it would take {need:.1f} GiB, and {have:.1f} GiB are free"
            yield Rung(workers, error=error)
            return
        rung = _try(ramp, workers)
        yield rung
        if rung.error or workers >= ramp.max_workers:
            return
        each = rung.nbytes_per_worker
        workers = min(2 * workers, ramp.max_workers)


def _try(ramp: Ramp, workers: int) -> Rung:
    began = time.monotonic()
    try:
        with make_vec(
            ramp.task, num_envs=workers, cameras=ramp.cameras, max_restarts=0, **ramp.options
        ) as envs:
            envs.reset(seed=0)
            first_obs_s = time.monotonic() - began
            actions = _still(envs.action_space)
            began = time.monotonic()
            for _ in range(STEPS):
                errors = envs.step(actions)[4].get("error", ())
                if failed := [error for error in errors if error is not None]:
                    return Rung(workers, first_obs_s, error=str(failed[0]))
            steps_per_s = workers * STEPS / (time.monotonic() - began)
            each = _memory(envs.worker_pids) // workers
    except (PolyarmError, OSError, MemoryError) as error:
        return Rung(workers, error=str(error) or type(error).__name__)
    return Rung(workers, first_obs_s, steps_per_s, each)


def _still(space: Any) -> Any:
    """Zeros where the space has them, else a sample."""
    space.seed(0)
    sample = space.sample()
    still = np.zeros_like(sample) if isinstance(sample, np.ndarray) else sample
    return still if space.contains(still) else sample


def _memory(pids: Sequence[int]) -> int:
    """Bytes that these processes and what they started take, such as X servers."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (parent := _parent(int(entry))) is not None:
            parents[int(entry)] = parent
    counted = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in counted} - counted:
        counted |= more
    return sum(host.proportional_memory(pid) for pid in counted)


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):  # it ended meanwhile
        return None
