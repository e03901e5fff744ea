"""NVIDIA GPUs, as ``nvidia-smi`` tells of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from polyarm.doctor import child
from polyarm.doctor.findings import Finding

if TYPE_CHECKING:
    from polyarm.doctor.case import Case

TIMEOUT_S = 30.0

_QUERY = "index,name,driver_version,memory.total,memory.free"
_WARNED = 14
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; memory in bytes."""

    index: int
    name: str
    driver: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the driver says: its GPUs, or why there is no answer."""

    gpus: tuple[Gpu, ...] = ()
    complaint: str = ""


def query() -> Answer:
    """Ask the driver."""
    if (program := shutil.which("nvidia-smi")) is None:
        return Answer()
    ended = child.run(
        [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], TIMEOUT_S
    )
    found = tuple(gpu for line in ended.stdout.splitlines() if (gpu := _parsed(line)) is not None)
    # 14: with an answer, and a warning that the infoROM of a GPU is corrupted.
    if ended.status == 0 or (ended.status == _WARNED and found):
        return Answer(found)
    return Answer((), ended.complaint if ended.stderr else ended.stdout.strip() or "no answer")


def check(case: Case) -> Iterator[Finding]:
    """Name, driver and memory of each GPU."""
    answer = case.driver
    if answer.complaint:
        yield Finding(
            "GPU",
            "broken",
            f"nvidia-smi: {answer.complaint}",
            "reload or update the NVIDIA driver; in a container, start it with --gpus all",
        ).optional()
    elif answer.gpus:
        for one in answer.gpus:
            memory = f"{one.free / 2**30:.0f} of {one.total / 2**30:.0f} GiB free"
            yield Finding(f"GPU {one.index}", "ok", f"{one.name}, driver {one.driver}, {memory}")
    elif _DRIVER.exists():
        yield Finding(
            "GPU",
            "warning",
            "there is an NVIDIA driver, but no nvidia-smi",
            "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all …",
        )
    else:
        yield Finding("GPU", "hint", "no NVIDIA GPU here: frames are rendered in software")


def _parsed(line: str) -> Gpu | None:
    """A GPU, or None for a warning between them."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != _QUERY.count(",") + 1 or not parts[0].isdecimal():
        return None
    index, name, driver, total, free = parts
    return Gpu(int(index), name, driver, _mebibytes(total), _mebibytes(free))


def _mebibytes(text: str) -> int:
    """Some GPUs share the host's memory and say [N/A]."""
    return int(text) * 2**20 if text.isdecimal() else 0
