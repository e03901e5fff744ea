"""A rank ends when what has started it is gone, however that went."""

from __future__ import annotations

import contextlib
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


def watch_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """End this process when torchrun or `srun`, if it was started by one of them, ends.

    It gets SIGTERM, so that it can finish what it is writing, and is ended for good `GRACE_S`
    later. Whatever its workers are, the fork server ends them when this process is gone.
    """
    launcher = launcher_pid(environment)
    if launcher is None:
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
    while pid > 1 and _has(pid, f"{mark}={environment[mark]}"):
        pid = _parent(pid)
    return pid


def _wait(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()
    os.close(fd)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    # A journal's line is one write: it is there or it is not, and what is torn is cut off later.
    os._exit(LAUNCHER_GONE)


def _has(pid: int, variable: str) -> bool:
    with contextlib.suppress(OSError):  # one of root's, such as SLURM's own
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
