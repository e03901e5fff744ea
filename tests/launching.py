"""Commands that run as several ranks: under a real torchrun, or side by side as SLURM does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src"


def environment() -> dict[str, str]:
    """What a command needs to find this package and the tests' own tasks."""
    path = os.pathsep.join([str(SOURCES), str(TESTS / "faults")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


class Command(subprocess.Popen):
    """``polyarm …`` in a session of its own, killed at the latest when its block ends."""

    def __init__(self, words: Sequence[str], variables: dict[str, str], folder: Path) -> None:
        super().__init__(
            [sys.executable, "-m", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,
            env={**environment(), **variables},
        )

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.kill()
        with suppress(subprocess.TimeoutExpired):  # what it has left running holds the pipes
            self.communicate(timeout=20)

    def end(self, within_s: float = 120.0) -> tuple[int, str, str]:
        """Its exit code, stdout and stderr."""
        out, err = self.communicate(timeout=within_s)
        return self.returncode, out, err


def torchrun(ranks: int, *arguments: str, folder: Path) -> Command:
    """Start ``torchrun --nproc_per_node=<ranks> -m polyarm …``."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return Command([*launcher, "-m", "polyarm", *arguments], {}, folder)


@contextmanager
def side_by_side(variables: Sequence[dict[str, str]], *arguments: str, folder: Path) -> Any:
    """Start one process for each set of variables; gives the processes."""
    with ExitStack() as stack:
        words = ["polyarm", *arguments]
        yield [stack.enter_context(Command(words, each, folder)) for each in variables]


def srun(tasks: int) -> list[dict[str, str]]:
    """Variables of the processes of a step, as srun sets them."""
    return [
        {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task),
            "SLURM_NTASKS": str(tasks),
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_TASKS_PER_NODE": str(tasks),
            "SLURM_NODEID": "0",
            "SLURM_STEP_NODELIST": "node7",
        }
        for task in range(tasks)
    ]


def array(count: int) -> list[dict[str, str]]:
    """Variables of the tasks of an array job, which run in batch scripts, without srun."""
    return [
        {
            "SLURM_JOB_ID": str(4711 + task),
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_NTASKS": "1",
            "SLURM_ARRAY_JOB_ID": "4711",
            "SLURM_ARRAY_TASK_ID": str(task + 1),
            "SLURM_ARRAY_TASK_MIN": "1",
            "SLURM_ARRAY_TASK_MAX": str(count),
            "SLURM_ARRAY_TASK_COUNT": str(count),
        }
        for task in range(count)
    ]


def journals(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The whole lines of every rank's journal."""
    return {
        path.name: [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        for path in out.glob("episodes*.jsonl")
    }


def lines(out: Path) -> int:
    """Whole lines in all journals."""
    return sum(map(len, journals(out).values()))


def assert_each_once(out: Path, episodes: int) -> None:
    """Every episode is in the journals, and none is twice."""
    found = Counter(
        (line["policy"], line["task"], line["index"], line["repeat"])
        for written in journals(out).values()
        for line in written
    )
    assert len(found) == episodes
    assert set(found.values()) == {1}, found
