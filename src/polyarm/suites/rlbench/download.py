"""Downloads one large file, going on from the byte where an earlier attempt ended."""

from __future__ import annotations

import errno
import http.client
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from polyarm.errors import StorageError
from polyarm.suites.cache import Progress, write_whole

ATTEMPTS = 5
"""How often a download that brought something, and then broke, is taken up again."""

TIMEOUT_S = 60.0
"""A connection that brings nothing for so long is broken."""

_CHUNK = 1 << 16
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def download(url: str, file: Path, progress: Progress, way_out: str) -> None:
    """Download to a file, which appears when it is complete.

    Args:
        url: Where from.
        file: Where to. What there is so far lies beside it, as ``<file>.part``.
        progress: Is told how many bytes there are.
        way_out: What to do when there is no connection, for the error message.

    Raises:
        StorageError: There is no connection, or it keeps breaking.
        OSError: The disk is full, or cannot be written to.
    """
    part = file.with_name(f"{file.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(ATTEMPTS):
        before = _size(part)
        try:
            why = _fetch(url, part, progress)
        except _BROKEN as error:
            why = str(error)
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                break
        except OSError as error:
            if error.errno in _FULL:
                _forget(part)
            raise
        if not why:
            part.rename(file)
            _forget(part)
            return
        if _size(part) <= before:
            break
        progress(f"the connection broke ({why}); going on", 0, 0)
    raise StorageError(
        f"{url} could not be downloaded: {why}. Give the same command again to go on from the "
        f"{_size(part):,} bytes in {part}; {way_out}"
    )


def _fetch(url: str, part: Path, progress: Progress) -> str:
    """Get what is missing; returns why the file is not complete, if it is not."""
    request = urllib.request.Request(url, headers={"User-Agent": "polyarm", **_resume(part)})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not _size(part):
            raise
        whole = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        if whole and int(whole[1]) == _size(part):
            return ""  # an earlier attempt ended between the last byte and the renaming
        _forget(part)
        return _fetch(url, part, progress)
    with answer:
        start, total = _span(answer)
        if start != _size(part):
            _forget(part)  # the server starts anew, as it does when its file has changed
        if mark := answer.headers.get("ETag") or answer.headers.get("Last-Modified"):
            write_whole(_mark(part), mark)
        with part.open("ab") as out:
            _copy(answer, out, total, progress)
            done = out.tell()
    return "" if not total or done == total else f"it ended after {done:,} of {total:,} bytes"


def _resume(part: Path) -> dict[str, str]:
    """Headers that ask for the rest, provided that the server's file is still the same."""
    size, mark = _size(part), _mark(part)
    if not size or not mark.exists():
        _forget(part)
        return {}
    return {"Range": f"bytes={size}-", "If-Range": mark.read_text()}


def _span(answer: http.client.HTTPResponse) -> tuple[int, int]:
    """Where the answer starts, and the size of the whole file (0: not known)."""
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT and span:
        return int(span[1]), int(span[2])
    return 0, int(answer.headers.get("Content-Length") or 0)


def _copy(answer: http.client.HTTPResponse, out: IO[bytes], total: int, progress: Progress) -> None:
    while chunk := answer.read(_CHUNK):
        out.write(chunk)
        progress("downloading CoppeliaSim", out.tell(), total)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _mark(part: Path) -> Path:
    """Where the server's mark for this version of its file is kept."""
    return part.with_name(f"{part.name}.mark")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _mark(part).unlink(missing_ok=True)
