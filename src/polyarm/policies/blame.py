"""What an exception in somebody's policy is, and where in their code it was raised."""

from __future__ import annotations

import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])


def raised(error: BaseException) -> str:
    """``KeyError: 'x' (policy.py, line 27)``: the place where their code and libraries were called.

    That is the deepest place that is neither ours nor an installed package's; none if all are.
    """
    what = f"{type(error).__name__}: {error}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not frame.filename.startswith(_OURS) and path.exists() and not _installed(path):
            return f"{what} ({path.name}, line {frame.lineno}; POLYARM_DEBUG=1 shows all)"
    return what


def _installed(path: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in path.parts) or any(
        part.startswith("python3") for part in path.parts
    )
