"""A zygote: a process that imports a suite, or builds envs without GL, and then only forks.

User code runs here and in workers, never in the fork server, so a constructor that hangs or
crashes costs one zygote. A zygote has one thread and never a GL context; everything it forks is
adopted by the fork server.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from polyarm.vector import process
from polyarm.vector.channel import Channel, Message
from polyarm.vector.raised import describe_error

_TOGETHER = 8
"""Workers forked with one process in between, which costs as much as one of them; and then they
begin, while the next ones are forked."""


class Zygote:
    """Serves the fork server's requests; one reply each, in order.

    Args:
        channel: Connection to the fork server.
        server: Pid of the fork server, parent of everything forked here.
        kept: Descriptors that workers inherit: block, mail, completions, built.
    """

    def __init__(self, channel: Channel, server: int, kept: tuple[int, ...]) -> None:
        self._channel = channel
        self._server = server
        self._kept = kept
        self._envs: list[Any] | None = None

    def serve(self) -> None:
        """Answer requests until the fork server goes away."""
        while (messages := self._channel.receive()) is not None:
            for batch in self._batches(messages):
                for answer in self._answers(batch):
                    self._channel.send(answer)

    def _batches(self, messages: list[Message]) -> Iterator[list[Message]]:
        """Requests one by one; workers together with those for which requests are just arriving."""
        if messages[0]["op"] == "worker":
            while len(messages) < _TOGETHER and self._channel.has_arrived():
                if (more := self._channel.receive()) is None:
                    break
                messages += more
        for op, some in groupby(messages, itemgetter("op")):
            if op == "worker":
                yield list(some)
            else:
                yield from ([one] for one in some)

    def _answers(self, batch: list[Message]) -> list[Message]:
        """One for each request of a batch."""
        op = batch[0]["op"]
        handlers: dict[str, Callable[[Message], Message]] = {
            "preload": self._preload,
            "build": self._build,
            "zygote": self._fork_zygote,
            "spare": self._fork_spare,
        }
        try:
            found = self._fork_workers(batch) if op == "worker" else [handlers[op](batch[0])]
        except BaseException as error:  # noqa: BLE001  reported to the trainer, which decides
            return [{"ok": False, "kind": "exception", **describe_error(error)}] * len(batch)
        return [{"ok": True, **each} for each in found]

    def _preload(self, message: Message) -> Message:
        from polyarm import registry
        from polyarm.vector import worker  # noqa: F401  imported here once for all forks

        os.environ.update(message["environment"])
        gc.disable()  # imports leave next to no garbage, and looking for it takes a tenth of them
        try:
            for location, spec in pickle.loads(message["specs"]):
                registry.load(location).preload(spec)
        finally:
            gc.enable()
        gc.freeze()
        return {"threads": process.thread_count()}

    def _build(self, message: Message) -> Message:
        from polyarm.vector.building import build

        envs = []
        for plan in pickle.loads(message["plan"]).slots:
            self._channel.send({"ok": True, "building": plan.index})
            envs.append(build(plan))
        self._envs = envs
        gc.collect()
        gc.freeze()  # out of the collector's sight, so that forks share its pages
        return {"threads": process.thread_count()}

    def _fork_zygote(self, message: Message) -> Message:
        sock_fd, stderr_fd = message["fds"]

        def main() -> None:
            self._become_child(stderr_fd, (sock_fd, *self._kept), "polyarm-zygote")
            sock = socket.socket(fileno=sock_fd)
            child = Zygote(Channel(sock, blocking=True), self._server, self._kept)
            child.serve()

        return self._fork([main], message["fds"])[0]

    def _fork_workers(self, batch: list[Message]) -> list[Message]:
        mains = [partial(self._be_worker, message) for message in batch]
        return self._fork(mains, [fd for message in batch for fd in message["fds"]])

    def _be_worker(self, message: Message) -> None:
        from polyarm.vector.worker import WorkerFds, run_worker, settle

        doorbell_fd, stderr_fd = message["fds"]
        self._become_child(stderr_fd, (doorbell_fd, *self._kept), "polyarm-worker")
        settle()
        plan = pickle.loads(message["plan"])
        run_worker(plan, WorkerFds(*(*self._kept, doorbell_fd)), self._envs)

    def _fork_spare(self, message: Message) -> Message:
        sock_fd, stderr_fd = message["fds"]

        def main() -> None:
            from polyarm.vector.worker import WorkerFds, be_spare, run_worker

            self._become_child(stderr_fd, (sock_fd, *self._kept), "polyarm-spare")
            be_spare()
            channel = Channel(socket.socket(fileno=sock_fd), blocking=True)
            orders = channel.receive()
            if orders is not None:
                (doorbell_fd,) = orders[0]["fds"]
                plan = pickle.loads(orders[0]["plan"])
                channel.close()
                run_worker(plan, WorkerFds(*(*self._kept, doorbell_fd)), self._envs)

        return self._fork([main], message["fds"])[0]

    def _fork(self, mains: Sequence[Callable[[], object]], fds: list[int]) -> list[Message]:
        try:
            if (threads := process.thread_count()) != 1:
                return [{"threads": threads}] * len(mains)
            return [{"threads": 1, "pid": pid} for pid in process.fork_detached(mains)]
        except OSError as error:  # the host's fault; this process is as good as before
            return [{"threads": 1, "message": f"cannot fork: {error}"}] * len(mains)
        finally:
            for fd in fds:
                os.close(fd)

    def _become_child(self, stderr_fd: int, keep: tuple[int, ...], name: str) -> None:
        process.die_with(self._server)
        enter(stderr_fd, keep, name)


def enter(stderr_fd: int, keep: tuple[int, ...], name: str) -> None:
    """First steps of a forked process: own session, captured stderr, nothing else inherited."""
    os.setsid()
    os.dup2(stderr_fd, 2)
    process.close_all_but(keep)
    process.set_name(name)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(file=2, all_threads=True)


def run_zygote(sock: socket.socket, server: int, kept: tuple[int, ...], stderr_fd: int) -> None:
    """Body of a zygote forked by the fork server itself."""
    process.die_with(server)
    enter(stderr_fd, (sock.fileno(), *kept), "polyarm-zygote")
    process.be_expendable()
    sys.stdin = open(os.devnull)  # noqa: SIM115  lives as long as the process
    Zygote(Channel(sock, blocking=True), server, kept).serve()
