"""What the fault tests share: deadlines instead of sleeps, and a look at the engine's board."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyarm.vector.board import Doing, Phase

sys.path.append(str(Path(__file__).parent))  # for evaluation_faults, which workers import too
SOURCES = Path(__file__).parents[2] / "src"


def wait_until(predicate: Callable[[], Any], within_s: float = 20.0, what: str = "") -> Any:
    """Poll until the predicate holds; its value."""
    deadline = time.monotonic() + within_s
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what or predicate}"
        time.sleep(0.005)
    return value


def running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :][:1] not in (b"Z", b"X")


class Probe:
    """Looks into a running vector env."""

    wait_until = staticmethod(wait_until)
    running = staticmethod(running)

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self.engine = envs._engine

    def pid(self, slot: int) -> int:
        """Pid of the slot's worker, whose pid may come after its first answer.

        Never 0: a signal to that is one to all of us.
        """
        worker = self.engine._owner[slot]
        wait_until(lambda: worker.pid or self.engine._serve(0.01) or worker.pid)
        return int(worker.pid)

    @property
    def server_pid(self) -> int:
        return int(self.engine._server._process.pid)

    def zygote_pids(self) -> list[int]:
        """Children of the fork server that are not workers."""
        text = Path(f"/proc/{self.server_pid}/task/{self.server_pid}/children").read_text()
        return [int(pid) for pid in text.split() if int(pid) not in self.envs.worker_pids]

    def wait_for_phase(self, slot: int, phase: Phase, within_s: float = 20.0) -> None:
        """Wait until the slot's worker is in a call of this phase, for this slot."""
        record = self.engine.board.workers[self.engine._owner[slot].index]
        wait_until(
            lambda: record[Doing.PHASE] == phase and record[Doing.SLOT] == slot,
            within_s,
            f"slot {slot} in phase {phase.name}",
        )

    def actions(self, *chunk: int) -> np.ndarray:
        """Actions for all slots, zero."""
        return np.zeros((self.envs.num_envs, *chunk, 2), np.float32)

    def step_until(self, done: Callable[[tuple], Any], steps: int = 200) -> Any:
        """Step until ``done`` says something of a result."""
        for _ in range(steps):
            if value := done(self.envs.step(self.actions())):
                return value
        raise AssertionError(f"not within {steps} steps")


@pytest.fixture
def probe() -> type[Probe]:
    return Probe


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., Any]:
    return wait_until


@pytest.fixture(name="running")
def running_fixture() -> Callable[[int], bool]:
    return running


def python_path() -> str:
    """Where this package is, and what the test has put on the path."""
    return os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])


class Script(subprocess.Popen):
    """A trainer of its own in a session of its own; its lines arrive by pipe."""

    def __init__(self, arguments: list[str], **options: Any) -> None:
        super().__init__(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"},
            **options,
        )

    def line(self) -> str:
        """The next line; fails with the script's stderr if it ended instead."""
        line = self.stdout.readline()
        assert line, self.stderr.read()
        return line.strip()

    def finish(self, within_s: float = 60.0) -> str:
        """Everything it still has to say; fails unless it ends well."""
        out, err = self.communicate(timeout=within_s)
        assert self.returncode == 0, f"status {self.returncode}\n{out}\n{err}"
        return out

    def tree(self) -> set[int]:
        """Pids of all its descendants."""
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    stat = Path(f"/proc/{name}/stat").read_text()
                except OSError:
                    continue
                parents[int(name)] = int(stat.rsplit(")", 1)[1].split()[1])
        found = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.pid}


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """Start a trainer from source; whatever is left of it is killed."""
    started: list[Script] = []

    def start(source: str, *, name: str = "trainer.py", **options: Any) -> Script:
        file = tmp_path / name
        file.write_text(textwrap.dedent(source))
        started.append(Script([str(file)], **options))
        return started[-1]

    yield start
    for script in started:
        if script.poll() is None:
            script.kill()
        with suppress(subprocess.TimeoutExpired):  # what it has left running holds the pipes
            script.communicate(timeout=20)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an evaluation that misbehaves looks up how to."""
    from evaluation_faults import PLAN

    path = tmp_path / "plan.json"
    monkeypatch.setenv(PLAN, str(path))
    return path
