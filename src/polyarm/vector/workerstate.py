"""One worker as the trainer sees it: its stage, its descriptors, what it owes and since when."""

from __future__ import annotations

import enum
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import ForkMode
from polyarm.display import XServerMode
from polyarm.vector.board import Phase
from polyarm.vector.overdue import NOTABLE, LongCall
from polyarm.vector.signals import Doorbell

log = logging.getLogger("polyarm")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How workers are started and how long they may take.

    Attributes:
        mode: How workers come to life.
        environment: Variables set before anything is imported.
        step_timeout_s: Limit of one env step, call or close.
        reset_timeout_s: Limit of one env reset.
        build_timeout_s: Limit of one env construction.
        max_restarts: Failures of a slot in a row, without a finished episode.
        memory_limit: Bytes that a worker may hold alone, or None.
        entropy: Seeds the workers' global generators.
        pin: Whether each worker is bound to one core.
        x_server: Who runs an X server for them.
        interpreter: The Python of fresh workers; None for the trainer's own.
    """

    mode: ForkMode
    environment: Mapping[str, str]
    step_timeout_s: float
    reset_timeout_s: float
    build_timeout_s: float
    max_restarts: int
    memory_limit: int | None = None
    entropy: int | None = None
    pin: bool = False
    x_server: XServerMode = ""
    interpreter: str | None = None

    def limit_s(self, phase: int) -> float:
        """How long an env call of this phase may take."""
        if phase == Phase.BUILD:
            return self.build_timeout_s
        return self.reset_timeout_s if phase == Phase.RESET else self.step_timeout_s


class Stage(enum.Enum):
    """Where a worker is in its life."""

    STARTING = enum.auto()
    READY = enum.auto()
    ENDING = enum.auto()
    LOST = enum.auto()


@dataclass(eq=False)
class WorkerState:
    """One worker as the trainer sees it; outlives the processes that fill it.

    ``sequences`` has the number of every worker's last command, by index; all share the array.
    """

    index: int
    slots: tuple[int, ...]
    sequences: NDArray[np.int64]
    stage: Stage = Stage.ENDING
    generation: int = 0
    ready_sequence: int = 0
    doorbell: Doorbell | None = None
    pid: int = 0
    pidfd: int = -1
    rung_at: float = 0.0
    long_call: LongCall | None = None
    deferred: list[int] = field(default_factory=list)
    leaving: bool = False
    closing: bool = False
    switching: bool = False
    hung: bool = False
    kill_at: float | None = None
    give_up_at: float | None = None

    @property
    def sequence(self) -> int:
        """Number of the last command."""
        return int(self.sequences[self.index])

    def forget_process(self) -> None:
        """Close what belonged to the process that ended."""
        if self.doorbell is not None:
            self.doorbell.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.doorbell, self.pidfd, self.pid = None, -1, 0
        self.leaving = self.closing = self.hung = False
        self.kill_at = self.give_up_at = self.long_call = None

    def hangs(self, since: float, limit_s: float, now: float) -> bool:
        """Whether the call it has been in since then is to be given up."""
        if now - since < limit_s * NOTABLE:
            return False
        if self.long_call is None or self.long_call.since != since:
            self.long_call = LongCall(self.pid, since, now)
        return now - since > limit_s and self.long_call.hangs(limit_s, now)

    def signal(self, number: int) -> None:
        """Send a signal to exactly this process, never to a recycled pid."""
        if self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, number)
            except ProcessLookupError:
                log.debug("worker %d (pid %d) had ended already", self.index, self.pid)
