"""Starts a worker in a fresh Python, which may be another one than the trainer's.

By ``posix_spawn``: between a fork and an exec, no Python runs, so this is safe whatever threads the
fork server has.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path

from polyarm.vector.orders import Start

# What a Python with packages of its own runs: it is to find this polyarm, but nothing beside it.
_PACKAGE = str(Path(__file__).absolute().parents[1])
_FOREIGN_START = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("polyarm", {0!r} + "/__init__.py")
sys.modules["polyarm"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from polyarm.vector.worker import main
main()
"""


def spawn(start: Start, kept: tuple[int, ...], search_path: list[str]) -> int:
    """Start a worker; it takes its own session, and dies with this process.

    Args:
        start: What the trainer has asked for.
        kept: Descriptors that workers inherit.
        search_path: The trainer's ``sys.path``; another Python has packages of its own.

    Returns:
        The worker's pid.

    Raises:
        OSError: That Python cannot be started.
    """
    other = start.message["interpreter"]
    plan_fd = os.memfd_create("polyarm-plan")
    doorbell_fd, stderr_fd = start.hand_over()
    fds = (plan_fd, *kept, doorbell_fd)
    environment = {**os.environ, **start.message["environment"]}
    # -P keeps files of the working folder from hiding the standard library.
    python, code = sys.executable, ["-m", "polyarm.vector.worker"]
    if other is not None:
        python, code = other, ["-c", _FOREIGN_START.format(_PACKAGE)]
        environment.pop("PYTHONPATH", None)
    try:
        with open(plan_fd, "wb", closefd=False) as file:
            pickle.dump((None if other else search_path, start.message["plan"]), file)
        os.lseek(plan_fd, 0, os.SEEK_SET)
        for fd in fds:
            os.set_inheritable(fd, True)
        return os.posix_spawn(
            python,
            [python, "-P", *code, str(os.getpid()), *map(str, fds)],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, stderr_fd, 2)],
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD),
        )
    finally:
        for fd in kept:
            os.set_inheritable(fd, False)
        for fd in (plan_fd, doorbell_fd, stderr_fd):
            os.close(fd)
