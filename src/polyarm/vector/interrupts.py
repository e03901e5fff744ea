"""Signal handlers wait where half-done bookkeeping must not be left behind.

A handler may raise (Ctrl-C, an alarm), and Python runs it between any two bytecodes of the main
thread. The hot path is written so that none comes at a bad moment; what happens rarely (a worker
starts, fails, dies) holds handlers back instead.
"""

from __future__ import annotations

import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]

_NUMBERS = tuple(int(number) for number in signal.valid_signals())
"""Asked for once: this takes 100 µs, all the rest of a block 30."""


class HandlersWait:
    """Python's signal handlers run when the block is left, not inside.

    Only the main thread runs handlers, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._arrived: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _NUMBERS:
                    if callable(handler := signal.getsignal(number)):
                        self._handlers[number] = handler
                        signal.signal(number, self._note)
            except BaseException:
                self._leave()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        try:
            self._restore()
        finally:
            self._deliver()

    def _deliver(self) -> None:
        """All signals that have arrived, although the handler of one may raise."""
        if self._arrived:
            try:
                number = self._arrived.pop(0)
                self._handlers[number](number, sys._getframe())
            finally:
                self._deliver()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)

    def _restore(self) -> None:
        """Put all handlers back, even if one that is back already raises meanwhile."""
        raised: BaseException | None = None
        while True:
            try:
                for number, handler in self._handlers.items():
                    signal.signal(number, handler)
                break
            except BaseException as error:  # noqa: BLE001  what a handler raised, raised again below
                raised = error
        if raised is not None:
            raise raised


def handler_leaves(error: BaseException) -> bool:
    """Whether this is a signal handler's `SystemExit`, in whatever it has cut short.

    A handler is told the frame that it interrupts, which is its caller. It may have uninstalled
    itself before it left, so the installed ones say nothing.
    """
    if not isinstance(error, SystemExit):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(_was_told(frame, caller) for caller, frame in pairwise(frames))


def _was_told(frame: FrameType, caller: FrameType) -> bool:
    """Whether a function was called with its caller's frame."""
    names, rest, _, values = inspect.getargvalues(frame)
    given = [*map(values.get, names), *values.get(rest or "", ())]
    return any(value is caller for value in given)
