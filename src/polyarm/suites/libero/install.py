"""Puts LIBERO's assets into our cache: unpacked, copied or downloaded, all or nothing.

Everything happens in a folder beside the final one, which is renamed when it is complete. One
process at a time does it; what a killed one left is cleared away by the next.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from polyarm.errors import StorageError
from polyarm.suites.archive import extract
from polyarm.suites.cache import Progress, alone, disk_errors
from polyarm.suites.libero.assets import (
    Manifest,
    check_assets,
    holds_assets,
    manifest_file,
    suite_folder,
)
from polyarm.suites.libero.download import REPOSITORY, download

# LIBERO's own scenes name some files that never existed: 15 of 347 in the complete set.
_MOST_DANGLING = 0.1

# Where assets lie in a checkout, in an installed package, and in archives of either.
_PLACES = (".", "assets", "libero/assets", "libero/libero/assets", "*/assets", "*/*/*/assets")


def install_assets(
    source: Path | None, progress: Progress, *, force: bool = False, revision: str = "main"
) -> tuple[Manifest, bool]:
    """Install the assets unless they are there and intact.

    Args:
        source: An archive, or a folder that holds the assets: they are copied. None takes those of
            a LIBERO that is installed here, and if there is none downloads them.
        progress: Is told how it goes.
        force: Install even if they are there.
        revision: What to download.

    Returns:
        The manifest, and whether anything was installed.

    Raises:
        StorageError: The source is unfit, the download failed or the disk is full.
        MissingExtra: A download needs huggingface_hub.
        RunConflict: Another installation does not come to an end.
    """
    if source is not None and not source.exists():
        raise StorageError(f"there is no folder or archive {source}")
    target = suite_folder() / "assets"
    draft = target.with_name(f"assets.part-{os.getpid()}")
    lock = target.with_name("assets.lock")
    with (
        disk_errors("LIBERO's assets were", target),
        alone(lock, "LIBERO", progress),
    ):
        if not force and (manifest := _intact(target, progress)) is not None:
            return manifest, False
        _clear_leftovers(target)
        try:
            found, origin, commit = _gather(source, draft, revision, progress)
            manifest = Manifest.of(found, origin, commit, progress)
            _put_in_place(found, target, manifest)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return manifest, True


def existing_installation(progress: Progress) -> Path | None:
    """The assets of a LIBERO that was installed without us, if they are complete."""
    for folder in _other_places():
        if not holds_assets(folder) or folder.resolve() == (suite_folder() / "assets").resolve():
            continue
        try:
            _check_complete(folder)
        except StorageError as error:
            progress(f"not used: {error}", 0, 0)
            continue
        return folder
    return None


def _intact(target: Path, progress: Progress) -> Manifest | None:
    """The manifest of what is installed, if every byte of it is as it was."""
    if not holds_assets(target) or not manifest_file(target).exists():
        return None
    try:
        check_assets(target, deep=True, progress=progress)
        return Manifest.read(target)
    except StorageError as error:
        progress(f"installing again: {str(error).partition('. ')[0]}", 0, 0)
        return None


def _gather(
    source: Path | None, draft: Path, revision: str, progress: Progress
) -> tuple[Path, str, str]:
    """Where the files are now, all on the cache's disk, where they came from, and which commit."""
    if source is None:
        source = existing_installation(progress)
    if source is None:
        folder = suite_folder() / "download"
        commit = download(folder, revision, progress)
        folder.rename(draft)
        return _assets_within(draft, REPOSITORY), REPOSITORY, commit
    source = source.resolve()
    if source.is_dir():
        found = _assets_within(source, str(source))
        _check_complete(found)
        _copy(found, draft, progress)
        return draft, str(source), ""
    extract(source, draft, progress)
    found = _assets_within(draft, str(source))
    _check_complete(found, str(source))
    return found, str(source), ""


def _assets_within(folder: Path, origin: str) -> Path:
    for place in _PLACES:
        for found in sorted(folder.glob(place)) if "*" in place else [folder / place]:
            if holds_assets(found):
                return found
    raise StorageError(
        f"{origin} holds no LIBERO assets: looked for a folder with articulated_objects, scenes, "
        f"textures … in {', '.join(_PLACES)}"
    )


def _check_complete(folder: Path, origin: str = "") -> None:
    """Refuse a folder that lacks many of the files which its scenes and objects name."""
    named, missing = 0, list[Path]()
    for scene in folder.rglob("*.xml"):
        try:
            names = [node.get("file") for node in ElementTree.parse(scene).iter()]
        except ElementTree.ParseError as error:
            raise StorageError(f"{origin or folder} is damaged: {scene.name}: {error}") from error
        files = [scene.parent / name for name in names if name]
        named += len(files)
        missing += [file for file in files if not file.exists()]
    if len(missing) > _MOST_DANGLING * named:
        raise StorageError(
            f"{origin or folder} is incomplete: {len(missing)} of the {named} files that its XML "
            f"names are missing, such as {os.path.normpath(missing[0])}"
        )


def _copy(source: Path, target: Path, progress: Progress) -> None:
    """Copy the files that links lead to, never the links; hidden files stay behind."""
    files = list(_files_below(source, set()))
    for done, path in enumerate(files):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        progress(f"copying {source}", done + 1, len(files))


def _files_below(folder: Path, seen: set[Path]) -> Iterator[Path]:
    if (real := folder.resolve()) in seen:
        return
    seen.add(real)
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_below(entry, seen)
        else:
            yield entry


def _put_in_place(found: Path, target: Path, manifest: Manifest) -> None:
    """Exchange the folders; the manifest goes first and comes last."""
    manifest_file(target).unlink(missing_ok=True)
    old = target.with_name(f"assets.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    found.rename(target)
    manifest.write(target)
    shutil.rmtree(old, ignore_errors=True)


def _clear_leftovers(target: Path) -> None:
    for pattern in ("assets.part-*", "assets.old-*"):
        for left in target.parent.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def _other_places() -> Iterator[Path]:
    package = importlib.util.find_spec("libero")
    for root in (package.submodule_search_locations or ()) if package is not None else ():
        yield Path(root) / "libero" / "assets"
    config = Path(os.environ.get("LIBERO_CONFIG_PATH") or Path.home() / ".libero") / "config.yaml"
    if config.is_file():
        text = config.read_text(errors="replace")
        for value in re.findall(r"^assets:\s*(\S.*?)\s*$", text, re.MULTILINE):
            yield Path(value.strip("'\""))
    yield Path.home() / ".cache" / "libero" / "assets"
