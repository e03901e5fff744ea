"""Puts CoppeliaSim into a folder: found, unpacked or downloaded, all or nothing.

It is unpacked beside the final folder, and renamed when it is complete. What a killed set-up left
is cleared away by the next.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from polyarm.errors import InvalidCall, StorageError
from polyarm.suites.archive import extract
from polyarm.suites.cache import Progress, disk_errors
from polyarm.suites.rlbench.coppeliasim import (
    LIBRARY,
    Manifest,
    check,
    check_version,
    sha256_of,
    version_of,
)
from polyarm.suites.rlbench.download import download
from polyarm.suites.rlbench.environment import ROOT, suite_folder
from polyarm.suites.rlbench.options import VERSION, SetupOptions, Step

NAME = f"CoppeliaSim {VERSION}"
_ARCHIVE = "polyarm setup rlbench --archive CoppeliaSim_Edu_V4_1_0_Ubuntu20_04.tar.xz"


def install_coppeliasim(options: SetupOptions, progress: Progress) -> tuple[Path, Step]:
    """Install it unless it is there and intact.

    Returns:
        Its folder, and how it went.

    Raises:
        StorageError: The archive is unfit, the download failed or the disk is full.
        InvalidCall: The folder to install into holds something else.
    """
    target = target_folder(options)
    if (found := _intact(target, options, progress)) is not None:
        return target, found
    _check_free(target)
    draft = target.with_name(f"{target.name}.part-{os.getpid()}")
    with disk_errors(f"{NAME} was", target):
        _clear_leftovers(target)
        archive = options.archive or _fetched(options, progress)
        try:
            sha256 = _checked(archive, options, progress)
            extract(archive, draft, progress, program=True)
            folder = _program_within(draft, str(archive))
            check_version(folder, str(archive))
            source = str(archive.resolve()) if options.archive else options.url
            Manifest.of(folder, source, sha256, progress).write(folder)
            _put_in_place(folder, target)
        except StorageError:
            # A download that cannot be used is not used again.
            if options.archive is None:
                archive.unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if options.archive is None:
            archive.unlink()
    return target, Step(NAME, "done", f"{target}, from {source} (sha256 {sha256})")


def plan(options: SetupOptions) -> tuple[Path, Step]:
    """What `install_coppeliasim` would do."""
    target = target_folder(options)
    if not options.force and version_of(target) == VERSION:
        return target, Step(NAME, "there", str(target))
    source = f"download {options.url} (going on where an earlier attempt ended), and "
    if options.archive is not None:
        source = f"check {options.archive}, and "
    return target, Step(NAME, "planned", f"would {source}unpack it to {target}")


def target_folder(options: SetupOptions) -> Path:
    """Where CoppeliaSim is, or will be.

    ``--prefix`` if given; else ``$COPPELIASIM_ROOT``, if that is exactly the version needed and no
    archive is to be installed; else our cache.
    """
    if options.prefix is not None:
        return options.prefix.absolute()
    given = os.environ.get(ROOT)
    if given and options.archive is None and version_of(Path(given)) == VERSION:
        return Path(given).absolute()
    return suite_folder() / "CoppeliaSim"


def rejected_root(target: Path) -> str:
    """A warning where ``$COPPELIASIM_ROOT`` names another folder than is used here, or ""."""
    given = os.environ.get(ROOT)
    if not given or Path(given).resolve() == target.resolve():
        return ""
    found = version_of(Path(given)) or "no known version"
    return f"{ROOT} is {given} ({found}), which is not used. Unset it, or source the file above."


def _intact(target: Path, options: SetupOptions, progress: Progress) -> Step | None:
    """The step, if there is nothing to do: ours and as it was, or somebody else's."""
    if not target.is_dir() or not (target / LIBRARY).exists():
        return None
    manifest = Manifest.read(target)
    if manifest is None:
        check_version(target)
        return _adopted(target, progress)
    if options.force:
        return None
    try:
        check(target, deep=True, progress=progress)
    except StorageError as error:
        if manifest.source == "found":
            raise
        progress(f"installing again: {str(error).partition('. ')[0]}", 0, 0)
        return None
    if options.sha256 and manifest.sha256 not in ("", options.sha256.lower()):
        progress("installing again: the archive had another SHA-256", 0, 0)
        return None
    return Step(NAME, "there", f"{target}, from {manifest.source}")


def _adopted(target: Path, progress: Progress) -> Step:
    """Use a CoppeliaSim that somebody else installed, and remember what it was."""
    try:
        Manifest.of(target, "found", "", progress).write(target)
    except OSError:
        return Step(NAME, "there", f"{target}, found there (read-only, so without a manifest)")
    return Step(NAME, "there", f"{target}, found there")


def _check_free(target: Path) -> None:
    """Refuse to replace what the set-up did not install."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    manifest = Manifest.read(target)
    if manifest is None:
        raise InvalidCall(f"{target} holds something else; give another folder with --prefix")
    if manifest.source == "found":
        raise InvalidCall(
            f"{target} was there before polyarm, which does not replace it; unset {ROOT}, or give "
            f"another folder with --prefix"
        )


def _fetched(options: SetupOptions, progress: Progress) -> Path:
    file = suite_folder() / "download" / Path(options.url).name
    if not file.exists():
        download(options.url, file, progress, f"without a connection: {_ARCHIVE}")
    return file


def _checked(archive: Path, options: SetupOptions, progress: Progress) -> str:
    """The archive's SHA-256."""
    if not archive.is_file():
        raise StorageError(f"there is no archive {archive}")
    progress("checking the archive", 0, 0)
    found, wanted = sha256_of(archive), options.sha256.strip().lower()
    if wanted and found != wanted:
        raise StorageError(
            f"{archive} is not what was asked for: its SHA-256 is {found} instead of {wanted}. "
            f"Get it again from {options.url}, or correct --sha256"
        )
    return found


def _program_within(draft: Path, origin: str) -> Path:
    for folder in [draft, *sorted(draft.glob("*/"))]:
        if (folder / LIBRARY).is_file():
            return folder
    raise StorageError(f"{origin} holds no CoppeliaSim: there is no {LIBRARY} in it")


def _put_in_place(folder: Path, target: Path) -> None:
    """Exchange the folders. The manifest lies inside, so it comes and goes with its folder."""
    old = target.with_name(f"{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    folder.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _clear_leftovers(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("part", "old"):
        for left in target.parent.glob(f"{target.name}.{kind}-*"):
            shutil.rmtree(left, ignore_errors=True)
