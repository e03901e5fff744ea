"""A selector of actions: what to do when a descriptor becomes readable."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from polyarm.vector.capture import Capture


class Watcher:
    """Calls an action for each descriptor that is ready."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, fd: int, action: Callable[[], object]) -> None:
        """Call ``action`` whenever ``fd`` is readable, until `unwatch`."""
        self._selector.register(fd, selectors.EVENT_READ, action)

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``; must come before it is closed."""
        if fd >= 0 and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def watch_capture(self, capture: Capture) -> None:
        """Keep a captured stderr drained until its writers are gone."""

        def drain() -> None:
            if not capture.drain():
                self.unwatch(capture.read_fd)

        self.watch(capture.read_fd, drain)

    def close_capture(self, capture: Capture) -> None:
        """Stop draining a captured stderr and close it."""
        self.unwatch(capture.read_fd)
        capture.close()

    def close(self) -> None:
        """Watch nothing any more."""
        self._selector.close()

    def run_once(self, timeout_s: float | None) -> None:
        """Wait for something to be ready and act on it."""
        for key, _ in self._selector.select(timeout_s):
            # An earlier action of this round may have closed this one's descriptor.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
