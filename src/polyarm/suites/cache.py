"""The folder that set-ups install into: where it is, who may write, and whole files only."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polyarm.errors import RunConflict, StorageError

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is (0: not known)."""

LOCK_TIMEOUT_S = 3600.0

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def cache_folder() -> Path:
    """``$POLYARM_CACHE``, else ``$XDG_CACHE_HOME/polyarm``, else ``~/.cache/polyarm``.

    Raises:
        StorageError: None of these can be told.
    """
    if own := os.environ.get("POLYARM_CACHE"):
        return Path(own).absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "polyarm"
    try:
        return Path.home() / ".cache" / "polyarm"
    except RuntimeError as error:
        raise StorageError(f"there is no home folder ({error}): set POLYARM_CACHE") from error


def write_whole(file: Path, text: str) -> None:
    """Write a file so that others see the old text or the new one, and nothing in between."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".", delete=False) as draft:
        try:
            draft.write(text)
            draft.flush()
            os.fsync(draft.fileno())
            Path(draft.name).chmod(0o644)
            Path(draft.name).rename(file)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise


@contextmanager
def alone(
    lock: Path, suite: str, progress: Progress, timeout_s: float | None = None
) -> Iterator[None]:
    """Wait until no other process sets this suite up; by default for `LOCK_TIMEOUT_S`.

    Raises:
        RunConflict: Another one does not come to an end.
    """
    timeout_s = LOCK_TIMEOUT_S if timeout_s is None else timeout_s
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with lock.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunConflict(
                        f"another set-up of {suite} has held {lock} for {timeout_s:.0f} s; "
                        f"stop it and try again"
                    ) from None
                progress(f"waiting for another set-up of {suite}", 0, 0)
                time.sleep(0.1)
        yield


@contextmanager
def disk_errors(
    what: str, target: Path, elsewhere: str = "set POLYARM_CACHE to a folder"
) -> Iterator[None]:
    """Turn errors of the disk into one that says what was not installed, and the way out.

    Args:
        what: Such as ``"LIBERO's assets were"``.
        target: Where it should have gone.
        elsewhere: How to have it go to another folder.

    Raises:
        StorageError: Instead of any other `OSError`.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            why = f"the disk is full. Free some space, or {elsewhere} elsewhere"
        elif error.errno in _FORBIDDEN:
            why = f"{error}. {elsewhere[:1].upper()}{elsewhere[1:]} that you may write to"
        else:
            why = str(error)
        raise StorageError(f"{what} not installed into {target}: {why}") from error
