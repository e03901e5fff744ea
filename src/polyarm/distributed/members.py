"""Which of the ranks that share an evaluation's folder this process is.

The ranks of a launcher share it, and so do all tasks of a SLURM array, whatever each of them runs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from polyarm.display.rank import in_slurm_step
from polyarm.distributed import slurm
from polyarm.distributed.ranks import Rank
from polyarm.rollout.runlock import start_of
from polyarm.rollout.sharing import Member


def member(rank: Rank, environment: Mapping[str, str] = os.environ) -> Member | None:
    """This process as one of those that share a folder; None if it is the only one."""
    if (task := slurm.array_task(environment)) is not None:
        number = task.place * rank.world + rank.number
        return Member(number, task.count * rank.world, f"SLURM array {task.job}")
    if rank.world == 1:
        return None
    return Member(rank.number, rank.world, _job(environment))


def _job(environment: Mapping[str, str]) -> str:
    """What all ranks of this job have in common, and those of no other job."""
    if "TORCHELASTIC_RUN_ID" not in environment and in_slurm_step(environment):
        return f"SLURM step {environment.get('SLURM_JOB_ID')}.{environment['SLURM_STEP_ID']}"
    names = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    known = [environment.get(name, "") for name in names]
    if environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE"):
        # All on one host, so children of one launcher; its address may be that of an earlier one.
        parent = os.getppid()
        known += [socket.gethostname(), str(parent), start_of(parent)]
    return " ".join(known)
