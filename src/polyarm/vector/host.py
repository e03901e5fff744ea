"""What this machine allows: cores, memory and descriptors, as affinity and cgroups leave them."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyarm.display.rank import is_task_of_srun, local_rank, local_ranks
from polyarm.errors import HostLimit

_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_TRAINER_FILES, _SERVER_FILES = 16, 48
"""Open files of the trainer's engine and its fork server, beside two and three for each worker."""
SPARE_FILES = 256
"""Those that the trainer is left to open for something else."""
KERNEL_FIX = (
    "Linux 5.4 or newer; in a container, a seccomp profile that allows it: "
    "docker run --security-opt seccomp=unconfined …"
)
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def cgroup_files(name: str, controller: str = "") -> list[Path]:
    """The file ``name`` of this process's cgroup and of each of its ancestors.

    In a container, a path of the host leads nowhere, and only the mount's own files are there.

    Args:
        name: The file's name.
        controller: Of cgroup v1, which has a tree for each, such as ``"memory"``; else v2.
    """
    root, inside = _CGROUP / (controller or "unified"), "/"
    for line in _MEMBERSHIP.read_text().splitlines() if _MEMBERSHIP.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root, inside = _CGROUP / (controllers or "unified"), path
    if not root.is_dir():
        root = _CGROUP / controller  # where v1 has links to its trees, and v2 everything
    folder = root / inside.lstrip("/")
    folders = [folder, *folder.parents]
    return [f / name for f in folders if f.is_relative_to(root) and (f / name).is_file()]


def _cgroup_cores() -> float:
    """CPUs the cgroup quota allows; infinite without one."""
    allowed = float("inf")
    for file in cgroup_files("cpu.max"):
        quota, period = file.read_text().split()[:2]
        if quota != "max":
            allowed = min(allowed, int(quota) / int(period))
    for file in cgroup_files("cpu.cfs_quota_us", "cpu"):
        if (quota_us := int(file.read_text())) > 0:
            allowed = min(allowed, quota_us / int(file.with_name("cpu.cfs_period_us").read_text()))
    return allowed


def cores() -> int:
    """Cores this rank may use: affinity and cgroup quota, shared by the local ranks."""
    bound = len(os.sched_getaffinity(0))
    if _has_own_cores(bound):
        return bound  # the quota is that of all ranks
    return max(1, int(min(bound, _cgroup_cores())) // local_ranks())


def own_cpus() -> list[int]:
    """Numbers of the CPUs to pin to: those of the affinity, shared by the local ranks."""
    bound = sorted(os.sched_getaffinity(0))
    ranks, rank = local_ranks(), local_rank() or 0
    if ranks <= 1 or _has_own_cores(len(bound)):
        return bound
    share = bound[len(bound) * rank // ranks : len(bound) * (rank + 1) // ranks]
    return share or [bound[rank % len(bound)]]


def _has_own_cores(bound: int) -> bool:
    """Whether srun has given this rank cores of its own, not to a torchrun that has started it."""
    own = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return is_task_of_srun() and own.isdecimal() and bound <= int(own)


def available_memory() -> int:
    """Bytes that can still be taken before the host or the cgroup runs out."""
    room = 2**63
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            room = int(line.split()[1]) * 1024
    for file in cgroup_files("memory.max"):
        limit = file.read_text().strip()
        current = file.with_name("memory.current")
        if limit != "max" and current.is_file():
            used = int(current.read_text()) - _droppable(file)
            room = min(room, int(limit) - used)
    for file in cgroup_files("memory.limit_in_bytes", "memory"):
        used = int(file.with_name("memory.usage_in_bytes").read_text())
        room = min(room, int(file.read_text()) - used + _droppable(file, "total_"))
    return max(room, 0)


def _droppable(limit: Path, prefix: str = "") -> int:
    """Bytes of a cgroup's page cache that the kernel gives up before anything else.

    Args:
        limit: The file of the cgroup's limit.
        prefix: Of the names of figures that include the groups below, as the usage does.
    """
    stat = limit.with_name("memory.stat")
    lines = [line.split() for line in stat.read_text().splitlines()] if stat.is_file() else []
    names = (f"{prefix}inactive_file", f"{prefix}active_file")
    return sum(int(value) for name, value in lines if name in names)


@contextmanager
def kernel_gives(what: str) -> Iterator[None]:
    """Say what to do if the kernel, or a container's seccomp profile, refuses something.

    Raises:
        HostLimit: It does.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
        raise HostLimit(f"no {what} here ({error.strerror}). It takes {KERNEL_FIX}") from error


def allow_files(nbytes: int) -> None:
    """Raise the soft limit on the size of files to the hard one if ``nbytes`` would not fit.

    Raises:
        HostLimit: The hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY or nbytes <= soft:
        return
    if hard != resource.RLIM_INFINITY and nbytes > hard:
        raise HostLimit(
            f"the engine's memory files end at {nbytes} bytes, mostly holes, and files may have"
            f" {hard} (ulimit -Hf): {how_to_raise('fsize', 'unlimited')}"
        )
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def raise_descriptor_limit(needed: int) -> None:
    """Raise the soft limit on open files to the hard one if ``needed`` would not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > soft:
        target = hard if hard != resource.RLIM_INFINITY else max(needed, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def files_needed(num_workers: int) -> int:
    """The lowest limit on open files with which the engine of so many workers starts here.

    The fork server has the same limit.
    """
    opened = len(os.listdir("/proc/self/fd"))
    return max(opened + _TRAINER_FILES + 2 * num_workers, _SERVER_FILES + 3 * num_workers)


def allow_workers(num_workers: int) -> None:
    """Raise the soft limit on open files so that the engine of so many workers fits, and more.

    Raises:
        HostLimit: The hard limit is too low.
    """
    needed, opened = files_needed(num_workers), len(os.listdir("/proc/self/fd"))
    raise_descriptor_limit(needed + SPARE_FILES)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise HostLimit(
            f"num_workers={num_workers} needs a limit of {needed} open files, as {opened} are open"
            f" here, but the hard limit is {hard} (ulimit -Hn): use fewer workers, close files, or"
            f" {how_to_raise('nofile', needed + SPARE_FILES)}"
        )


def how_to_raise(kind: str, number: int | str) -> str:
    """How a hard limit is raised, wherever it comes from."""
    return (
        f"raise the hard limit: '* hard {kind} {number}' in /etc/security/limits.conf and log in "
        f"anew; in a service Limit{kind.upper()}={number}; docker run --ulimit {kind}={number} …"
    )


def thread_limits(num_workers: int, *, forked: bool) -> dict[str, str]:
    """Environment variables that keep workers from fighting over cores.

    A process that will be forked must have one thread, so its limit is 1 whatever the machine.
    """
    share = max(1, cores() // max(1, num_workers))
    limits = {name: "1" if forked else str(share) for name in _THREAD_VARIABLES}
    # llvmpipe: 0 renders on the calling thread, with the same pixels and 13% less CPU.
    limits["LP_NUM_THREADS"] = "0" if share == 1 else str(share)
    return limits


def proportional_memory(pid: int) -> int:
    """Proportional set size of a process in bytes, 0 if it is gone."""
    return _kernel_figures(pid, "smaps_rollup").get("Pss", 0)


def anonymous_memory(pid: int) -> int:
    """Anonymous resident memory of a process in bytes, 0 if it is gone.

    Pages count that it shares with processes it was forked from, or beside.
    """
    return _kernel_figures(pid, "status").get("RssAnon", 0)


def private_memory(pid: int) -> int:
    """The part of a process's anonymous memory that is its alone, in bytes, 0 if it is gone."""
    figures = _kernel_figures(pid, "smaps_rollup")
    if not figures:
        return anonymous_memory(pid)
    own = figures.get("Private_Clean", 0) + figures.get("Private_Dirty", 0)
    return min(own, figures.get("Anonymous", own))


def _kernel_figures(pid: int, file: str) -> dict[str, int]:
    """Sizes in bytes that the kernel tells of a process; empty if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return {}
    sizes = (line.split() for line in lines if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in sizes}


def machine_facts() -> dict[str, str | int | float]:
    """What a benchmark must say about the machine it ran on."""
    import platform

    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model or platform.machine(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
