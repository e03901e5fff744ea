"""Warnings that point at the line that called polyarm, however deep in it they arise."""

from __future__ import annotations

import sys
import warnings


def warn_user(message: str) -> None:
    """Issue a UserWarning at the user's line."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("polyarm."):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)
