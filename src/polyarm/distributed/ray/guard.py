"""Sees that a Ray cluster of one run ends with it, however that ends: a process of its own.

Ray's main processes end with the one that started them; some of their helpers try for a minute to
tell a cluster that is gone. The guard waits for the end of its standard input, which is when the
run closes it or is no more, and then ends what is left of the cluster and removes its folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "POLYARM_RAY_FOLDER"
"""Variable in the environment of all processes of the cluster: its folder."""
_PATIENCE_S = 10.0
_AGAIN_S = 0.05
_EMPTY_LOOKS = 10
"""A process that is just being started shows no environment for a moment."""


class Guard:
    """Guards a cluster until it is dismissed.

    Args:
        folder: The cluster's.
    """

    def __init__(self, folder: Path) -> None:
        # A session of its own: Ctrl-C is for the run.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "polyarm.distributed.ray.guard", str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._folder = str(folder)

    @contextlib.contextmanager
    def recruiting(self) -> Iterator[None]:
        """Processes that are started meanwhile, and what they start later, are the cluster's."""
        os.environ[MARK] = self._folder
        try:
            yield
        finally:
            del os.environ[MARK]

    def dismiss(self) -> None:
        """Wait until nothing of the cluster is left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * _PATIENCE_S)


def marked(folder: str) -> list[int]:
    """Processes that belong to the cluster of this folder."""
    mark = f"{MARK}={folder}\0".encode()
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            # A process that has given itself a title may have written over its environment.
            if mark in Path(f"/proc/{entry}/environ").read_bytes() or _writes_to(folder, entry):
                found.append(int(entry))
    return found


def _writes_to(folder: str, pid: str) -> bool:
    """Whether a process has a file of this folder open, such as a log."""
    descriptors = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith(f"{folder}/"):
                return True
    return False


def main() -> None:
    """Entry: ``python -m polyarm.distributed.ray.guard <folder>``."""
    folder, run = sys.argv[1], os.getppid()
    sys.stdin.buffer.read()
    deadline, empty = time.monotonic() + _PATIENCE_S, 0
    while empty < _EMPTY_LOOKS and time.monotonic() < deadline:
        left = [pid for pid in marked(folder) if pid != run]
        empty = 0 if left else empty + 1
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
