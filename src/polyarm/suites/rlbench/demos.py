"""Stored demonstrations: which there are for a task, in an order that everybody agrees on."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from itertools import zip_longest
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
        written = _written_variation(self.folder)
        return int(demo[0].misc["variation_index"]) if written is None else written


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
    folders = [] if variation is None else [home / f"variation{variation}"]
    folders = folders or [home / _ALL]
    found = [StoredDemo(path, variation) for folder in folders for path in _episodes(folder)]
    if not found and variation is None:
        # All variations in turn, as they come without demonstrations.
        rows = [
            [StoredDemo(path, _number(folder)) for path in _episodes(folder)]
            for folder in _numbered(home, "variation")
        ]
        found = [demo for turn in zip_longest(*rows) for demo in turn if demo is not None]
    elif not found:
        mixed = [StoredDemo(path, _written_variation(path)) for path in _episodes(home / _ALL)]
        found = [demo for demo in mixed if demo.variation == variation]
    if not found:
        part = f"variation {variation} of " if variation is not None else ""
        raise StorageError(
            f"no demonstrations of {part}{task} in {root}: expected "
            f"{home}/variation{variation or 0}/episodes/episode0/low_dim_obs.pkl, "
            f"or {_ALL} in the variation's place"
        )
    return found


def _episodes(folder: Path) -> list[Path]:
    return _numbered(folder / "episodes", "episode")


def _numbered(folder: Path, kind: str) -> list[Path]:
    """Folders that are called so and have a number, in its order."""
    found = [path for path in folder.glob(f"{kind}*") if path.is_dir()]
    return sorted((p for p in found if re.fullmatch(rf"{kind}\d+", p.name)), key=_number)


def _number(path: Path) -> int:
    return int(re.sub(r"\D", "", path.name))


def _written_variation(folder: Path) -> int | None:
    """What the demonstration's own file says; None where there is none."""
    file = folder / "variation_number.pkl"
    return int(pickle.loads(file.read_bytes())) if file.exists() else None
