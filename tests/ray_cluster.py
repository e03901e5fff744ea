"""A real Ray cluster of several nodes on this machine, for tests; nothing of it is left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from polyarm.distributed.ray.guard import MARK, marked

SOURCES = Path(__file__).parents[1] / "src"
STORE_NBYTES = 80 << 20
# A node that is gone is missed within two seconds, not twenty.
HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
PLAYING = ("ray::EvalNode", "ray::EnvNode", "ray::PolicyServer", "polyarm.vector.forkserver")


class Nodes:
    """Nodes of one core each; the first is the head.

    Args:
        folder: Ray's files go here.
    """

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        self._cluster = Cluster()
        self.added: list[Any] = []
        self.add(_system_config=HEALTH)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, **how: Any) -> Any:
        """One node more; what it offers need not be there."""
        with own_signals():
            node = self._cluster.add_node(
                num_cpus=1, object_store_memory=STORE_NBYTES, include_dashboard=False, **how
            )
        self.added.append(node)
        return node

    def kill(self, node: Any) -> None:
        """As a power cut would."""
        self._cluster.remove_node(node, allow_graceful=False)

    def playing(self, within_s: float = 20.0) -> dict[int, str]:
        """Actors and engines of ours that do not end within so long; by their commands.

        Ray asks actors to end, and runs them at nice 15: beside other work they take seconds.
        """
        return remains(self._folder, *PLAYING, within_s=within_s)

    def close(self) -> None:
        self._cluster.shutdown()


def remains(folder: str, *names: str, within_s: float) -> dict[int, str]:
    """Commands of a cluster's processes that do not end within so long.

    Args:
        folder: The cluster's.
        names: Only commands that have one of these in them; all without any.
        within_s: How long they have.
    """
    deadline = time.monotonic() + within_s
    while found := {
        pid: command
        for pid in marked(folder)
        if pid != os.getpid() and (command := _command(pid))
        if not names or any(name in command for name in names)
    }:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):  # it ended meanwhile
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return command or Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def fail_on_remains(folder: str, within_s: float = 10.0) -> None:
    """Fail if anything of a cluster that has ended still runs, and end it.

    Those that it orphaned descend from nobody here, and titles that Ray's processes give themselves
    may have written over the mark that all tests have in their environment.
    """
    found = remains(folder, within_s=within_s)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if found:
        lines = [f"  {pid} {command}" for pid, command in found.items()]
        pytest.fail("\n".join(["the Ray cluster left behind:", *lines]), pytrace=False)


def own_signals() -> Any:
    """Keep Ray from handling SIGTERM for all of us."""
    return mock.patch("ray._private.utils.set_sigterm_handler")


@contextlib.contextmanager
def ray_cluster() -> Iterator[Nodes]:
    """A cluster of one node that this process is connected to."""
    import ray

    # Ray's sockets must have short names, and its token belongs in nobody's home folder.
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [str(SOURCES), str(Path(__file__).parent), inherited]))
    settings = {
        "PYTHONPATH": path,
        MARK: folder,
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    Path(folder, "ray").mkdir()
    nodes = None
    try:
        nodes = Nodes(folder)
        with own_signals():
            ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
        yield nodes
    finally:
        ray.shutdown()
        if nodes is not None:
            nodes.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        try:
            fail_on_remains(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
