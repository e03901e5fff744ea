"""Which of a host's ranks this process is, as its launcher says.

Standard library only: probes run outside the package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_SPECIAL_STEPS = 0xFFFFFFF0
"""SLURM's steps with numbers from here on are batch scripts, interactive shells and the like."""

RENDER_GPU = "POLYARM_RENDER_GPU"
"""Variable with CUDA's number of the GPU to render on, where that is not the one to compute on."""


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Rank of this process on its host, by torchrun, SLURM or MPI; None where nobody says."""
    for variable in _LOCAL_RANK:
        if (value := environment.get(variable, "")).isdecimal():
            return int(value)
    return None


def local_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks of this job share the host, by the same."""
    for variable in _LOCAL_RANKS:
        if (value := environment.get(variable, "")).isdecimal() and int(value) > 0:
            return int(value)
    return _tasks_of_node(environment) if in_slurm_step(environment) else 1


def is_task_of_srun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `srun` itself has started this rank, and not a torchrun or mpirun inside a task."""
    return in_slurm_step(environment) and not any(
        environment.get(variable) for variable in _LOCAL_RANKS
    )


def in_slurm_step(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is one of the processes that `srun` has started.

    SLURM also sets its variables where only one process runs: in a batch script, and in an
    interactive shell. Only a numbered step without a terminal of its own has ranks.
    """
    step = environment.get("SLURM_STEP_ID", "")
    return (
        step.isdecimal()
        and int(step) < _SPECIAL_STEPS
        and environment.get("SLURM_PROCID", "").isdecimal()
        and not environment.get("SLURM_PTY_PORT")
    )


def _tasks_of_node(environment: Mapping[str, str]) -> int:
    """How many tasks of the step run on this node: of ``4(x2),1``, four on each of the first two.

    The number that was asked for per node is there only where somebody has asked, and is the job's.
    """
    node = environment.get("SLURM_NODEID", "")
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if found := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip()):
            counts += [int(found[1])] * int(found[2] or 1)
    if counts:
        place = int(node) if node.isdecimal() else 0
        return max(1, counts[min(place, len(counts) - 1)])
    asked = environment.get("SLURM_NTASKS_PER_NODE", "")
    return max(1, int(asked)) if asked.isdecimal() else 1


def cuda_index(environment: Mapping[str, str] = os.environ) -> int | None:
    """CUDA's number of the GPU that this rank renders on; None where nothing binds it to one.

    It is the one that it computes on, unless `RENDER_GPU` names another. Its number is among all
    GPUs of the host if ``CUDA_VISIBLE_DEVICES`` gives numbers, else its place in that variable.
    """
    if (chosen := environment.get(RENDER_GPU, "")).isdecimal():
        return int(chosen)
    rank = local_rank(environment)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not visible:
        return rank
    names = [name.strip() for name in visible.split(",")]
    place = (rank or 0) % len(names)
    return int(names[place]) if all(name.isdecimal() for name in names) else place
