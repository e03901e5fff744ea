"""How many workers may be getting ready at once: as cores and free memory allow."""

from __future__ import annotations

from polyarm.vector import host

_FORKS_PER_BUILD = 4
"""Workers forked from built envs that may get ready at once, for each build that may be made."""
_LEAST_NBYTES = 256 << 20


class Admission:
    """Says whether one more may begin.

    Args:
        max_builds: Builds that may be under way at once, if they fit into memory.
    """

    def __init__(self, max_builds: int) -> None:
        self._most = {False: max_builds, True: max_builds * _FORKS_PER_BUILD}
        self._largest = {False: _LEAST_NBYTES, True: _LEAST_NBYTES}

    def learn(self, pid: int, *, forked: bool) -> None:
        """Estimate what a build takes by what a process holds that has just built its envs.

        What one that was forked from built envs holds alone is what a fork takes; the rest is the
        build's. Small ones, which change nothing, are told by a cheaper figure.
        """
        held = host.anonymous_memory(pid)
        if held > self._largest[forked]:
            self._largest[forked] = max(self._largest[forked], host.private_memory(pid))
        if forked:
            self._largest[False] = max(self._largest[False], held)

    def allows(self, under_way: int, *, forked: bool) -> bool:
        """Whether one more may begin while so many of its kind are under way; the first always may.

        A worker forked from built envs has nothing to do but to get its display, so more of them
        may be on their way at once.
        """
        fitting = max(1, host.available_memory() // self._largest[forked])
        return under_way < min(self._most[forked], fitting)
