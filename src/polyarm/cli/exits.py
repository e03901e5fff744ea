"""Exit codes of the commands."""

from __future__ import annotations

TOO_MANY_ERRORS = 1
INCOMPLETE = 1
"""Of a check: something is missing or damaged."""
FAILED = 2
"""A `PolyarmError` or a wrong argument, told in one message."""
STOPPED = 3
"""Before all was done; the same command goes on."""
INTERRUPTED = 130
NOBODY_READS = 141
