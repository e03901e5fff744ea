"""Cores, memory and limits against the planned workers."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from polyarm.contracts import Footprint
from polyarm.display.rank import local_ranks
from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding
from polyarm.vector import host

CROWDED = 4
"""Workers per core beyond which they mostly wait for one another."""

TIGHT = 0.8
"""Of the free memory, beyond which little is left for anything else."""

THREADS_PER_WORKER, THREADS_PER_X_WORKER, THREADS = 4, 32, 128
"""Roughly; CoppeliaSim and its X server start some for each core."""

_SHM = Path("/dev/shm")
_GIB = 2**30


def check_cores(case: Case) -> Iterator[Finding]:
    """Cores of this rank against its workers."""
    cores, workers = host.cores(), case.num_envs
    text = f"{cores} for {workers} workers"
    if (ranks := local_ranks()) > 1:
        text += f" of this rank, one of {ranks}"
    if (everywhere := os.cpu_count() or cores) > cores:
        text += f" ({everywhere} in the machine; affinity, cgroup and ranks leave the rest)"
    if workers > CROWDED * cores:
        fix = f"--num-envs {CROWDED * cores} or less, or more cores"
        yield Finding("cores", "warning", f"{text}: they wait for one another", fix)
    else:
        yield Finding("cores", "ok", text)


def check_memory(case: Case) -> Iterator[Finding]:
    """Memory that is free now against what the planned workers take."""
    room = host.available_memory() // local_ranks()
    text = f"{room / _GIB:.1f} GiB free"
    spec = case.spec()
    measure = getattr(case.suite, "footprint", None)
    if spec is None or measure is None:
        yield Finding("memory", "ok", text)
        return
    need: Footprint = measure(spec)
    # Xvfb renders in main memory, GPU or not.
    each = need.host if case.gpus and not case.needs_x else need.host + need.graphics
    text += f", {case.num_envs} workers of {each / 2**20:.0f} MiB take {_gib(each * case.num_envs)}"
    if each * case.num_envs > room:
        fits = max(1, int(room // each))
        fix = f"--num-envs {fits}; or free memory, or raise the job's memory limit"
        yield Finding("memory", "broken", text, fix)
    elif each * case.num_envs > TIGHT * room:
        yield Finding("memory", "warning", f"{text}: little is left for a policy")
    else:
        yield Finding("memory", "ok", text)


def check_limits(case: Case) -> Iterator[Finding]:
    """Limits on files, processes and locked memory, by ulimit and cgroup."""
    each = THREADS_PER_X_WORKER if case.needs_x else THREADS_PER_WORKER
    tasks = THREADS + each * case.workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    mine = own_tasks()
    pids, now = pids_limit()
    processes_fix = host.how_to_raise("nproc", mine + tasks)
    if hard == resource.RLIM_INFINITY or mine + tasks <= hard:
        processes_fix = f"ulimit -u {mine + tasks} (before Python starts)"
    limits = [
        ("processes", soft, mine, tasks, processes_fix),
        ("tasks of the cgroup", pids, now, tasks, _pids_fix(2 * (now + tasks))),
    ]
    fine = []
    if (scarce := _check_files(case)) is not None:
        yield scarce
    else:
        fine.append(f"open files {_number(resource.getrlimit(resource.RLIMIT_NOFILE)[1])}")
    for name, limit, used, wanted, fix in limits:
        if limit != resource.RLIM_INFINITY and limit < used + wanted:
            there = f", {used} in use" if used else ""
            text = f"{limit} {name}{there}, about {wanted} for {case.num_envs} workers"
            yield Finding("limits", "broken", text, fix)
        else:
            fine.append(f"{name} {_number(limit)}")
    fine.append(f"locked memory {_size(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])}")
    yield Finding("limits", "ok", ", ".join(fine))


def _check_files(case: Case) -> Finding | None:
    """The limit on open files as the engine takes it, which raises the soft one by itself."""
    hard, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[1], host.files_needed(case.num_envs)
    enough = needed + host.SPARE_FILES
    if hard == resource.RLIM_INFINITY or hard >= enough:
        return None
    text = f"{hard} open files, {needed} for {case.num_envs} workers"
    if hard < needed:
        return Finding("limits", "broken", text, host.how_to_raise("nofile", enough))
    text += ": little is left for a policy"
    return Finding("limits", "warning", text, host.how_to_raise("nofile", enough))


def check_shared_memory(case: Case) -> Iterator[Finding]:
    """Where others need a large one, nothing is needed here."""
    if not _SHM.is_dir():
        yield Finding("/dev/shm", "ok", "not there, and not needed")
        return
    size = shutil.disk_usage(_SHM).total
    yield Finding("/dev/shm", "ok", f"{_gib(size)}, not needed: the shared block has no name")


def pids_limit() -> tuple[int, int]:
    """How many tasks the cgroup allows, infinite without a limit, and how many it has.

    Of this process's cgroup and its ancestors, the one with the least room counts.
    """
    tightest = (int(resource.RLIM_INFINITY), 0)
    for file in [*host.cgroup_files("pids.max"), *host.cgroup_files("pids.max", "pids")]:
        text, current = file.read_text().strip(), file.with_name("pids.current")
        used = int(current.read_text()) if current.is_file() else 0
        unlimited = tightest[0] == resource.RLIM_INFINITY
        if text != "max" and (unlimited or int(text) - used < tightest[0] - tightest[1]):
            tightest = int(text), used
    return tightest


def own_tasks() -> int:
    """Threads that this user has in all: what the limit on processes counts."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count


def _pids_fix(number: int) -> str:
    return f"docker run --pids-limit {number} …; in a service TasksMax={number}"


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _size(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit / 2**20:.0f} MiB"


def _gib(nbytes: int) -> str:
    return f"{nbytes / _GIB:.1f} GiB" if nbytes >= _GIB else f"{nbytes / 2**20:.0f} MiB"
