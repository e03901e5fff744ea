"""Whether a call past its deadline hangs, or waits for a core that others have.

Deadlines are times on the wall, and on a crowded machine most of that time is others'. So a process
that computes, or would if it had a core, gets more of it, until it has computed for as long as the
limit. One that sleeps, or has been stopped, hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

NOTABLE = 1 / 8
"""Of a limit: calls that have taken as long are watched, which costs 20 µs each."""
_MOST = 10
"""Times the limit: nothing may take longer on the wall, however crowded the machine is."""
_AT_WORK = 0.1
"""Share of the time since the last look from which on a process computes; polling takes less."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class LongCall:
    """A call that takes long, and what its process, with all its threads, does meanwhile.

    Args:
        pid: The process.
        since: When the call began.
        now: The current time, as of `time.monotonic`.
    """

    def __init__(self, pid: int, since: float, now: float) -> None:
        self.since = since
        self._pid = pid
        self._seen_at = now
        self._seen_s = self._first_s = cpu_seconds(pid)

    def hangs(self, limit_s: float, now: float) -> bool:
        """Whether to give it up, now that its limit has passed."""
        spent_s = cpu_seconds(self._pid)
        at_work = spent_s - self._seen_s > _AT_WORK * (now - self._seen_at)
        self._seen_s, self._seen_at = spent_s, now
        if spent_s - self._first_s > limit_s or now - self.since > _MOST * limit_s:
            return True
        return not at_work and not is_runnable(self._pid)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all threads together; 0 if it is gone. In ticks, mostly of 10 ms."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def is_runnable(pid: int) -> bool:
    """Whether any thread of a process runs or waits for a core."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return any(_stat(thread)[:1] == ["R"] for thread in threads)


def _stat(file: Path) -> list[str]:
    """Fields of a ``stat`` file from the state on; empty if there is none."""
    try:
        return file.read_text().rpartition(")")[2].split()
    except OSError:
        return []
