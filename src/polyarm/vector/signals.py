"""Wake-ups and completions: an eventfd per worker generation, one pipe for all answers.

A completion is ``(worker, generation, sequence)``; the pipe keeps each one whole (16 bytes are
below PIPE_BUF). Whoever reads drops what does not match the generation and the sequence it
waits for, so a killed worker's last words can't be taken for its successor's. A generation with
`ATTENTION` added says that somebody must look: an env was built, or has failed.
"""

from __future__ import annotations

import os
import struct
from collections import deque

from polyarm.vector.host import kernel_gives

Completion = tuple[int, int, int]

ATTENTION = 2**31
"""Added to a completion's generation if there is more to know than that all went well."""

_COMPLETION = struct.Struct("=IIQ")
_BUFFER_NBYTES = 4096 * _COMPLETION.size
_NONE = (2**32 - 1, 2**32 - 1, 2**64 - 1)
"""What an unused part of the buffer reads as."""


class Doorbell:
    """Wakes one generation of one worker; the count read is the number of rings."""

    def __init__(self) -> None:
        with kernel_gives("eventfds"):
            self.fd = os.eventfd(0, os.EFD_CLOEXEC)

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def announce(fd: int, worker: int, generation: int, sequence: int) -> None:
    """Publish a worker's results to the trainer."""
    os.write(fd, _COMPLETION.pack(worker, generation, sequence))


def without_attention(completion: Completion) -> Completion:
    """The completion that is awaited, whether or not it asks for attention."""
    worker, generation, sequence = completion
    return worker, generation & ~ATTENTION, sequence


class Completions:
    """The trainer's end of the completion pipe."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self._blank = bytes([0xFF]) * _BUFFER_NBYTES
        self._buffer = bytearray(self._blank)
        self._view = memoryview(self._buffer)
        self.interrupted = False
        """Whether something may have been read that is not in any inbox."""

    def take(self, inbox: deque[Completion]) -> None:
        """Add all completions that have arrived to ``inbox``; never blocks.

        An interrupt may come right after they have been read, before anybody knows how many there
        are. So they are read into a buffer that stays, and the next call finds them there. Some may
        then be added twice.
        """
        if self.interrupted:
            filled = self._left_over()
        else:
            self.interrupted = True
            try:
                filled = os.readv(self.read_fd, (self._buffer,))
            except BlockingIOError:
                filled = 0
        inbox.extend(_COMPLETION.iter_unpack(self._view[:filled]))
        self._view[:filled] = self._blank[:filled]
        self.interrupted = False

    def close(self) -> None:
        """Close both ends."""
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1

    def _left_over(self) -> int:
        """Bytes in the buffer, up to the first completion that was never written."""
        found = _COMPLETION.iter_unpack(self._buffer)
        number = next((place for place, each in enumerate(found) if each == _NONE), None)
        return _BUFFER_NBYTES if number is None else number * _COMPLETION.size
