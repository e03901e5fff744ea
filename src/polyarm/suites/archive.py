"""Unpacking of archives that somebody else made: nothing gets outside of the new folder."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, cast

from polyarm.errors import StorageError
from polyarm.suites.cache import Progress

MOST_NBYTES = 16 << 30
"""More than this is no simulator: LIBERO and CoppeliaSim have about 1 GB each."""

MOST_FILES = 100_000

_DAMAGE = (
    EOFError,
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    NotImplementedError,
)
_CHUNK = 1 << 20


def extract(archive: Path, folder: Path, progress: Progress, *, program: bool = False) -> None:
    """Unpack a .zip, or a .tar that may be compressed with gzip, bzip2 or xz, into a new folder.

    Args:
        archive: The file.
        folder: Where its members go.
        progress: Is told how it goes.
        program: Whether a .tar holds a program, with executable files and links between its
            files. Without it a link is refused, and no file becomes executable.

    Raises:
        StorageError: The archive is damaged, holds what must not be unpacked, or is too large.
    """
    writer = _Writer(archive, folder)
    try:
        if _starts_with(archive, b"PK"):
            _unzip(archive, writer, progress)
        else:
            _untar(archive, writer, progress, program=program)
            writer.make_links()
    except _DAMAGE as error:
        raise StorageError(
            f"{archive} cannot be unpacked: it is truncated, damaged or no archive "
            f"({str(error) or type(error).__name__}). Get it again."
        ) from error


def check_links(archive: Path, folder: Path) -> None:
    """Refuse links that lead out of a folder which will be taken from among what was unpacked.

    Raises:
        StorageError: There is one; it would lead elsewhere when the folder is moved.
    """
    root = Path(os.path.realpath(folder))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and root not in Path(os.path.realpath(path)).parents:
            name = path.relative_to(folder).as_posix()
            raise _refusal(archive, name, f"is a link that leads out of {folder.name}")


def safe_name(name: str) -> bool:
    """Whether a path stays inside the folder that it is joined to."""
    path = PurePosixPath(name)
    odd = "\\" in name or "\0" in name
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and not odd


def _starts_with(file: Path, magic: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(magic)) == magic


def _untar(archive: Path, writer: _Writer, progress: Progress, *, program: bool) -> None:
    total = archive.stat().st_size
    with archive.open("rb") as packed, closing(_decompressed(packed)) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                if member.isdir():
                    continue
                if program and (member.issym() or member.islnk()):
                    writer.remember_link(member.name, member.linkname, hard=member.islnk())
                    continue
                content = tar.extractfile(member) if member.isreg() else None
                if content is None:
                    raise writer.refusal(member.name, "is neither a file nor a folder")
                executable = program and bool(member.mode & stat.S_IXUSR)
                writer.write(member.name, content, member.size, executable=executable)
                progress("unpacking", packed.tell(), total)
        # The checksum comes last: only a stream that was read to its end is known to be intact.
        while stream.read(_CHUNK):
            progress("unpacking", packed.tell(), total)


def _decompressed(packed: IO[bytes]) -> IO[bytes]:
    magic = packed.read(6)
    packed.seek(0)
    if magic.startswith(b"\xfd7zXZ"):
        return cast(IO[bytes], lzma.open(packed))
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(packed))
    if magic.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(packed))
    return packed


def _unzip(archive: Path, writer: _Writer, progress: Progress) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        total = sum(member.file_size for member in members)
        for member in members:
            if member.is_dir():
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise writer.refusal(member.filename, "is neither a file nor a folder")
            if member.flag_bits & 1:
                raise writer.refusal(member.filename, "is encrypted")
            with packed.open(member) as content:
                writer.write(member.filename, content, member.file_size)
            progress("unpacking", writer.nbytes, total)


class _Writer:
    """Writes members below one folder, which holds no link while it does so."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self._archive, self._folder = archive, folder
        self._links: list[tuple[str, str, bool]] = []
        self.nbytes = self._num_files = 0

    def write(self, name: str, content: IO[bytes], size: int, *, executable: bool = False) -> None:
        path = self._admit(name, size)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
                written = file.tell()
        except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            raise self.refusal(name, "is both a file and a folder") from error
        if written != size:
            raise EOFError(f"{name} ends after {written:,} of {size:,} bytes")
        if executable:
            path.chmod(0o755)

    def remember_link(self, name: str, target: str, *, hard: bool) -> None:
        self._admit(name, 0)
        self._links.append((name, target, hard))

    def make_links(self) -> None:
        """Make the links when all files are there, so that none is written through a link."""
        root = self._folder.resolve()
        hard_first = sorted(self._links, key=lambda link: not link[2])
        for name, target, hard in hard_first:
            path = root / name
            if Path(os.path.realpath(path.parent)) != path.parent:
                raise self.refusal(name, "is reached through a link")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if hard:
                    self._check_inside(name, self._folder / target, root)
                    os.link(self._folder / target, path)
                else:
                    path.symlink_to(target)
            except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
                raise self.refusal(name, f"is a link to {target!r} that cannot be made") from error
        for name, _, _ in self._links:
            self._check_inside(name, self._folder / name, root)

    def _check_inside(self, name: str, path: Path, root: Path) -> None:
        # Not `resolve`: it raises on a circle of links, and an absolute path is followed alike.
        if root not in Path(os.path.realpath(path)).parents:
            raise self.refusal(name, "is a link that leads out of the folder")

    def _admit(self, name: str, size: int) -> Path:
        if not safe_name(name):
            raise self.refusal(name, "leads out of the folder")
        self.nbytes += size
        self._num_files += 1
        if self.nbytes > MOST_NBYTES or self._num_files > MOST_FILES:
            raise self.refusal(name, f"is beyond {MOST_NBYTES:,} bytes or {MOST_FILES:,} files")
        return self._folder / name

    def refusal(self, name: str, why: str) -> StorageError:
        return _refusal(self._archive, name, why)


def _refusal(archive: Path, name: str, why: str) -> StorageError:
    return StorageError(f"{archive} was not unpacked: its member {name!r} {why}")
