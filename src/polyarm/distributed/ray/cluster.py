"""The connection to a Ray cluster: one that runs, or one of this machine alone for one run.

Ray is imported here, when it is first needed, and nowhere else at the top of a module.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyarm.distributed.ray.guard import Guard
from polyarm.distributed.ray.placement import Node
from polyarm.errors import InvalidCall, MissingExtra

_log = logging.getLogger("polyarm")

_TOKEN = uuid.uuid4().hex
"""Lets nobody but this process use the cluster that it has started; Ray reads it once."""
_CONNECT_S = 5.0
_LONGEST_FOLDER = 30
"""Ray makes sockets below its folder, whose paths may have no more than 107 letters."""


def ray_library() -> Any:
    """The module ``ray``.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            f"running on a cluster needs Ray ({error}): pip install 'polyarm[ray]'"
        ) from error
    return ray


def why(error: Any) -> Exception:
    """What an actor's call has raised there, of Ray's ``RayTaskError``."""
    cause = error.cause
    if isinstance(cause, ray_library().exceptions.RaySystemError):
        return MissingExtra(
            f"what is sent there cannot be read ({last_line(cause)}): the modules that policies"
            f" and envs come from must be importable on all nodes"
        )
    return cause if isinstance(cause, Exception) else Exception(str(error))


def last_line(error: Exception) -> str:
    """Of what Ray says at length, what went wrong."""
    return str(error).strip().splitlines()[-1].strip()


class Cluster:
    """A connection; closing it ends what was started for it, and nothing else.

    Args:
        where: ``auto`` for the cluster that runs (``RAY_ADDRESS``, or the one of this machine; in
            a program that is connected already, that connection), ``local`` to start one on this
            machine until it is closed, or an address.

    Raises:
        InvalidCall: There is no such cluster.
        MissingExtra: Ray is not installed.
    """

    def __init__(self, where: str) -> None:
        self.ray = ray = ray_library()
        self._ours = not ray.is_initialized()
        self._undo = contextlib.ExitStack()
        if not self._ours:
            address = ray.get_runtime_context().gcs_address
            if where not in ("auto", address):
                raise InvalidCall(
                    f"this program is connected to a Ray cluster already, at {address}, and is"
                    f" asked for {where!r}: use 'auto', or call ray.shutdown() first"
                )
            return
        if where.startswith("ray://"):
            raise InvalidCall(
                f"{where} is an address for Ray's client; run polyarm on a node of the cluster and"
                f" use its own address, as `ray status` or ray='auto' knows it"
            )
        with _own_signals():
            try:
                _hush(self._undo)
                if where == "local":
                    self._start()
                else:
                    _require_listener(where)
                    ray.init(address=where, **_TERSE)
            except Exception as error:  # Ray raises bare ones where it is slow to start
                self.close()
                raise InvalidCall(_why_not(where, error)) from error
            except BaseException:
                self.close()
                raise

    def nodes(self) -> list[Node]:
        """The nodes that are alive and have cores."""
        alive = [Node.of(each) for each in self.ray.nodes() if each["Alive"]]
        return [node for node in alive if node.cpus >= 1]

    def on(self, node: Node) -> Any:
        """The strategy that puts an actor on this node and nowhere else."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)

    def close(self) -> None:
        """Disconnect; ends the cluster if it is this run's own."""
        if self._ours:
            with _own_signals():
                self.ray.shutdown()
            self._undo.close()

    def _start(self) -> None:
        base = tempfile.gettempdir()
        base = base if len(base) <= _LONGEST_FOLDER else "/tmp"
        folder = tempfile.mkdtemp(prefix="polyarm-ray-", dir=base)
        guard = Guard(Path(folder))
        self._undo.callback(guard.dismiss)
        names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
        # It is ours alone: its workers need not step back behind everybody else's (nice 15).
        settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        before = {name: os.environ.get(name) for name in (*names, *settings)}
        self._undo.callback(_restore, before)
        os.environ.update(settings)
        if not any(before[name] for name in names):
            # Else Ray makes a token, leaves it in the home folder, and says so at length.
            os.environ["RAY_AUTH_TOKEN"] = _TOKEN
        with guard.recruiting():
            self.ray.init(address="local", include_dashboard=False, _temp_dir=folder, **_TERSE)


_TERSE: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def _require_listener(where: str) -> None:
    """Fail soon where nobody listens: Ray itself tries for minutes.

    Raises:
        OSError: Nobody does, at an address that was given.
    """
    address = os.environ.get("RAY_ADDRESS", "") if where == "auto" else where
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # Ray says what is wrong with it
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OverflowError as error:
        raise ValueError(f"{address}: {error}") from None
    except OSError as error:
        raise ConnectionError(f"{address}: {error}") from error


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _why_not(where: str, error: Exception) -> str:
    if where == "auto":
        return (
            f"no Ray cluster was found ({error}): start one with `ray start --head`, set"
            f" RAY_ADDRESS, or use --ray local"
        )
    if where == "local":
        return f"Ray could not be started on this machine: {error}"
    return f"no Ray cluster answers at {where} ({error}); give auto, local or HOST:PORT"


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our handler of SIGTERM: Ray puts its own in its place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _hush(until: contextlib.ExitStack) -> None:
    """Keep what Ray says about its nodes off the terminal, where a table is; into our log instead.

    Ray prints this whatever ``log_to_driver`` says.
    """
    from ray._private import worker

    printed = getattr(worker, "print_to_stdstream", None)
    if printed is None:
        return

    def note(data: dict[str, Any], *_: Any, **__: Any) -> None:
        _log.debug("ray: %s", "\n".join(data.get("lines", ())))

    worker.print_to_stdstream = note
    until.callback(setattr, worker, "print_to_stdstream", printed)
