"""Signals that ask a command to end well."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_OF_CLUSTERS = (signal.SIGTERM, signal.SIGUSR1)


class Signals:
    """Those that came, and what they stop.

    Attributes:
        caught: Their numbers, in order.
    """

    def __init__(self) -> None:
        self.caught: list[int] = []
        self._stop: Callable[[], None] = lambda: None

    def stop_by(self, stop: Callable[[], None]) -> None:
        """Call this at every signal, and now if one came already."""
        self._stop = stop
        if self.caught:
            stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught.append(number)
        self._stop()


@contextmanager
def signals_stop() -> Iterator[Signals]:
    """Until the block is left, the first signal stops cleanly, a second Ctrl-C at once."""
    signals = Signals()
    numbers = (signal.SIGINT, *_OF_CLUSTERS)
    before = {number: signal.signal(number, signals._handle) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signals_come_too_late() -> None:
    """For a process that has its exit code: what would end it now must not change that.

    Launchers end all ranks once one has left, and an interpreter takes a while to end.
    """
    for number in _OF_CLUSTERS:
        signal.signal(number, signal.SIG_IGN)
