"""Where the files of an episode are: readable names, and never one file for two episodes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

from polyarm.contracts import EpisodeKey

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,79}", re.ASCII)
_READABLE_LETTERS = 40
_HASH_LETTERS = 16


def safe_name(name: str) -> str:
    """A file name for any text, different for different texts.

    Names of plain letters, digits and ``_.+=-`` stay as they are. All others become what is
    readable of them, ``~`` (which no plain name holds) and a hash of the whole name.
    """
    if _PLAIN.fullmatch(name):
        return name
    readable = re.sub(r"[^A-Za-z0-9_+=-]+", "_", name)[:_READABLE_LETTERS].strip("_-")
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{readable}~{digest[:_HASH_LETTERS]}"


def episode_file(key: EpisodeKey, ending: str) -> PurePosixPath:
    """``<suite>/<task>/<index><ending>``, with ``.<repeat>`` after the index of a repeat."""
    number = f"{key.index}.{key.repeat}" if key.repeat else str(key.index)
    return PurePosixPath(safe_name(key.suite), safe_name(key.task), f"{number}{ending}")


def stale_parts(folder: Path | str) -> list[Path]:
    """Unfinished ``.part`` files that a killed run has left anywhere under ``folder``."""
    return sorted(path for path in Path(folder).rglob("*.part") if not path.is_dir())
