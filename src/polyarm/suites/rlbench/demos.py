"""Stored demonstrations: which there are for a task, in an order that everybody agrees on."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm.errors import StorageError

_ALL = "all_variations"


@dataclass(frozen=True, slots=True)
class StoredDemo:
    """One demonstration on disk.

    Attributes:
        folder: Its folder, ``…/episodes/episode<n>``.
        variation: Of the task; None where only the demonstration itself says.
    """

    folder: Path
    variation: int | None

    def load(self) -> tuple[Any, int]:
        """RLBench's own ``Demo`` and its variation; imports RLBench's classes.

        Like RLBench itself, this unpickles: use datasets that you trust.

        Raises:
            StorageError: It cannot be read.
        """
        try:
            demo = pickle.loads((self.folder / "low_dim_obs.pkl").read_bytes())
            return demo, self._variation(demo)
        except Exception as error:
            raise StorageError(
                f"the demonstration in {self.folder} cannot be read: {error!r}"
            ) from error

    def _variation(self, demo: Any) -> int:
        if self.variation is not None:
            return self.variation
        if (file := self.folder / "variation_number.pkl").exists():
            return int(pickle.loads(file.read_bytes()))
        return int(demo[0].misc["variation_index"])


def stored_demos(root: Path, task: str, variation: int | None) -> list[StoredDemo]:
    """The demonstrations of a task, or of one variation of it.

    Args:
        root: The dataset's folder.
        task: The task's name.
        variation: Which variation; None for all of them.

    Raises:
        StorageError: There are none.
    """
    home = root / task
    folders = [] if variation is not None else [home / _ALL]
    found = [StoredDemo(path, None) for folder in folders for path in _episodes(folder)]
    if not found:
        wanted = f"variation{'*' if variation is None else variation}"
        for folder in sorted(home.glob(wanted), key=_number):
            found += [StoredDemo(path, _number(folder)) for path in _episodes(folder)]
    if not found:
        part = f"variation {variation} of " if variation is not None else ""
        raise StorageError(
            f"no demonstrations of {part}{task} in {root}: expected "
            f"{home}/variation0/episodes/episode0/low_dim_obs.pkl, or {_ALL} in its place"
        )
    return found


def _episodes(folder: Path) -> list[Path]:
    return sorted((folder / "episodes").glob("episode*"), key=_number)


def _number(path: Path) -> int:
    digits = re.search(r"\d+$", path.name)
    return int(digits[0]) if digits else -1
