"""Interrupts at every point of a call, one after the other.

CPython runs signal handlers at calls, at the beginnings of functions and at jumps backwards. A
tracer counts these points in our own code and raises a real signal at the n-th.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

POINTS = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME", "FOR_ITER")
CODE = "polyarm/vector/"


class Alarm(Exception):
    """Out of the handler of SIGALRM."""


class Injector:
    """Raises SIGALRM at the n-th point at which handlers may run."""

    def __init__(self, number: int, within: str) -> None:
        self.number = number
        self.within = within
        self.seen = 0
        self._names: dict[CodeType, dict[int, str]] = {}
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        # What holds handlers back is tested for itself, with real timing.
        if self.within not in code.co_filename or code.co_filename.endswith("interrupts.py"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if code not in self._names:
            self._names[code] = {each.offset: each.opname for each in dis.get_instructions(code)}
        return self._step

    def forget_frames(self) -> None:
        """Frames hold the tracer, and what was in them."""
        self._last.clear()

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            last = self._last.get(frame, "")
            self._last[frame] = self._names[frame.f_code].get(frame.f_lasti, "")
            if last.startswith(POINTS):
                self.seen += 1
                if self.seen == self.number:
                    signal.raise_signal(signal.SIGALRM)
        elif event == "return":
            self._last.pop(frame, None)
        return self._step


def interrupted_everywhere(
    act: Callable[[], Any], stride: int, within: str = CODE
) -> Iterator[int]:
    """Call ``act`` again and again, interrupted at ever later points, until it has no more.

    Yields:
        The number of the point after each call that was interrupted.
    """

    def ring(*_: Any) -> None:
        raise Alarm

    number = 1
    before = signal.signal(signal.SIGALRM, ring)
    try:
        while True:
            injector = Injector(number, within)
            sys.settrace(injector)
            try:
                act()
            except Alarm:
                pass
            finally:
                sys.settrace(None)
                injector.forget_frames()
            if injector.seen < number:
                return
            yield number
            number += stride
    finally:
        signal.signal(signal.SIGALRM, before)
