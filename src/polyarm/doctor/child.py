"""Child processes for whatever may crash, hang or load a driver; each has a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    Attributes:
        status: Its exit code, negative for a signal, None if it was killed at its deadline.
        stdout: What it wrote.
        stderr: What it complained.
        seconds: How long it ran.
    """

    status: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def complaint(self) -> str:
        """Why it failed, in a line; "" if it did not."""
        if self.status == 0:
            return ""
        if self.status is None:
            return f"no answer within {self.seconds:.0f} s"
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with {self.ending}"

    @property
    def ending(self) -> str:
        """Its exit status, or the name of the signal that ended it."""
        if self.status is not None and self.status < 0:
            return signal.Signals(-self.status).name
        return f"code {self.status}"


def run(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a command; at the deadline it is killed with all it has started.

    Raises:
        OSError: There is no such program.
    """
    began = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if environment is None else dict(environment),
        start_new_session=True,
        text=True,
        errors="replace",
    ) as process:
        status: int | None
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
            status = process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            stdout, stderr = process.communicate()
            status = None
        except BaseException:  # Ctrl-C: the child has a session of its own and did not get it
            _kill(process)
            raise
    return Ended(status, stdout, stderr, time.monotonic() - began)


def run_python(script: str, *arguments: str, timeout_s: float) -> Ended:
    """Run a script, or a file of ours, with the standard library alone."""
    code = [script] if script.endswith(".py") else ["-c", script]
    return run([sys.executable, "-I", "-S", *code, *arguments], timeout_s)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.killpg(process.pid, signal.SIGKILL)
