"""Where runs are kept if nobody says: the same place for the same command."""

from __future__ import annotations

import hashlib
from pathlib import Path

_LETTERS = 120


def run_folder(name: str) -> Path:
    """A folder below ``runs`` with a name that can be read; long ones end in a digest."""
    readable = "".join(c if c.isalnum() or c in "._-+" else "-" for c in name)
    if len(readable) > _LETTERS:  # checkpoints of one run differ at the end of long paths
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
        readable = f"{readable[: _LETTERS - 9]}-{digest}"
    return Path("runs", readable)
