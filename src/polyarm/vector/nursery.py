"""The fork server's zygotes: which exist, what waits for them, and which must go.

A worker comes from a chain of zygotes: one that has imported the suite, and for suites that fork
built envs a second one, forked from the first, that has built them. Orders wait until their
zygote is ready; a zygote that fails, dies or takes too long fails everything that waits for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from polyarm.vector import process
from polyarm.vector.channel import Channel, Message
from polyarm.vector.host import anonymous_memory
from polyarm.vector.orders import Handle, Key, Order, Spare, Start
from polyarm.vector.watcher import Watcher
from polyarm.vector.zygote import run_zygote

_LAST_WORDS_S = 0.5
_CALM_S = 0.1
_DISAPPOINTED_S = 10.0


class Nursery:
    """Creates zygotes, passes orders to them and reports what came of each.

    Args:
        watcher: Watches the zygotes' channels and stderr.
        kept: Descriptors that workers inherit.
        budget: Bytes that idle built zygotes may hold together.
        on_started: Called with a start and the pid of its worker.
        on_failed: Called with a start and the reason it failed, as a message.
        on_threads: Called with a start that nobody can fork safely, and whose threads are why.
    """

    def __init__(
        self,
        watcher: Watcher,
        kept: tuple[int, ...],
        budget: int,
        on_started: Callable[[Start, int], None],
        on_failed: Callable[[Start, Message], None],
        on_threads: Callable[[Start, str], None],
    ) -> None:
        self._watcher = watcher
        self._kept = kept
        self._budget = budget
        self._on_started = on_started
        self._on_failed = on_failed
        self._on_threads = on_threads
        self._handles: dict[Key, Handle] = {}

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._handles.values()))

    def order(self, start: Start) -> None:
        """Have a worker for ``start``: the zygote's spare if there is one, else a new fork."""
        try:
            handle = self._zygote_for(start.message)
        except OSError as error:  # no more processes, or no more descriptors
            self._on_failed(start, {"message": f"cannot fork: {error}"})
            return
        if handle is None:
            reason = f"Python starts with {process.thread_count()} threads here"
            self._on_threads(start, f"{reason} (by a sitecustomize or .pth file)")
            return
        spare, handle.spare = handle.spare, None
        if spare is None or not self._employ(spare, start):
            self._pass_on(handle, start)
        handle.used_at = time.monotonic()

    def keep_spares(self) -> None:
        """Have every built zygote that is at rest fork a spare."""
        now = time.monotonic()
        for handle in self._spareless():
            if now - handle.used_at <= _CALM_S:
                continue
            try:
                ours, theirs = Channel.pair()
                spare = Spare(Channel(ours, blocking=False), theirs)
            except OSError:  # a start needs the descriptors more
                handle.used_at = now + _DISAPPOINTED_S
                continue
            self._watcher.watch_capture(spare.capture)
            self._pass_on(handle, spare)

    def wants_spares(self) -> bool:
        """Whether `keep_spares` will have something to do soon."""
        return bool(self._spareless())

    def ended(self, pid: int) -> bool:
        """Note that a process has ended; False if it was neither a zygote nor a spare."""
        for handle in self:
            if handle.spare is not None and handle.spare.pid == pid:
                handle.spare.pid = None
                handle.spare.close(self._watcher)
                handle.spare = None
                handle.used_at = time.monotonic() + _DISAPPOINTED_S
                return True
        return pid in self.pids()

    def close(self) -> None:
        """Close every descriptor held for zygotes, which are gone."""
        for handle in self:
            if handle.spare is not None:
                handle.spare.pid = None  # it has been reaped: another process may have its pid
            handle.close(self._watcher)
        self._handles.clear()

    def _spareless(self) -> list[Handle]:
        return [h for h in self if h.key[0] == "built" and h.idle and h.spare is None]

    def _employ(self, spare: Spare, start: Start) -> bool:
        """Make a spare the worker of ``start``; False if it is of no use any more."""
        try:
            spare.channel.send({"plan": start.message["plan"]}, (os.dup(start.doorbell),))
        except OSError:
            spare.close(self._watcher)
            return False
        spare.channel.close()
        self._watcher.unwatch(start.capture.read_fd)
        start.drop()
        start.capture = spare.capture
        self._on_started(start, spare.pid or 0)
        return True

    def fail(self, handle: Handle, reason: Message) -> None:
        """Give up a zygote and everything that waits for it."""
        if self._handles.pop(handle.key, None) is None:
            return
        if handle.pid is not None:
            process.kill(handle.pid)
        details = {
            "pid": handle.pid or 0,
            "slot": handle.building,
            "stderr": handle.capture.text(),
            **reason,
        }
        handle.close(self._watcher)
        for item in [*handle.sent, *handle.waiting]:
            self._fail_order(item, details)

    def check_deadlines(self, now: float) -> bool:
        """Give up zygotes that take too long, after they have written where they are.

        Returns:
            Whether one that is at work has been given more time.
        """
        patient = False
        for handle in self:
            if now <= handle.deadline:
                continue
            if handle.overdue or handle.pid is None:
                self.fail(handle, self._hung(handle))
            elif handle.may_go_on(now):
                patient = True
            else:
                handle.overdue = True
                handle.deadline = now + _LAST_WORDS_S
                with contextlib.suppress(ProcessLookupError):
                    os.kill(handle.pid, signal.SIGABRT)
        return patient

    @staticmethod
    def _hung(handle: Handle) -> Message:
        limit = f"build_timeout_s={handle.timeout_s:g}"
        return {"kind": "hung", "message": f"building took longer than {limit} and was ended"}

    def evict(self) -> None:
        """Keep idle built zygotes within the budget; the least recently used goes first."""
        idle = sorted((h for h in self if h.idle and h.key[0] == "built"), key=lambda h: h.used_at)
        sizes = [anonymous_memory(handle.pid or 0) for handle in idle]
        excess = sum(sizes) - self._budget
        for handle, nbytes in zip(idle[:-1], sizes, strict=False):
            if excess <= 0:
                return
            excess -= nbytes
            self.fail(handle, {"message": "evicted"})

    def flush(self) -> bool:
        """Push out orders that wait for room; True when none is left."""
        unflushed = [handle for handle in self if not self._send(handle)]
        return not unflushed

    def pids(self) -> set[int]:
        """Pids of all zygotes."""
        spares = (handle.spare for handle in self if handle.spare is not None)
        return {one.pid for one in (*self, *spares) if one.pid is not None}

    def has_zygote_for(self, message: Message) -> bool:
        """Whether the envs of a start have been built, or are about to be."""
        return _built_key(message) in self._handles

    def building(self) -> int:
        """How many zygotes build envs, or are about to."""
        return sum(handle.key[0] == "built" and not handle.ready for handle in self)

    def expecting(self) -> bool:
        """Whether a process may exist whose pid has not been reported yet."""
        return any(handle.sent for handle in self)

    def _receive(self, handle: Handle) -> None:
        messages = handle.channel.receive()
        if messages is None:
            self._on_death(handle)
            return
        for message in messages:
            if "building" in message:
                handle.building = message["building"]
                handle.expect_answer()  # the limit is one env's
            elif not message["ok"]:
                self.fail(handle, message)
                return  # what it has answered since was failed with it
            elif handle.ready:
                item = handle.sent.popleft()
                handle.expect_answer()
                self._answered(handle, item, message)
            else:
                handle.ready, handle.building = True, None
                handle.expect_answer()
                while handle.waiting:
                    self._pass_on(handle, handle.waiting.popleft())

    def _on_death(self, handle: Handle) -> None:
        if handle.overdue:
            self.fail(handle, self._hung(handle))
        else:
            ending = process.how_it_ended(handle.pid or 0)
            self.fail(handle, {"message": f"the process that builds the env died {ending}"})

    def _send(
        self, handle: Handle, message: Message | None = None, fds: tuple[int, ...] = ()
    ) -> bool:
        """Send to a zygote, or push out what waits; a dead one fails what depends on it."""
        try:
            if message is not None:
                handle.channel.send(message, fds)
            return handle.channel.flush()
        except OSError:
            self._on_death(handle)
            return True

    def _zygote_for(self, message: Message) -> Handle | None:
        """The zygote that forks this worker; None if this process cannot fork one safely."""
        imports: Key = ("imports", message["imports_key"], _environment(message))
        if message["mode"] == "imports":
            return self._handles.get(imports) or self._fork_imports(imports, message)
        built = _built_key(message)
        if (handle := self._handles.get(built)) is not None:
            return handle
        parent = self._handles.get(imports) or self._fork_imports(imports, message)
        if parent is None:
            return None
        ours, theirs = Channel.pair()
        preparation = {"op": "build", "plan": message["plan"]}
        channel = Channel(ours, blocking=False)
        handle = Handle(built, channel, preparation, message["build_timeout_s"], unborn=theirs)
        self._register(handle)
        self._pass_on(parent, handle)
        return handle

    def _register(self, handle: Handle) -> None:
        self._handles[handle.key] = handle
        self._watcher.watch_capture(handle.capture)

    def _born(self, handle: Handle, pid: int) -> None:
        """A zygote has a process: listen to it, and have it import or build."""
        handle.pid = pid
        self._watcher.watch(handle.channel.fileno(), lambda: self._receive(handle))
        handle.expect_answer()
        self._send(handle, handle.preparation)

    def _fork_imports(self, key: Key, message: Message) -> Handle | None:
        if process.thread_count() != 1:
            return None
        ours, theirs = Channel.pair()
        preparation = {
            "op": "preload",
            "environment": message["environment"],
            "specs": message["specs"],
        }
        channel = Channel(ours, blocking=False)
        handle = Handle(key, channel, preparation, message["build_timeout_s"])
        server = os.getpid()
        stderr_fd = handle.capture.hand_over()
        try:
            pid = os.fork()
            if pid == 0:
                process.run_and_leave(lambda: run_zygote(theirs, server, self._kept, stderr_fd))
        except OSError:
            handle.close(self._watcher)
            raise
        finally:
            os.close(stderr_fd)
            theirs.close()
        self._register(handle)
        self._born(handle, pid)
        return handle

    def _pass_on(self, handle: Handle, item: Order) -> None:
        handle.used_at = time.monotonic()
        if not handle.ready:
            handle.waiting.append(item)
            return
        handle.sent.append(item)
        handle.expect_answer()
        if isinstance(item, Start):
            plan = item.message["plan"]
            self._send(handle, {"op": "worker", "plan": plan}, item.hand_over())
        elif item.unborn is not None:
            end, item.unborn = item.unborn.detach(), None
            op = "zygote" if isinstance(item, Handle) else "spare"
            self._send(handle, {"op": op}, (end, item.capture.hand_over()))

    def _answered(self, handle: Handle, item: Order, message: Message) -> None:
        if "pid" not in message:
            self._fail_order(item, message)
            if isinstance(item, Spare):
                handle.used_at = time.monotonic() + _DISAPPOINTED_S
        elif isinstance(item, Start):
            self._on_started(item, message["pid"])
        elif isinstance(item, Handle):
            self._born(item, message["pid"])
        else:
            item.pid = message["pid"]
            handle.spare = item

    def _fail_order(self, item: Order, reason: Message) -> None:
        if isinstance(item, Handle):
            self.fail(item, reason)
        elif isinstance(item, Spare):
            item.close(self._watcher)
        elif (threads := reason.get("threads", 1)) > 1:
            self._on_threads(item, f"importing this env starts {threads} threads")
        else:
            self._on_failed(item, reason)


def _environment(message: Message) -> Key:
    return tuple(sorted(message["environment"].items()))


def _built_key(message: Message) -> Key:
    return ("built", message["build_key"], _environment(message))
