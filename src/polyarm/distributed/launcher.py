"""A rank ends when what has started it is gone, however that went."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from polyarm.display.rank import in_slurm_step

GRACE_S = 3.0
"""Seconds that a rank has to end by itself, unless it is inside of a call that does not return."""
LAUNCHER_GONE = 75
"""Exit code of one that had not; the job is to be started again."""
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun, and nobody else, gives its ranks."""

_log = logging.getLogger(__name__)


def watch_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """End this process when torchrun or `srun`, if it was started by one of them, ends.

    It gets SIGTERM, so that it can finish what it is writing, and is ended for good `GRACE_S`
    later. Whatever its workers are, the fork server ends them when this process is gone.
    """
    launcher = launcher_pid(environment)
    if launcher is None:
        return
    if TORCHRUN in environment and _has_adopted(launcher, environment):
        _log.warning("torchrun has ended while this rank started, and so does the rank")
        os.kill(os.getpid(), signal.SIGTERM)
        return
    try:
        fd = os.pidfd_open(launcher)
    except ProcessLookupError:  # it has just ended
        os.kill(os.getpid(), signal.SIGTERM)
        return
    except OSError:  # a kernel without pidfds: nothing can be watched
        return
    threading.Thread(target=_wait, args=(fd,), name="polyarm-launcher", daemon=True).start()


def launcher_pid(environment: Mapping[str, str] = os.environ) -> int | None:
    """The process of torchrun or `srun` that has started this one; None if neither has.

    It is the nearest ancestor that is no rank itself: scripts between the two have its variables.
    """
    mark = TORCHRUN
    if mark not in environment:
        if not in_slurm_step(environment):
            return None
        mark = "SLURM_PROCID"
    pid = os.getppid()
    while pid > 1 and _has(pid, mark, environment):
        pid = _parent(pid)
    return pid


def _has_adopted(pid: int, environment: Mapping[str, str]) -> bool:
    """Whether a process has this rank from torchrun, which has ended, as init gets all orphans.

    In a container torchrun itself may be the first process, or a script that it runs.
    """
    if pid != 1 and _read(pid, "comm") != b"systemd\n":
        return False
    return not _has(pid, TORCHRUN, environment) and b"torch" not in _read(pid, "maps")


def _wait(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()
    os.close(fd)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    # A journal's line is one write: it is there or it is not, and what is torn is cut off later.
    os._exit(LAUNCHER_GONE)


def _has(pid: int, variable: str, environment: Mapping[str, str]) -> bool:
    """Whether a process was started with this variable, as it is in the environment."""
    return f"{variable}={environment[variable]}".encode() in _read(pid, "environ").split(b"\0")


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):  # it has ended, or is one of root's, such as SLURM's own
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
