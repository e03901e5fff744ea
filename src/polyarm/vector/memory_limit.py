"""Which workers hold more memory than they may, found out at little cost.

Pages that a worker shares with those it was forked beside are not its own. To ask
how many these are is expensive (1.5 ms, 60 times what resident memory costs), so it is done when a
worker has grown.
Shared pages that it writes to become its own without any growth, so one worker is asked in turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyarm.vector import host


class MemoryLimit:
    """Finds processes whose own memory is above a limit.

    Args:
        nbytes: The limit.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._shared: dict[int, int] = {}
        """What large processes shared when they were last asked, who was longest ago first."""

    def exceeded(self, pids: Iterable[int]) -> list[int]:
        """Those of these processes, all that there are, which hold more than they may."""
        held = {pid: host.anonymous_memory(pid) for pid in pids}
        large = {pid: nbytes for pid, nbytes in held.items() if nbytes > self._nbytes}
        known = {pid: nbytes for pid, nbytes in self._shared.items() if pid in large}
        self._shared = known | {pid: 0 for pid in large if pid not in known}
        in_turn = next(iter(self._shared), None)
        grown = [pid for pid in large if large[pid] - self._shared[pid] > self._nbytes]
        return [pid for pid in {in_turn, *grown} if pid and self._exceeds(pid, large[pid])]

    def _exceeds(self, pid: int, held: int) -> bool:
        own = host.private_memory(pid)
        del self._shared[pid]  # and to the end
        self._shared[pid] = max(0, held - own)
        return own > self._nbytes
