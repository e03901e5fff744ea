"""The process that downloads: ``python -m polyarm.suites.libero.hub``.

Its arguments are a repository, a revision and a folder. It writes how far it is to stdout, one
JSON object a line, and dies with the one who reads them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from polyarm.suites.archive import safe_name

DISK_FULL = 28
"""Exit status when there is no space left."""

REFUSED = 3
"""Exit status when trying again would not help."""

STALL_S = 300.0
"""A download that brings nothing for so long is given up."""

CHUNK_NBYTES = 1 << 16
"""What a broken connection loses at most."""

_IGNORED = [".*", "*.md"]
_TICK_S = 0.25


def main(repository: str, revision: str, folder: Path) -> None:
    """Download and verify; the last line that is written names the commit."""
    threading.Thread(target=_die_with_reader, daemon=True).start()
    from huggingface_hub import HfApi, constants

    # By default a file of less than 10 MB, as almost all of these are, would start anew.
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_NBYTES
    info = HfApi().dataset_info(repository, revision=revision, files_metadata=True, timeout=30)
    files = [file for file in info.siblings or () if _is_wanted(file.rfilename)]
    commit = str(info.sha)
    total = sum(file.size or 0 for file in files)
    for last in (False, True):
        with _watched(folder, total):
            _fetch(repository, commit, folder)
        damaged = list(_damaged(files, folder))
        for name in damaged:
            (folder / name).unlink(missing_ok=True)
        if not damaged:
            break
        if last:
            _refuse(f"{damaged[0]} is not what the hub says it is, even when downloaded again")
    _prune({file.rfilename for file in files}, folder)
    _say("verified", total, total, commit=commit)


def _fetch(repository: str, commit: str, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        repository,
        repo_type="dataset",
        revision=commit,
        local_dir=folder,
        ignore_patterns=_IGNORED,
    )


def _is_wanted(name: str) -> bool:
    if not safe_name(name):
        _refuse(f"the hub names a file {name!r}, which leads out of the folder")
    return not name.startswith(".") and not name.endswith(".md")


def _damaged(files: list[Any], folder: Path) -> Iterator[str]:
    """Names of files whose size or checksum differ from what the hub says of them."""
    for done, file in enumerate(files):
        _say("verifying", done + 1, len(files))
        path = folder / file.rfilename
        if not path.is_file() or path.stat().st_size != file.size:
            yield file.rfilename
        elif file.lfs is not None:
            if _digest(path, hashlib.sha256()) != file.lfs["sha256"]:
                yield file.rfilename
        elif _digest(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size)) != file.blob_id:
            yield file.rfilename


def _prune(names: set[str], folder: Path) -> None:
    """Remove what an earlier download of another commit left."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in names and not name.startswith(".cache/"):
            path.unlink()


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return str(digest.hexdigest())


@contextmanager
def _watched(folder: Path, total: int) -> Iterator[None]:
    """Says how much is on the disk while something else fills it, and gives up on a stall."""
    finished = threading.Event()

    def watch() -> None:
        before, grown_at = -1, time.monotonic()
        while not finished.wait(_TICK_S):
            done = nbytes_below(folder)
            _say("downloading", min(done, total), total)
            if done != before:
                before, grown_at = done, time.monotonic()
            elif time.monotonic() - grown_at > STALL_S:
                sys.stderr.write(f"nothing has arrived for {STALL_S:.0f} s\n")
                sys.stderr.flush()
                os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def nbytes_below(folder: Path) -> int:
    """Size of all files below a folder while somebody changes them."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_size  # noqa: PTH116, PTH118
            except FileNotFoundError:  # renamed meanwhile
                continue
    return total


def _say(doing: str, done: int, total: int, **more: str) -> None:
    line = json.dumps({"doing": doing, "done": done, "total": total, **more})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"{why}\n")
    sys.exit(REFUSED)


def _die_with_reader() -> None:
    while os.read(0, 1):
        continue
    os._exit(1)


def _tell(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
    """The stack, and last, in one line, what a user should read."""
    traceback.print_exception(kind, error, stack)
    sys.stderr.write(" ".join(f"{kind.__name__}: {error}".split()) + "\n")


if __name__ == "__main__":
    sys.excepthook = _tell
    try:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    except OSError as failure:
        if failure.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(DISK_FULL)
