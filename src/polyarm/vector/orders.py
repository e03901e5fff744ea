"""What the fork server has a zygote fork: a worker, another zygote or a spare, with their state."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from dataclasses import dataclass, field

from polyarm.vector import process
from polyarm.vector.capture import Capture
from polyarm.vector.channel import Channel, Message
from polyarm.vector.overdue import NOTABLE, LongCall
from polyarm.vector.watcher import Watcher

Key = tuple[object, ...]


@dataclass(eq=False)
class Start:
    """A worker the trainer has asked for.

    Attributes:
        message: The trainer's request.
        doorbell: The worker's doorbell, owned here until it is handed on.
        capture: Where the worker's stderr goes.
        built: Whether the worker has built its envs.
    """

    message: Message
    doorbell: int
    capture: Capture = field(default_factory=Capture)
    built: bool = False

    @property
    def worker(self) -> int:
        """Index of the worker."""
        return int(self.message["worker"])

    @property
    def generation(self) -> int:
        """Generation of the worker."""
        return int(self.message["generation"])

    def hand_over(self) -> tuple[int, int]:
        """Doorbell and stderr, now owned by the caller."""
        doorbell, self.doorbell = self.doorbell, -1
        return doorbell, self.capture.hand_over()

    def drop(self) -> None:
        """Close what nobody took."""
        if self.doorbell >= 0:
            os.close(self.doorbell)
            self.doorbell = -1
        self.capture.close()


@dataclass(eq=False)
class Spare:
    """A process forked from a zygote ahead of need, so that a restart does not wait for a fork.

    Attributes:
        channel: Connection to it; the first message makes it a worker.
        unborn: Its end of the channel, until it has been forked.
        capture: Its stderr.
        pid: Its process id, once known.
    """

    channel: Channel
    unborn: socket.socket | None
    capture: Capture = field(default_factory=Capture)
    pid: int | None = None

    def close(self, watcher: Watcher) -> None:
        """Kill it, if it lives, and close every descriptor held for it."""
        if self.pid is not None:
            process.kill(self.pid)
        self.channel.close()
        watcher.close_capture(self.capture)
        if self.unborn is not None:
            self.unborn.close()


@dataclass(eq=False)
class Handle:
    """A zygote as the fork server sees it.

    Attributes:
        key: What it has imported or built.
        channel: Connection to it.
        preparation: The request that makes it ready.
        timeout_s: How long its preparation may take.
        capture: Its stderr.
        unborn: The zygote's end of the channel, until its parent has forked it.
        pid: Its process id, once known.
        deadline: When its next answer is overdue; infinite while it owes none.
        preparing: What it does while it imports or builds.
        ready: Whether it can fork.
        waiting: Orders to pass on when it is ready.
        sent: Orders it has not answered yet, oldest first.
        building: The slot whose env it is building.
        overdue: Whether it has been asked for its last words.
        spare: A worker forked ahead of need.
        used_at: When it was last needed.
    """

    key: Key
    channel: Channel
    preparation: Message
    timeout_s: float
    capture: Capture = field(default_factory=Capture)
    unborn: socket.socket | None = None
    pid: int | None = None
    deadline: float = float("inf")
    preparing: LongCall | None = None
    ready: bool = False
    waiting: deque[Order] = field(default_factory=deque)
    sent: deque[Order] = field(default_factory=deque)
    building: int | None = None
    overdue: bool = False
    spare: Spare | None = None
    used_at: float = 0.0

    def expect_answer(self) -> None:
        """Start the clock of the next answer, or stop it if none is owed."""
        owed = not self.ready or self.sent
        now = time.monotonic()
        self.deadline = now + self.timeout_s if owed else float("inf")
        self.preparing = None if self.ready else LongCall(self.pid or 0, now, now)

    def may_go_on(self, now: float) -> bool:
        """Whether it gets more time, as it computes or waits for a core; sets a new deadline."""
        call = self.preparing or LongCall(self.pid or 0, self.deadline - self.timeout_s, now)
        if call.hangs(self.timeout_s, now):
            return False
        self.preparing = call
        self.deadline = now + self.timeout_s * NOTABLE
        return True

    @property
    def idle(self) -> bool:
        """Whether nothing depends on this zygote right now."""
        return self.ready and not self.waiting and not self.sent

    def close(self, watcher: Watcher) -> None:
        """Close every descriptor held for it."""
        if self.spare is not None:
            self.spare.close(watcher)
        watcher.unwatch(self.channel.fileno())
        self.channel.close()
        watcher.close_capture(self.capture)
        if self.unborn is not None:
            self.unborn.close()


Order = Start | Handle | Spare
"""What a zygote is asked to fork."""
