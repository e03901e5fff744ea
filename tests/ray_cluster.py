"""A real Ray cluster of several nodes on this machine, for tests; nothing of it is left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SOURCES = Path(__file__).parents[1] / "src"
STORE_NBYTES = 80 << 20
# A node that is gone is missed within two seconds, not twenty.
HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """Nodes of one core each; the first is the head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self.added: list[Any] = []
        self.add(_system_config=HEALTH)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, **how: Any) -> Any:
        """One node more."""
        with own_signals():
            node = self._cluster.add_node(
                num_cpus=1, object_store_memory=STORE_NBYTES, include_dashboard=False, **how
            )
        self.added.append(node)
        return node

    def kill(self, node: Any) -> None:
        """As a power cut would."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


def engines(within_s: float = 3.0) -> list[str]:
    """Fork servers of this test run that do not end within so long."""
    deadline = time.monotonic() + within_s
    while found := _fork_servers():
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return found


def _fork_servers() -> list[str]:
    mark = os.environ["POLYARM_TEST_RUN"].encode()
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended meanwhile
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
            ours = mark in Path(f"/proc/{entry}/environ").read_bytes()
            if ours and b"polyarm.vector.forkserver" in command:
                found.append(entry)
    return found


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
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    Path(folder, "ray").mkdir()
    nodes = None
    try:
        nodes = Nodes()
        with own_signals():
            ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
        yield nodes
    finally:
        ray.shutdown()
        if nodes is not None:
            nodes.close()
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
