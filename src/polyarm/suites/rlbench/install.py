"""Puts CoppeliaSim into a folder: found, unpacked or downloaded, all or nothing.

It is unpacked beside the final folder, and renamed when it is complete. What a killed set-up left
is cleared away by the next. A CoppeliaSim that somebody else installed is used and never changed.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyarm.errors import InvalidCall, StorageError
from polyarm.suites.archive import check_links, extract
from polyarm.suites.cache import Progress, disk_errors, write_whole
from polyarm.suites.rlbench.coppeliasim import (
    LIBRARY,
    Manifest,
    check,
    check_version,
    sha256_of,
    version_of,
)
from polyarm.suites.rlbench.download import download
from polyarm.suites.rlbench.environment import ROOT, earlier, suite_folder, writable_twin
from polyarm.suites.rlbench.options import VERSION, SetupOptions, Step

NAME = f"CoppeliaSim {VERSION}"
_ARCHIVE = "polyarm setup rlbench --archive CoppeliaSim_Edu_V4_1_0_Ubuntu20_04.tar.xz"
_MARK = "made-by-polyarm-setup"
"""A file in every folder for unfinished work, locked while somebody works there."""


def install_coppeliasim(options: SetupOptions, progress: Progress) -> tuple[Path, Step]:
    """Install it unless it is there and intact.

    Returns:
        Its folder, and how it went.

    Raises:
        StorageError: The archive is unfit, the download failed or the disk is full.
        InvalidCall: The folder to install into holds something else.
    """
    target = target_folder(options)
    found = _there(target, options, progress)
    if isinstance(found, Step):
        return target, found
    if found:
        progress(f"installing again: {found}", 0, 0)
    way = f"{'set POLYARM_CACHE to' if options.prefix is None else 'with --prefix give'} a folder"
    with (
        disk_errors(f"{NAME} was", target, way),
        _workshop(target) as work,
    ):
        archive = options.archive or _fetched(options, progress)
        sha256 = _checked(archive, options, progress)
        try:
            extract(archive, work / "new", progress, program=True)
            folder = _program_within(work / "new", str(archive))
            check_links(archive, folder)
            check_version(folder, str(archive))
            source = str(archive.resolve()) if options.archive else options.url
            Manifest.of(folder, source, sha256, progress).write(folder)
        except StorageError:
            # A download that cannot be used is not used again.
            if options.archive is None:
                archive.unlink(missing_ok=True)
            raise
        _put_in_place(folder, target, work / "old")
        if options.archive is None:
            _remember(options.url, sha256)
            archive.unlink()
    return target, Step(NAME, "done", f"{target}, from {source} ({_verified(options, sha256)})")


def plan(options: SetupOptions) -> tuple[Path, Step]:
    """What `install_coppeliasim` would do."""
    target = target_folder(options)
    try:
        found = _there(target, options, lambda *_: None)
    except (InvalidCall, StorageError) as error:
        return target, Step(NAME, "missing", f"would stop here: {error}")
    if isinstance(found, Step):
        return target, found
    source = f"download {options.url} (going on where an earlier attempt ended), and "
    if options.archive is not None:
        source = f"check {options.archive}, and "
    elif not options.sha256:
        source += "show its SHA-256 (none is published to verify it; --sha256 pins one), and "
    again = f" again, because {found}" if found else ""
    return target, Step(NAME, "planned", f"would {source}unpack it to {target}{again}")


def target_folder(options: SetupOptions) -> Path:
    """Where CoppeliaSim is, or will be.

    ``--prefix`` if given; else ``$COPPELIASIM_ROOT``, if that is exactly the version needed and no
    archive is to be installed; else that of the last set-up; else our cache.
    """
    if options.prefix is not None:
        return options.prefix.absolute()
    given = os.environ.get(ROOT)
    if given and options.archive is None and version_of(Path(given)) == VERSION:
        return Path(given).absolute()
    written = earlier()
    if written is not None and _can_be_used(written.root, options):
        return written.root
    return suite_folder() / "CoppeliaSim"


def rejected_root(target: Path) -> str:
    """A warning where ``$COPPELIASIM_ROOT`` names another folder than is used here, or ""."""
    given = os.environ.get(ROOT)
    if not given or Path(given).resolve() == target.resolve():
        return ""
    if target == writable_twin(Path(given)):
        return ""
    found = version_of(Path(given)) or "no known version"
    return f"{ROOT} is {given} ({found}), which is not used. Unset it, or source the file above."


def _can_be_used(root: Path, options: SetupOptions) -> bool:
    """Whether the last set-up's folder can be used, repaired, or made again."""
    if root.parent == writable_twin(root).parent:  # links to another folder, which may be gone
        return options.archive is None and version_of(root) == VERSION
    try:
        manifest = Manifest.read(root)
    except StorageError:
        return True  # told when it is looked at
    if not _holds_something(root) or (manifest is not None and manifest.ours):
        return True
    return options.archive is None and version_of(root) == VERSION


def _there(target: Path, options: SetupOptions, progress: Progress) -> Step | str:
    """The step if there is nothing to do; else why what is there is replaced, or "".

    Raises:
        StorageError: The folder is somebody else's, and not what is needed.
        InvalidCall: It holds something else.
    """
    try:
        manifest = Manifest.read(target)
    except StorageError:
        if options.force and target.is_relative_to(suite_folder()):
            return "its manifest cannot be read"
        raise
    if manifest is not None and manifest.ours:
        return _ours(target, manifest, options, progress)
    if not _holds_something(target):
        return ""
    if not (target / LIBRARY).exists():
        raise InvalidCall(f"{target} holds something else; give another folder with --prefix")
    if options.archive is not None:
        raise InvalidCall(
            f"{target} was there before polyarm, which does not replace it; give another folder "
            f"with --prefix, or leave out --archive to use it"
        )
    check(target, deep=True, progress=progress)
    kept = "; checked again and kept, since polyarm did not install it" if options.force else ""
    return Step(NAME, "there", f"{target}, found there and left as it is{kept}")


def _ours(
    target: Path, manifest: Manifest, options: SetupOptions, progress: Progress
) -> Step | str:
    if options.force:
        return "--force was given"
    try:
        check(target, deep=True, progress=progress)
    except StorageError as error:
        return str(error).partition(". Install")[0]
    if options.sha256 and manifest.sha256 not in ("", options.sha256.lower()):
        return "the archive had another SHA-256"
    return Step(NAME, "there", f"{target}, from {manifest.source}")


def _holds_something(folder: Path) -> bool:
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


def _fetched(options: SetupOptions, progress: Progress) -> Path:
    file = suite_folder() / "download" / Path(options.url).name
    if not file.exists():
        download(options.url, file, progress, f"without a connection: {_ARCHIVE}")
    return file


def _checked(archive: Path, options: SetupOptions, progress: Progress) -> str:
    """The archive's SHA-256, which is what was asked for, or what it was last time."""
    if not archive.is_file():
        raise StorageError(f"there is no archive {archive}")
    progress("checking the archive", 0, 0)
    found, wanted = sha256_of(archive), options.sha256.strip().lower()
    again = f"remove {archive} and give the same command again to download it anew"
    if wanted and found != wanted:
        get = again if options.archive is None else f"get it again from {options.url}"
        raise StorageError(
            f"{archive} is not what was asked for: its SHA-256 is {found} instead of {wanted}. "
            f"Correct --sha256, or {get}"
        )
    before = "" if options.archive else _remembered().get(options.url, found)
    if before and not wanted and found != before:
        raise StorageError(
            f"{options.url} has brought another file than last time: its SHA-256 is {found}, and "
            f"was {before}. To use it nevertheless give --sha256 {found}; else {again}"
        )
    return found


def _verified(options: SetupOptions, sha256: str) -> str:
    if options.sha256:
        return f"sha256 {sha256}, as asked for"
    return f"sha256 {sha256}, not verified: no checksum is published, --sha256 pins this one"


def _remembered() -> dict[str, str]:
    """The SHA-256 of what was installed before, by its address."""
    try:
        return dict(json.loads((suite_folder() / "downloads.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _remember(url: str, sha256: str) -> None:
    text = json.dumps(_remembered() | {url: sha256}, indent=1)
    write_whole(suite_folder() / "downloads.json", f"{text}\n")


def _program_within(draft: Path, origin: str) -> Path:
    folders = [path for path in sorted(draft.glob("*/")) if not path.is_symlink()]
    for folder in [draft, *folders]:
        if (folder / LIBRARY).is_file():
            return folder
    raise StorageError(f"{origin} holds no CoppeliaSim: there is no {LIBRARY} in it")


def _put_in_place(folder: Path, target: Path, old: Path) -> None:
    """Exchange the folders. The manifest lies inside, so it comes and goes with its folder."""
    if target.exists():
        target.rename(old)
    folder.rename(target)


@contextmanager
def _workshop(target: Path) -> Iterator[Path]:
    """A folder beside the target, gone afterwards; what killed set-ups left goes, too."""
    prefix = f".polyarm-setup-{target.name}-"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise StorageError(
            f"{NAME} cannot be installed into {target}: {error}. Give a folder that you may write "
            f"to with --prefix"
        ) from error
    try:
        with (work / _MARK).open("w") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            _clear_leftovers(target.parent, prefix)
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _clear_leftovers(folder: Path, prefix: str) -> None:
    """Delete unfinished work: folders of this name with our mark that nobody holds."""
    for left in folder.glob(f"{glob.escape(prefix)}*"):
        if left.is_symlink() or not (left / _MARK).is_file():
            continue
        with (left / _MARK).open() as mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # another set-up works there
            shutil.rmtree(left, ignore_errors=True)
