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
        self._max_builds = max_builds
        self._largest = _LEAST_NBYTES

    def learn(self, pid: int) -> None:
        """Take what a process holds that has just built its envs for what a build takes."""
        self._largest = max(self._largest, host.private_memory(pid))

    def allows(self, under_way: int, *, forked: bool) -> bool:
        """Whether one more may begin while so many of its kind are under way; the first always may.

        A worker forked from built envs has nothing to do but to get its display, so more of them
        may be on their way at once.
        """
        most = self._max_builds * (_FORKS_PER_BUILD if forked else 1)
        return under_way < min(most, max(1, host.available_memory() // self._largest))
