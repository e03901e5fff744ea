"""Wake-ups and completions: an eventfd per worker generation, one pipe for all answers.

A completion is ``(worker, generation, sequence)``; the pipe keeps each one whole (16 bytes are
below PIPE_BUF). Whoever reads drops what does not match the generation and the sequence it
waits for, so a killed worker's last words can't be taken for its successor's.
"""

from __future__ import annotations

import os
import struct

_COMPLETION = struct.Struct("=IIQ")


class Doorbell:
    """Wakes one generation of one worker; the count read is the number of rings."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Publish everything written so far to the worker."""
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def announce(fd: int, worker: int, generation: int, sequence: int) -> None:
    """Publish a worker's results to the trainer."""
    os.write(fd, _COMPLETION.pack(worker, generation, sequence))


class Completions:
    """The trainer's end of the completion pipe."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)

    def take(self) -> list[tuple[int, int, int]]:
        """All completions that have arrived; never blocks."""
        try:
            data = os.read(self.read_fd, 65536)
        except BlockingIOError:
            return []
        return list(_COMPLETION.iter_unpack(data))

    def close(self) -> None:
        """Close both ends."""
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1
