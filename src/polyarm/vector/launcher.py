"""The trainer's handle on its fork server: started by exec, spoken to over a socket."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import cloudpickle

from polyarm.errors import ClosedEnv, ForkServerDied, HostLimit
from polyarm.vector import host
from polyarm.vector.channel import Channel, Message
from polyarm.vector.plans import WorkerPlan
from polyarm.vector.workerstate import WorkerOptions

# -P keeps files of the working folder from hiding the standard library.
_SERVER = (sys.executable, "-P", "-m", "polyarm.vector.forkserver")
_LINGER_S = 8.0
_PATIENCE_S = 30.0


class ForkServerProcess:
    """A running fork server.

    Args:
        fds: Block, mail and completion descriptors, which workers inherit.
        options: How workers are started and how long they may take.
    """

    def __init__(self, fds: tuple[int, int, int], options: WorkerOptions) -> None:
        self.dead: ForkServerDied | HostLimit | ClosedEnv | None = None
        self._closing = False
        folder = _folder()
        with host.kernel_gives("pidfds"):
            pidfd = os.pidfd_open(os.getpid())
            signal.pidfd_send_signal(pidfd, 0)  # may they be used as well?
        ours, theirs = Channel.pair()
        try:
            # subprocess execs: no state of this process, and none of its threads, is inherited.
            self._process = subprocess.Popen(
                [*_SERVER, str(theirs.fileno()), str(pidfd)],
                pass_fds=(theirs.fileno(), pidfd),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **options.environment, "PYTHONPATH": _package_path()},
            )
        except BlockingIOError as error:
            ours.close()
            raise HostLimit(
                f"no process can be started, not even the fork server ({error.strerror}): end"
                f" others, or {host.how_to_raise('nproc', 'unlimited')}"
            ) from error
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(pidfd)
            theirs.close()
        self.channel = Channel(ours, blocking=False)
        self.send(
            {
                "search_path": [folder if entry == "" else entry for entry in sys.path],
                "folder": folder,
                "max_builds": host.cores(),
                "memory_limit": options.memory_limit,
                "shared_screen": options.x_server == "shared",
            },
            tuple(os.dup(fd) for fd in fds),
        )

    def start_worker(self, plan: WorkerPlan, doorbell: int, options: WorkerOptions) -> None:
        """Ask for a worker; what comes of it arrives as an event."""
        mode = options.mode
        specs = cloudpickle.dumps([(slot.location, slot.spec) for slot in plan.slots])
        locations = sorted({slot.location for slot in plan.slots})
        self.send(
            {
                "op": "start",
                "worker": plan.worker,
                "generation": plan.generation,
                "mode": {"built": "built", "imports": "imports", "never": "fresh"}[mode],
                "imports_key": tuple(locations) if mode == "built" else _digest(specs),
                "build_key": _digest(specs),
                "specs": specs,
                "plan": cloudpickle.dumps(plan),
                "environment": dict(options.environment),
                "build_timeout_s": options.build_timeout_s,
                "interpreter": options.interpreter,
            },
            (os.dup(doorbell),),
        )

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message to the server.

        Raises:
            ForkServerDied: If it is gone.
        """
        try:
            self.channel.send(message, fds)
            end = time.monotonic() + _PATIENCE_S
            poll = select.poll()
            poll.register(self.channel.fileno(), select.POLLOUT)
            while not self.channel.flush():
                if time.monotonic() > end:
                    raise TimeoutError("the fork server takes no messages")
                poll.poll(100)
        except OSError as error:
            raise self.death() from error

    def receive(self) -> list[Message]:
        """Events of the server that have arrived; never waits.

        Raises:
            ForkServerDied: If it is gone.
            HostLimit: There is no room for a descriptor that it has sent.
        """
        try:
            messages = self.channel.receive()
        except HostLimit as error:  # and what it came with is lost, too
            self.dead = error
            raise
        if messages is None:
            raise self.death()
        return messages

    def death(self) -> ForkServerDied | HostLimit | ClosedEnv:
        """An error that says how the server ended; the same one from then on."""
        if self.dead is not None:
            return self.dead
        if self._closing:
            self.dead = ClosedEnv("this env was closed during the call, by another thread")
            return self.dead
        status: int | str = "unknown"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(1.0)
        self.dead = ForkServerDied(
            f"the fork server (pid {self._process.pid}) ended with status {status}, and all workers"
            f" with it; close this env and make a new one"
        )
        return self.dead

    def close(self) -> None:
        """End the server and everything below it; gives up on the unkillable with a warning."""
        self._closing = True
        with contextlib.suppress(OSError):
            self.channel.send({"op": "close"})
        with contextlib.suppress(OSError):
            self.channel.sock.shutdown(socket.SHUT_WR)  # says the same to one that reads no more
        try:
            self._process.wait(_LINGER_S)
            alive = self._left_behind()
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            alive = f"the fork server (pid {self._process.pid}) could not end all its workers"
        finally:
            self.channel.close()
        if alive:
            warnings.warn(f"{alive}; leaving them behind", ResourceWarning, stacklevel=2)

    def _left_behind(self) -> str:
        """What the server could not end, by its last message."""
        pids: list[int] = []
        with contextlib.suppress(HostLimit):  # no room for a descriptor that nobody wants any more
            while messages := self.channel.receive():
                for message in messages:
                    pids += message.get("pids", [])
                    for fd in message["fds"]:
                        os.close(fd)
        return f"processes {pids} do not die of SIGKILL" if pids else ""


def _folder() -> str:
    """The working folder; somebody may have deleted it."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _package_path() -> str:
    """A PYTHONPATH by which the server finds this very copy of polyarm."""
    import polyarm

    home = str(Path(polyarm.__file__ or "").absolute().parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([home, inherited]) if inherited else home
