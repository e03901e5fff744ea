"""Captured standard error: always drained, so that nobody blocks on it, and bounded."""

from __future__ import annotations

import os

_KEEP = 16 * 1024
_READ = 1 << 20


class Capture:
    """A pipe whose write end becomes a child's stderr; the last 16 KiB are kept."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self._tail = bytearray()

    def hand_over(self) -> int:
        """The write end, now owned by the caller."""
        fd, self.write_fd = self.write_fd, -1
        return fd

    def drain(self) -> bool:
        """Read what is there; False once every writer is gone."""
        while True:
            try:
                data = os.read(self.read_fd, _READ)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._tail += data
            if len(self._tail) > _KEEP:
                del self._tail[:-_KEEP]

    def text(self) -> str:
        """The last lines written."""
        self.drain()
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Close both ends."""
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1
