"""Where LIBERO's meshes and textures lie on this machine, and whether they are intact.

A folder in our cache counts only together with its manifest, which is written last: an
installation that was killed is no installation.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from polyarm.errors import MissingExtra, StorageError
from polyarm.suites.cache import Progress, cache_folder, write_whole

FOLDERS = (
    "articulated_objects",
    "scenes",
    "stable_hope_objects",
    "stable_scanned_objects",
    "textures",
    "turbosquid_objects",
)
"""What every complete set of assets holds."""

INSTALL = "pip install 'polyarm[libero]' && polyarm setup libero"

_SETUP = "polyarm setup libero"
_GIVEN = "POLYARM_LIBERO_ASSETS"
_FORMAT = 1


def suite_folder() -> Path:
    """The part of the cache that is LIBERO's."""
    return cache_folder() / "libero"


def assets_folder() -> Path:
    """``$POLYARM_LIBERO_ASSETS``, else the folder in the cache that the set-up fills."""
    if given := os.environ.get(_GIVEN):
        return Path(given).absolute()
    return suite_folder() / "assets"


def find_assets() -> Path | None:
    """The assets' folder if it looks complete, from a handful of lookups."""
    folder = assets_folder()
    finished = bool(os.environ.get(_GIVEN)) or manifest_file(folder).exists()
    return folder if finished and holds_assets(folder) else None


def holds_assets(folder: Path) -> bool:
    """Whether a folder has the sub-folders of LIBERO's assets."""
    return all((folder / name).is_dir() for name in FOLDERS)


def checked_folder() -> Path:
    """The assets' folder, each file in its place with its size; takes a few milliseconds.

    Raises:
        StorageError: Something is missing or has another size; names it and the way out.
    """
    folder = assets_folder()
    check_assets(folder)
    return folder


def check_assets(folder: Path, *, deep: bool = False, progress: Progress | None = None) -> None:
    """Compare a folder of assets with the manifest that was written when it was installed.

    Args:
        folder: The folder. One that ``POLYARM_LIBERO_ASSETS`` names needs no manifest.
        deep: Compare contents and not just sizes.
        progress: Is told how many files have been read.

    Raises:
        StorageError: A file is missing or differs; names the first one and the way out.
    """
    manifest = Manifest.read(folder)
    if not folder.is_dir() or (manifest is None and not holds_assets(folder)):
        missing = [name for name in FOLDERS if not (folder / name).is_dir()]
        lacks = f"has no {missing[0]}/" if folder.is_dir() else "does not exist"
        raise StorageError(f"LIBERO's assets are missing: {folder} {lacks}. {_way_out(None)}")
    if manifest is None:
        if os.environ.get(_GIVEN):
            return
        raise StorageError(
            f"LIBERO's assets in {folder} were not installed to the end: {manifest_file(folder)} "
            f"is missing. {_way_out(None)}"
        )
    _check_sizes(folder, manifest)
    if deep:
        _check_contents(folder, manifest, progress)


def unusable(folder: Path, error: Exception) -> StorageError:
    """What to tell when a model cannot be built from assets that looked complete.

    Args:
        folder: The assets' folder.
        error: Of robosuite or MuJoCo; both name a mesh or texture, but not a broken XML file.
    """
    what = str(error).strip().replace("\n", ", ")
    if isinstance(error, ElementTree.ParseError):
        what = f"{_first_broken_xml(folder) or 'an XML file'}: {what}"
    way_out = _way_out(Manifest.read(folder))
    return StorageError(f"LIBERO's assets in {folder} cannot be used: {what}. {way_out}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was installed.

    Attributes:
        source: The folder, archive or repository it came from.
        revision: The repository's commit, or "".
        files: Size in bytes and sha256 of every file, by its path inside the folder.
    """

    source: str
    revision: str
    files: dict[str, tuple[int, str]]

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        return sum(size for size, _ in self.files.values())

    @classmethod
    def of(cls, folder: Path, source: str, revision: str, progress: Progress) -> Manifest:
        """Take stock of a folder."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {}
        with ThreadPoolExecutor(_num_threads()) as pool:
            for done, (path, digest) in enumerate(
                zip(paths, pool.map(_sha256, paths), strict=True)
            ):
                files[path.relative_to(folder).as_posix()] = (path.stat().st_size, digest)
                progress("taking stock", done + 1, len(paths))
        return cls(source, revision, files)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest of a folder, or None if it has none.

        Raises:
            StorageError: There is one, but it cannot be read.
        """
        file = manifest_file(folder)
        try:
            data: dict[str, Any] = json.loads(file.read_text())
            files = {path: (int(size), str(sha)) for path, (size, sha) in data["files"].items()}
            return cls(str(data["source"]), str(data["revision"]), files)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{file} cannot be read ({error!r}). {_way_out(None)}") from error

    def write(self, folder: Path) -> None:
        """Write it beside its folder, all or nothing."""
        data = {"format": _FORMAT, "source": self.source, "revision": self.revision}
        write_whole(manifest_file(folder), json.dumps({**data, "files": self.files}))


def manifest_file(folder: Path) -> Path:
    """Where the manifest of a folder lies: beside it."""
    return folder.with_name(f"{folder.name}.json")


def package_folder() -> Path:
    """Where LIBERO's definitions and initial states are; imports nothing.

    Raises:
        MissingExtra: hf-libero is not installed.
    """
    package = importlib.util.find_spec("libero")
    if package is None or not package.submodule_search_locations:
        raise MissingExtra(f"LIBERO (hf-libero) is not installed. Install it with: {INSTALL}")
    return Path(next(iter(package.submodule_search_locations))) / "libero"


def prepare_libero_config() -> None:
    """Give LIBERO its configuration in our cache, so that it neither asks nor touches the home.

    To be called before ``libero.libero`` is imported; any number of processes may do so at once.

    Raises:
        MissingExtra: hf-libero is not installed.
        StorageError: The cache cannot be written to.
    """
    root = package_folder()
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": suite_folder() / "datasets",
        "assets": assets_folder(),
    }
    # Text in double quotes is the same in JSON and in YAML.
    text = "".join(f"{key}: {json.dumps(str(path))}\n" for key, path in paths.items())
    # Environments with packages in other places share the cache, so each has its own file.
    folder = suite_folder() / "config" / hashlib.sha256(text.encode()).hexdigest()[:12]
    os.environ["LIBERO_CONFIG_PATH"] = str(folder)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(suite_folder() / "numba"))
    os.environ.setdefault("MPLCONFIGDIR", str(suite_folder() / "matplotlib"))
    try:
        for name in ("NUMBA_CACHE_DIR", "MPLCONFIGDIR"):
            Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
        if not (folder / "config.yaml").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "config.yaml", text)
    except OSError as error:
        raise StorageError(
            f"LIBERO's configuration cannot be written: {error}. Set POLYARM_CACHE to a folder "
            f"that you may write to."
        ) from error


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, (size, _) in manifest.files.items():
        try:
            found = os.stat(f"{folder}/{name}").st_size  # noqa: PTH116  Path takes four times as long
        except OSError as error:
            raise _damaged(folder / name, "is missing", manifest) from error
        if found != size:
            raise _damaged(folder / name, f"has {found:,} bytes instead of {size:,}", manifest)


def _check_contents(folder: Path, manifest: Manifest, progress: Progress | None) -> None:
    paths = [folder / name for name in manifest.files]
    with ThreadPoolExecutor(_num_threads()) as pool:
        digests = pool.map(_sha256, paths)
        for done, (path, (_, expected)) in enumerate(
            zip(paths, manifest.files.values(), strict=True)
        ):
            try:
                found = next(digests)
            except OSError as error:
                raise _damaged(path, f"cannot be read ({error.strerror})", manifest) from error
            if found != expected:
                raise _damaged(path, "has other contents than when it was installed", manifest)
            if progress is not None:
                progress("checking", done + 1, len(paths))


def _damaged(path: Path, what: str, manifest: Manifest) -> StorageError:
    return StorageError(f"LIBERO's assets are damaged: {path} {what}. {_way_out(manifest)}")


def _way_out(manifest: Manifest | None) -> str:
    if given := os.environ.get(_GIVEN):
        return f"{_GIVEN} is {given!r}: correct it, or unset it and run: {_SETUP}"
    if manifest is not None and Path(manifest.source).exists():
        return f"Install them again with: {_SETUP} --assets {shlex.quote(manifest.source)}"
    return f"Install them with: {_SETUP}  (or, offline: {_SETUP} --assets <folder or archive>)"


def _first_broken_xml(folder: Path) -> Path | None:
    for file in sorted(folder.rglob("*.xml")):
        try:
            ElementTree.parse(file)
        except ElementTree.ParseError:
            return file
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _num_threads() -> int:
    return min(4, len(os.sched_getaffinity(0)))
