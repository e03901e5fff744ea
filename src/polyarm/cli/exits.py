"""Exit codes of the commands."""

from __future__ import annotations

import signal
from collections.abc import Sequence

TOO_MANY_ERRORS = 1
INCOMPLETE = 1
"""Of a check: something is missing or damaged."""
FAILED = 2
"""A `PolyarmError` or a wrong argument, told in one message."""
STOPPED = 3
"""Before all was done; the same command goes on."""
REQUEUE = 75
"""Told to stop by SIGTERM or SIGUSR1 before all was done, as clusters do; the same command goes on.

The number that sysexits.h calls EX_TEMPFAIL."""
INTERRUPTED = 130
NOBODY_READS = 141


def stopped_by(signals: Sequence[int]) -> int:
    """What to leave with after these, with work left to do."""
    return INTERRUPTED if signal.SIGINT in signals else REQUEUE
