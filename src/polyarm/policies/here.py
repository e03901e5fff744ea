"""The working folder as a place of modules, which names of policies and tasks mean."""

from __future__ import annotations

import contextlib
import os
import sys


def look_here() -> None:
    """Find modules in the working folder from now on, as ``python -m`` does."""
    with contextlib.suppress(FileNotFoundError):  # somebody has deleted the folder
        here = os.getcwd()  # noqa: PTH109  a string, as the path has
        if here not in sys.path and "" not in sys.path:
            sys.path.insert(0, here)
