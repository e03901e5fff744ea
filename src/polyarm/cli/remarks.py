"""Python's warnings as a command tells them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TextIO

from polyarm.distributed.ranks import mark

_OWN_MAIN = str(Path(__file__).parents[1] / "__main__.py")
_plain = warnings.showwarning


def tell_warnings() -> None:
    """Tell warnings about the command itself by their text: they have no line of interest."""
    warnings.showwarning = _show


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if filename in (sys.argv[0], _OWN_MAIN):
        print(f"{mark()}polyarm: {message}", file=file or sys.stderr)
    else:
        _plain(message, category, filename, lineno, file, line)
