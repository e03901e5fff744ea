"""The fork server: starts, watches, reaps and kills every process of one vector env.

It is exec'd as a session of its own, has one thread, runs no user code and imports no simulator.
It is the subreaper of all its descendants and watches the trainer's pidfd: when the trainer ends,
however it ends, everything below goes too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass

from polyarm.display import xvfb
from polyarm.display.xvfb import SharedScreen
from polyarm.errors import HostLimit
from polyarm.vector import host, interpreter, process
from polyarm.vector.admission import Admission
from polyarm.vector.capture import Capture
from polyarm.vector.channel import Channel, Message
from polyarm.vector.memory_limit import MemoryLimit
from polyarm.vector.nursery import Nursery
from polyarm.vector.orders import Start
from polyarm.vector.watcher import Watcher

_MEMORY_CHECK_S = 0.2
_FAREWELL_S = 5.0


@dataclass(eq=False)
class Child:
    """A running worker."""

    start: Start
    pid: int
    reason: str = ""

    @property
    def capture(self) -> Capture:
        """The worker's stderr."""
        return self.start.capture


class ForkServer:
    """The server's event loop.

    Args:
        trainer: Connection to the trainer.
        trainer_pidfd: Becomes readable when the trainer ends.
        introduction: The trainer's first message: shared descriptors and limits.
    """

    def __init__(self, trainer: Channel, trainer_pidfd: int, introduction: Message) -> None:
        self._trainer = trainer
        self._watcher = Watcher()
        self._children: dict[int, Child] = {}
        self._reaped_early: dict[int, int] = {}
        self._queue: deque[Start] = deque()
        self._admission = Admission(int(introduction["max_builds"]))
        nbytes: int | None = introduction["memory_limit"]
        self._memory_limit = None if nbytes is None else MemoryLimit(nbytes)
        self._search_path: list[str] = introduction["search_path"]
        self._memory_checked = 0.0
        self._displays: dict[int, set[int]] = {}
        self._screen = SharedScreen() if introduction["shared_screen"] else None
        self._orphans_due = False
        self._last_words: dict[int, tuple[int, str]] = {}
        self._closing = False
        built_fd, built_write = os.pipe2(os.O_CLOEXEC)
        signal_fd, signal_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._kept = (*introduction["fds"], built_write)
        self._nursery = Nursery(
            self._watcher,
            self._kept,
            host.available_memory() // 4,
            self._started,
            self._failed,
            self._threads_found,
        )
        self._watcher.watch(trainer.fileno(), self._from_trainer)
        self._watcher.watch(trainer_pidfd, self._close)
        self._watcher.watch(signal_fd, lambda: self._reap(signal_fd))
        self._watcher.watch(built_fd, lambda: self._built(built_fd))
        signal.set_wakeup_fd(signal_write, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the trainer says close or ends; leaves no descendant behind."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._close())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while not self._closing:
                flushed = self._flush()
                self._watcher.run_once(self._timeout() if flushed else 0.01)
                if self._nursery.check_deadlines(time.monotonic()):
                    self._tell({"event": "patience"})
                self._check_memory()
                self._start_queued()
                self._kill_orphans()
                self._nursery.keep_spares()
        finally:
            self._kill_everything()
            self._nursery.close()
            self._trainer.close()

    def _close(self) -> None:
        self._closing = True

    def _tell(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message to the trainer; one that has closed its end wants nothing more."""
        try:
            self._trainer.send(message, fds)
        except (BrokenPipeError, ConnectionResetError):
            self._close()

    def _flush(self) -> bool:
        try:
            return self._trainer.flush() and self._nursery.flush()
        except (BrokenPipeError, ConnectionResetError):
            self._close()
            return True

    def _timeout(self) -> float | None:
        deadlines = [handle.deadline for handle in self._nursery]
        wait = max(0.0, min(deadlines, default=float("inf")) - time.monotonic())
        if self._memory_limit is not None:
            wait = min(wait, _MEMORY_CHECK_S)
        if self._queue or self._nursery.wants_spares():
            wait = min(wait, 0.1)
        return None if wait == float("inf") else wait

    def _from_trainer(self) -> None:
        messages = self._trainer.receive()
        if messages is None:
            self._close()
            return
        self.handle(messages)

    def handle(self, messages: list[Message]) -> None:
        """Act on the trainer's messages."""
        for message in messages:
            if message["op"] == "start":
                start = Start(message, message["fds"][0])
                self._watcher.watch_capture(start.capture)
                self._queue.append(start)
            elif message["op"] == "tail":
                self._send_tail(message["worker"], message["generation"])
            elif message["op"] == "close":
                self._close()
        self._start_queued()

    def _start_queued(self) -> None:
        """Pass starts on, builds in workers only as fast as cores and memory allow."""
        while self._queue and self._has_room(self._queue[0]):
            self._order(self._queue.popleft())

    def _has_room(self, start: Start) -> bool:
        """Whether a worker, or the zygote that it waits for, may build now."""
        under_way = [child.start for child in self._children.values() if not child.start.built]
        under_way += self._ordered
        forked = len([each for each in under_way if each.message["mode"] == "built"])
        if start.message["mode"] == "built" and self._nursery.has_zygote_for(start.message):
            return self._admission.allows(forked, forked=True)
        building = len(under_way) - forked + self._nursery.building()
        return self._admission.allows(building, forked=False)

    @property
    def _ordered(self) -> list[Start]:
        """Starts handed to a zygote that have no process yet."""
        items = [item for h in self._nursery for item in (*h.waiting, *h.sent)]
        return [item for item in items if isinstance(item, Start)]

    def _order(self, start: Start) -> None:
        if self._screen is not None:
            try:
                start.message["environment"] |= {"DISPLAY": self._screen.name()}
            except (OSError, RuntimeError) as error:
                self._failed(start, {"message": f"found no display: {error}. {xvfb.FIX}"})
                return
        if start.message["mode"] == "fresh":
            self._exec(start)
        else:
            self._nursery.order(start)

    def _exec(self, start: Start) -> None:
        """Start a worker in a fresh interpreter."""
        try:
            pid = interpreter.spawn(start, self._kept, self._search_path)
        except OSError as error:
            python = start.message["interpreter"] or sys.executable
            self._failed(start, {"message": f"cannot start {python}: {error}"})
        else:
            self._started(start, pid)

    def _started(self, start: Start, pid: int) -> None:
        child = Child(start, pid)
        self._children[pid] = child
        if start.built:
            self._learn(child)
        message = {
            "event": "started",
            "worker": start.worker,
            "generation": start.generation,
            "pid": pid,
        }
        if pid in self._reaped_early:
            self._tell(message)
            self._ended(child, self._reaped_early.pop(pid))
            return
        self._tell(message, (os.pidfd_open(pid),))

    def _failed(self, start: Start, reason: Message) -> None:
        self._tell(
            {
                "event": "failed",
                "worker": start.worker,
                "generation": start.generation,
                "pid": reason.get("pid", 0),
                "kind": reason.get("kind", "died"),
                "slot": reason.get("slot"),
                "error_class": reason.get("error_class", ""),
                "message": reason["message"],
                "stack": reason.get("stack", ""),
                "stderr": reason.get("stderr", ""),
            }
        )
        self._watcher.unwatch(start.capture.read_fd)
        start.drop()

    def _threads_found(self, start: Start, reason: str) -> None:
        """No worker can be forked safely; the trainer will ask for a fresh interpreter."""
        self._tell(
            {
                "event": "threads",
                "worker": start.worker,
                "generation": start.generation,
                "reason": reason,
            }
        )
        self._watcher.unwatch(start.capture.read_fd)
        start.drop()

    def _built(self, fd: int) -> None:
        reports = os.read(fd, 128 * process.REPORT.size)
        for worker, generation, pid, number in process.REPORT.iter_unpack(reports):
            if pid:
                self._displays.setdefault(pid, set()).add(number)
                continue
            # A worker may have built before its zygote has said that it exists.
            running = {child.start: child for child in self._children.values()}
            for start in (*self._ordered, *running):
                if (start.worker, start.generation) == (worker, generation):
                    start.built = True
                    if start in running:
                        self._learn(running[start])
        self._nursery.evict()

    def _learn(self, child: Child) -> None:
        self._admission.learn(child.pid, forked=child.start.message["mode"] == "built")

    def _reap(self, signal_fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(signal_fd, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._children:
                self._ended(self._children[pid], status)
            elif not self._nursery.ended(pid):
                self._reaped_early[pid] = status
                xvfb.remove_files(pid, self._displays.pop(pid, ()))
        self._orphans_due = True

    def _ended(self, child: Child, status: int) -> None:
        del self._children[child.pid]
        words = child.capture.text()
        self._last_words[child.start.worker] = (child.start.generation, words)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        self._tell(
            {
                "event": "ended",
                "worker": child.start.worker,
                "generation": child.start.generation,
                "pid": child.pid,
                "status": os.waitstatus_to_exitcode(status),
                "reason": child.reason,
                "stderr": words,
            }
        )
        self._watcher.unwatch(child.capture.read_fd)
        child.start.drop()

    def _kill_orphans(self) -> None:
        """Kill what workers left behind: it was reparented here, and its owner is gone."""
        if not self._orphans_due or self._nursery.expecting():
            return
        self._orphans_due = False
        known = self._children.keys() | self._nursery.pids()
        if self._screen is not None:
            known |= self._screen.pids()
        for pid in process.children():
            if pid not in known and process.owner(pid) not in self._children:
                self._kill_orphan(pid)
        self._reaped_early.clear()

    def _kill_orphan(self, pid: int) -> bool:
        """Kill a process that may be an X server, and note what it will leave behind.

        Returns:
            Whether it may be killed.
        """
        if numbers := xvfb.numbers_of(pid):
            self._displays.setdefault(pid, set()).update(numbers)
        return process.kill(pid)

    def _check_memory(self) -> None:
        limit = self._memory_limit
        if limit is None or time.monotonic() < self._memory_checked + _MEMORY_CHECK_S:
            return
        self._memory_checked = time.monotonic()
        for pid in limit.exceeded(self._children):
            self._children[pid].reason = "memory"
            process.kill(pid)

    def _send_tail(self, worker: int, generation: int) -> None:
        spoken, text = self._last_words.get(worker, (0, ""))
        text = text if spoken == generation else ""
        for child in self._children.values():
            if (child.start.worker, child.start.generation) == (worker, generation):
                text = child.capture.text()
        self._tell({"event": "tail", "worker": worker, "stderr": text})

    def _kill_everything(self) -> None:
        """Kill all descendants, adopt what they leave, and kill that too; say what will not die."""
        end = time.monotonic() + _FAREWELL_S
        if self._screen is not None:
            self._screen.close()
        hope = True
        while (pids := process.children()) and hope and time.monotonic() < end:
            hope = bool([pid for pid in pids if self._kill_orphan(pid)])
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while pid := os.waitpid(-1, os.WNOHANG)[0]:
                    xvfb.remove_files(pid, self._displays.pop(pid, ()))
            time.sleep(0.002)
        if pids:
            self._tell({"event": "left behind", "pids": pids})
            self._flush()


def main() -> None:
    """Entry: ``python -m polyarm.vector.forkserver <socket fd> <trainer's pidfd>``."""
    sock_fd, trainer_pidfd = (int(argument) for argument in sys.argv[1:])
    for fd in (sock_fd, trainer_pidfd):
        os.set_inheritable(fd, False)  # it was, to get here; nobody below is to hold it
    process.set_name("polyarm-server")
    process.become_subreaper()
    host.raise_descriptor_limit(1 << 16)
    trainer = Channel(socket.socket(fileno=sock_fd), blocking=True)
    messages = trainer.receive()
    if messages is None:
        return
    introduction, *rest = messages
    trainer.unblock()
    sys.path[:] = introduction["search_path"]
    with contextlib.suppress(OSError):
        os.chdir(introduction["folder"])
    server = ForkServer(trainer, trainer_pidfd, introduction)
    try:
        server.handle(rest)
        server.run()
    except HostLimit as error:
        sys.exit(f"polyarm-server: {error}")


if __name__ == "__main__":
    main()
