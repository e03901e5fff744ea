"""Looking at process trees through /proc; standard library only, so that importing it is free."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path


def descendants(root: int) -> list[int]:
    """Pids of all processes below ``root``, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                state, parent = (
                    Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[:2]
                )
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def name(pid: int) -> str:
    """A process's short name, empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def descriptors(pid: int) -> int:
    """Open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def proportional_memory(pids: list[int]) -> int:
    """Sum of the proportional set sizes in bytes."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """Time that these processes have spent on a core; 0 for those that are gone."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def private_memory(pid: int) -> int:
    """Anonymous resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def gpu_memory_mib() -> int:
    """Memory in use on all NVIDIA GPUs together, by whomever; 0 without one."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return sum(int(line) for line in subprocess.check_output(query, text=True).split())
    return 0
