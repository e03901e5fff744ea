"""Which of the processes that share a run's folder this one is, and which it takes the place of.

The ranks of a launcher share it, and so do all tasks of a SLURM array, whatever each of them runs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from polyarm.display.rank import in_slurm_step
from polyarm.distributed import slurm
from polyarm.distributed.launcher import TORCHRUN, launcher_pid
from polyarm.distributed.ranks import Rank
from polyarm.rollout.runlock import Job, start_of
from polyarm.rollout.sharing import Member


def member(rank: Rank, environment: Mapping[str, str] = os.environ) -> Member | None:
    """This process as one of those that share a folder; None if it is the only one."""
    if (task := slurm.array_task(environment)) is not None:
        number = task.place * rank.world + rank.number
        job = f"SLURM array {task.job}"
        return Member(number, task.count * rank.world, job, together=False)
    if rank.world == 1:
        return None
    return Member(rank.number, rank.world, _job(environment))


def starter_of(rank: Rank, environment: Mapping[str, str] = os.environ) -> str:
    """What one command starts several times, or on several processes; "" where it does once."""
    if (seat := member(rank, environment)) is not None:
        return seat.job
    return _job(environment) if TORCHRUN in environment else ""


def succession(rank: Rank, environment: Mapping[str, str] = os.environ) -> Job:
    """What starts a process in the place of this one when it ends, on whatever host.

    SLURM queues a job again under the same number, whatever it runs, and counts how often.
    """
    restarted = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    attempt = slurm.restarts(environment), int(restarted) if restarted.isdecimal() else 0
    if job := environment.get("SLURM_JOB_ID"):
        return Job(f"SLURM job {job}", attempt)
    return Job() if rank.world == 1 else Job(_job(environment), attempt)


def why_not_fresh(seat: Member | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Why this process must not begin by clearing its folder; None where it may.

    A job that one command starts several times would forget each time what it has done before.

    Args:
        seat: This process as `member` gives it.
        environment: What the launcher says.
    """
    if slurm.array_task(environment) is not None:
        return (
            "--fresh does not go with an array job: each of its tasks would forget what the others"
            " have done. Clear the folder before, or choose another with --out."
        )
    return why_not_anew(environment, alone=seat is None)


def why_not_anew(environment: Mapping[str, str] = os.environ, *, alone: bool) -> str | None:
    """As `why_not_fresh`, of a job that shares its folder with no other task of its array.

    Args:
        environment: What the launcher says.
        alone: Whether it is a single process.
    """
    # Steps of srun have the same name after a requeue, and go on; a new torchrun has a new one.
    if slurm.restarts(environment) and (alone or TORCHRUN in environment):
        return (
            "SLURM has requeued this job, and --fresh would forget what it has done before; leave"
            " --fresh out of jobs that may be requeued"
        )
    if not alone and "SLURM_JOB_ID" not in environment and not _on_one_host(environment):
        return (
            "--fresh does not go with ranks on several hosts outside of SLURM: nothing tells them"
            " from those of an earlier job. Clear the folder before, or choose another with --out."
        )
    return None


def _job(environment: Mapping[str, str]) -> str:
    """What all ranks of this job have in common, and those of no other job."""
    if TORCHRUN not in environment and in_slurm_step(environment):
        return f"SLURM step {environment.get('SLURM_JOB_ID')}.{environment['SLURM_STEP_ID']}"
    if _on_one_host(environment):
        # So children of one launcher. It may choose another port when it restarts them.
        launcher = launcher_pid(environment) or os.getppid()
        return f"{socket.gethostname()} {launcher} {start_of(launcher)}"
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", TORCHRUN, "MASTER_ADDR", "MASTER_PORT")
    return " ".join(environment.get(name, "") for name in names)


def _on_one_host(environment: Mapping[str, str]) -> bool:
    return environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE")
