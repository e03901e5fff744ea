"""A CoppeliaSim folder for one process: links to the installed one, and copies of what it rewrites.

Simulators that share a folder overwrite one another's settings, and the network add-ons of the
second one find their ports taken. The folders live in the cache and are used again: who holds
one is a matter of a file lock, which the kernel gives up with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from itertools import count
from pathlib import Path

from polyarm.suites.rlbench.coppeliasim import network_add_ons
from polyarm.suites.rlbench.environment import suite_folder

_COPIED = "system"
"""Holds ``settings.dat`` and ``usrset.txt``, which every simulator rewrites."""


class PrivateRoot:
    """A folder that nobody else uses while this object, or its process, lives.

    Args:
        root: CoppeliaSim as it is installed.

    Attributes:
        path: The folder.
    """

    def __init__(self, root: Path) -> None:
        root = root.resolve()
        pool = suite_folder() / "roots" / hashlib.sha256(str(root).encode()).hexdigest()[:12]
        pool.mkdir(parents=True, exist_ok=True)
        for number in count():
            self._lock = os.open(pool / f"{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                os.close(self._lock)
        self.path = pool / str(number)
        try:
            self._fill(root)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _fill(self, root: Path) -> None:
        """Make the folder anew: its last user may have died over a half-written file."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)
        self.path.mkdir()
        left_out = set(network_add_ons(root))
        _link_all(root, self.path, left_out)
        if (settings := self.path / _COPIED).is_symlink():
            settings.unlink()
            _copy_all(root / _COPIED, settings)


def _copy_all(source: Path, target: Path) -> None:
    """Copies that may be written to, whatever the modes of what is installed."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.is_dir():
            _copy_all(entry, target / entry.name)
        else:
            shutil.copyfile(entry, target / entry.name)


def _link_all(source: Path, target: Path, left_out: set[Path]) -> None:
    """Links to everything in a folder; folders with something to leave out are made anew."""
    for entry in source.iterdir():
        if entry in left_out:
            continue
        if entry.is_dir() and any(path.is_relative_to(entry) for path in left_out):
            (target / entry.name).mkdir()
            _link_all(entry, target / entry.name, left_out)
        else:
            (target / entry.name).symlink_to(entry)
