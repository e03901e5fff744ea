"""What SLURM says about a process: its rank in a step, its task of an array, where to meet."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from polyarm.display.rank import in_slurm_step

_FIRST_PORT, _PORTS = 20_000, 12_000


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """One of the jobs of an array, which come and go by themselves.

    Attributes:
        place: Its place in the array, from 0 on; none has the same.
        count: How many there are.
        job: The array's number.
    """

    place: int
    count: int
    job: str


def step_rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank of this process in its step, and how many there are; the only one without a step."""
    if not in_slurm_step(environment):
        return 0, 1
    number = int(environment["SLURM_PROCID"])
    world = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", default=1)
    return number, max(world, number + 1)


def array_task(environment: Mapping[str, str] = os.environ) -> ArrayTask | None:
    """Which task of an array this is; None if it is none, or the array has no other."""
    job = environment.get("SLURM_ARRAY_JOB_ID", "")
    count = _number(environment, "SLURM_ARRAY_TASK_COUNT", default=1)
    if not job or count == 1:
        return None
    place = _number(environment, "SLURM_ARRAY_TASK_ID", default=0)
    return ArrayTask(place - _number(environment, "SLURM_ARRAY_TASK_MIN", default=0), count, job)


def restarts(environment: Mapping[str, str] = os.environ) -> int:
    """How often the job was requeued."""
    return _number(environment, "SLURM_RESTART_COUNT", default=0)


def say_where_to_meet(environment: MutableMapping[str, str] = os.environ) -> None:
    """Say where the processes of a step meet, for torch.distributed, unless somebody has said so.

    The first node of the step has its first process. ``SLURM_LAUNCH_NODE_IPADDR`` would be where
    `srun` was called, which may be another machine.
    """
    if not in_slurm_step(environment):
        return
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    one = _number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", default=1) == 1
    job = _number(environment, "SLURM_JOB_ID", default=0)
    port = _FIRST_PORT + (job * 16 + int(environment["SLURM_STEP_ID"])) % _PORTS
    environment.setdefault("MASTER_ADDR", "127.0.0.1" if one or not nodes else first_node(nodes))
    environment.setdefault("MASTER_PORT", str(port))


def first_node(nodes: str) -> str:
    """The first of a list such as ``gpu[07-09,12],login1``: ``gpu07``."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]  # at commas that are in no brackets
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _number(environment: Mapping[str, str], *names: str, default: int) -> int:
    for name in names:
        if (value := environment.get(name, "")).isdecimal():
            return int(value)
    return default
