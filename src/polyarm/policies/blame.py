"""What an exception in somebody's policy is, and where in their code it was raised."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OURS = Path(__file__).parents[1]
_STDLIB = sysconfig.get_path("stdlib")
_PACKAGES = {"site-packages", "dist-packages"}


def raised(error: BaseException) -> str:
    """``KeyError: 'x' (policy.py, line 27)``: the place where their code and libraries were called.

    That is the deepest place that is neither ours nor an installed package's; none if all are.
    """
    what = f"{type(error).__name__}: {error}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_relative_to(_OURS) and path.exists() and not _installed(path):
            return f"{what} ({path.name}, line {frame.lineno}; POLYARM_DEBUG=1 shows all)"
    return what


def _installed(path: Path) -> bool:
    return path.is_relative_to(_STDLIB) or not _PACKAGES.isdisjoint(path.parts)
