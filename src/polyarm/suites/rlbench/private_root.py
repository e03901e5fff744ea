"""A CoppeliaSim folder for one process: links to the installed one, and copies of what it rewrites.

Simulators that share a folder overwrite one another's settings, and the network add-ons of the
second one find their ports taken. The folders live in the cache and are used again: who holds
one is a matter of a file lock, which the kernel gives up with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
from itertools import count
from pathlib import Path

from polyarm.errors import StorageError
from polyarm.suites.rlbench.coppeliasim import network_add_ons, write_licence_line
from polyarm.suites.rlbench.environment import folder_name, suite_folder, writable_twin

_COPIED = "system"
"""Holds ``settings.dat`` and ``usrset.txt``, which every simulator rewrites."""

_ELSEWHERE = "Set POLYARM_CACHE to a folder on a disk of this host."


class PrivateRoot:
    """A folder that nobody else uses while this object, or its process, lives.

    Args:
        root: CoppeliaSim as it is installed.

    Attributes:
        path: The folder.

    Raises:
        StorageError: The cache's file system has no locks, or PyRep cannot use its name.
    """

    def __init__(self, root: Path) -> None:
        root = root.resolve()
        # Locks of a cache that hosts share may not reach from one to the other.
        pool = suite_folder() / "roots" / platform.node() / folder_name(root)
        if not str(pool).isascii():
            raise StorageError(f"PyRep takes ASCII paths alone, and there is {pool}. {_ELSEWHERE}")
        pool.mkdir(parents=True, exist_ok=True)
        for number in count():
            self._lock = os.open(pool / f"{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            if self._take(pool):
                break
        self.path = pool / str(number)
        try:
            self._fill(root)
        except BaseException:
            self.close()
            raise

    def _take(self, pool: Path) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                return False
            raise StorageError(
                f"files in {pool} cannot be locked: {error}. {_ELSEWHERE}"
            ) from error
        return True

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
        _own_settings(root, self.path)


def make_twin(root: Path) -> Path:
    """Make the folder that PyRep, whose build writes into CoppeliaSim's, is built against.

    Args:
        root: CoppeliaSim, which cannot be written to.
    """
    twin = writable_twin(root)
    twin.parent.mkdir(parents=True, exist_ok=True)
    draft = twin.with_name(f".{twin.name}")  # the set-up is alone here
    for old in (draft, twin):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(old)
    draft.mkdir()
    _link_all(root.resolve(), draft, set())
    _own_settings(root, draft)
    draft.rename(twin)
    return twin


def _own_settings(root: Path, folder: Path) -> None:
    """Copies of what simulators rewrite, and leave to start where only these copies give it."""
    if (settings := folder / _COPIED).is_symlink():
        settings.unlink()
        _copy_all(root / _COPIED, settings)
        write_licence_line(folder)


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
