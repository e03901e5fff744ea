"""A folder with CoppeliaSim: which version it is, whether it is intact, and what is turned off."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm.errors import StorageError
from polyarm.suites.cache import Progress, write_whole
from polyarm.suites.rlbench.options import VERSION, Step

LIBRARY = "libcoppeliaSim.so"
"""What makes a folder CoppeliaSim's."""

LINKED = "libcoppeliaSim.so.1"
"""The name under which PyRep loads it; a link that PyRep's build makes."""

FOUND = "found"
"""The source of a CoppeliaSim that somebody else installed."""

_MANIFEST = "polyarm.json"
_FORMAT = 1
_AGAIN = "polyarm setup rlbench --force"

# The number that PyRep's setup.py gives.
_LICENCE_KEY = "allowOldEduRelease"
_LICENCE_LINE = f"{_LICENCE_KEY}=7501"

_ADD_ONS, _USRSET = "network add-ons", "usrset.txt"
_CONNECTIONS = "remoteApiConnections.txt"
_PARTS = ("MAJOR", "MINOR", "PATCH")
_REWRITTEN = {"system/settings.dat", "system/usrset.txt", _MANIFEST}
"""What a simulator, or the set-up, rewrites."""

_WANTED = f"RLBench needs exactly {VERSION}, CoppeliaSim_Edu_V4_1_0_Ubuntu20_04.tar.xz."


def version_of(folder: Path) -> str | None:
    """CoppeliaSim's version as its C header tells it, or None if that cannot be told."""
    usual = folder / "programming" / "include" / "simConst.h"
    others = () if usual.is_file() else folder.glob("programming/**/simConst.h")
    for header in [usual, *sorted(others)]:
        text = header.read_text(errors="replace") if header.is_file() else ""
        if number := re.search(r"#define\s+SIM_PROGRAM_VERSION_NB\s+(\d{5,})", text):
            value = int(number[1])
            return f"{value // 10000}.{value // 100 % 100}.{value % 100}"
        # As of 4.3 the number is put together from three.
        parts = [re.search(rf"#define\s+SIM_VERSION_{name}\s+(\d+)", text) for name in _PARTS]
        if all(parts):
            return ".".join(part[1] for part in parts if part)
    return None


def check_version(folder: Path, origin: str = "") -> None:
    """Refuse a folder that is not exactly the CoppeliaSim that PyRep needs.

    Args:
        folder: The folder.
        origin: What to call it in the message.

    Raises:
        StorageError: It is another version, or no CoppeliaSim.
    """
    name = origin or str(folder)
    if not (folder / LIBRARY).is_file():
        raise StorageError(f"{name} holds no CoppeliaSim: there is no {LIBRARY}. {_WANTED}")
    found = version_of(folder)
    if found is None:
        raise StorageError(
            f"the version of CoppeliaSim in {name} cannot be told: "
            f"programming/include/simConst.h is missing. {_WANTED}"
        )
    if found != VERSION:
        raise StorageError(f"{name} holds CoppeliaSim {found}, which PyRep cannot use. {_WANTED}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was installed.

    Attributes:
        source: The address or file that it came from. `FOUND` if it was there: earlier set-ups
            wrote a manifest into such folders, too.
        sha256: Of the archive, or "" if there was none.
        version: CoppeliaSim's.
        files: Size in bytes and sha256 of each file, by its path in the folder.
    """

    source: str
    sha256: str
    version: str
    files: dict[str, tuple[int, str]]

    @property
    def ours(self) -> bool:
        """Whether the set-up installed the folder, so that it may change and replace it."""
        return self.source != FOUND

    @classmethod
    def of(cls, folder: Path, source: str, sha256: str, progress: Progress) -> Manifest:
        """Take stock of a folder, without what is rewritten or will be disabled."""
        servers = network_add_ons(folder)
        found = [path for path in sorted(folder.rglob("*")) if not path.is_symlink()]
        names = [path.relative_to(folder).as_posix() for path in found if path.is_file()]
        names = [name for name in names if name not in _REWRITTEN]
        kept = [
            name for name in names if not any((folder / name).is_relative_to(s) for s in servers)
        ]
        files = {}
        for done, name in enumerate(kept):
            files[name] = ((folder / name).stat().st_size, sha256_of(folder / name))
            progress("taking stock", done + 1, len(kept))
        return cls(source, sha256, version_of(folder) or "", files)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest of a folder, or None if it has none.

        Raises:
            StorageError: There is one, but it cannot be read.
        """
        file = folder / _MANIFEST
        try:
            data: dict[str, Any] = json.loads(file.read_text())
            files = {path: (int(size), str(sha)) for path, (size, sha) in data["files"].items()}
            return cls(data["source"], data["sha256"], data["version"], files)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{file} cannot be read ({error!r}). Try: {_AGAIN}") from error

    def write(self, folder: Path) -> None:
        """Write it into its folder, all or nothing."""
        data = {"source": self.source, "sha256": self.sha256, "version": self.version}
        text = json.dumps({"format": _FORMAT, **data, "files": self.files}, indent=1)
        write_whole(folder / _MANIFEST, text + "\n")


def is_ours(folder: Path) -> bool:
    """Whether the set-up installed this folder.

    Raises:
        StorageError: Its manifest cannot be read.
    """
    manifest = Manifest.read(folder)
    return manifest is not None and manifest.ours


def check(folder: Path, *, deep: bool = False, progress: Progress | None = None) -> None:
    """Compare a folder with its manifest, if it has one.

    Args:
        folder: CoppeliaSim's.
        deep: Compare contents and not just sizes.
        progress: Is told how many files have been read.

    Raises:
        StorageError: It is another version, or a file is missing or differs.
    """
    check_version(folder)
    manifest = Manifest.read(folder)
    if manifest is None:
        return
    for done, (name, (size, sha)) in enumerate(manifest.files.items()):
        path = folder / name
        if not path.is_file():
            raise _damaged(path, "is missing", manifest)
        if (found := path.stat().st_size) != size:
            raise _damaged(path, f"has {found:,} bytes instead of {size:,}", manifest)
        if deep and sha256_of(path) != sha:
            raise _damaged(path, "has other contents than when it was installed", manifest)
        if progress is not None:
            progress("checking CoppeliaSim", done + 1, len(manifest.files))


def disable_add_ons(folder: Path) -> Step:
    """Rename what opens network ports, which many simulators on one machine would fight for."""
    step = plan_add_ons(folder)
    if step.state == "there":
        return step
    found = network_add_ons(folder)
    try:
        for path in found:
            path.rename(_free_name(path))
    except OSError as error:
        return Step(_ADD_ONS, "missing", _cannot_change(folder, error))
    return Step(_ADD_ONS, "done", f"renamed to *.disabled: {_listing(folder, found)}")


def plan_add_ons(folder: Path) -> Step:
    """What `disable_add_ons` would do: nothing in a folder that we did not install."""
    if not folder.is_dir():
        where = f"the remote API servers in {folder}"
        return Step(_ADD_ONS, "planned", f"would rename to *.disabled: {where}")
    if not (found := network_add_ons(folder)):
        return Step(_ADD_ONS, "there", "none is enabled")
    if not is_ours(folder):
        return Step(_ADD_ONS, "there", f"left as they are in {folder}; workers go without them")
    text = f"would rename to *.disabled: {_listing(folder, found)}"
    return Step(_ADD_ONS, "planned", text)


def allow_old_release(folder: Path) -> Step:
    """Let a release that has expired start, as PyRep's own set-up does."""
    step = plan_old_release(folder)
    if step.state == "there":
        return step
    try:
        write_licence_line(folder)
    except OSError as error:
        return Step(_USRSET, "missing", _cannot_change(folder, error))
    return Step(_USRSET, "done", f"{_LICENCE_LINE} in {_usrset(folder)}")


def plan_old_release(folder: Path) -> Step:
    """What `allow_old_release` would do: nothing in a folder that we did not install."""
    file = _usrset(folder)
    if _has_licence_line(folder):
        return Step(_USRSET, "there", f"{_LICENCE_KEY} in {file}")
    if folder.is_dir() and not is_ours(folder):
        text = f"{file} is left as it is; workers have {_LICENCE_LINE} in theirs"
        return Step(_USRSET, "there", text)
    return Step(_USRSET, "planned", f"would add {_LICENCE_LINE} to {file}")


def write_licence_line(folder: Path) -> None:
    """Add the line that lets an expired release start, unless it is there.

    Args:
        folder: CoppeliaSim's, or a worker's own copy of it.
    """
    if _has_licence_line(folder):
        return
    file = _usrset(folder)
    text = file.read_text(errors="replace") if file.exists() else ""
    file.parent.mkdir(exist_ok=True)
    ended = text if text.endswith("\n") or not text else f"{text}\n"
    write_whole(file, f"{ended}{_LICENCE_LINE}\n")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def network_add_ons(folder: Path) -> list[Path]:
    """Servers of the b0, ZMQ and WebSocket remote APIs, and the ports of the legacy one."""
    scripts = [path for path in folder.iterdir() if re.match("(sim|vrep)AddOn", path.name)]
    inner = list((folder / "addOns").iterdir()) if (folder / "addOns").is_dir() else []
    servers = [path for path in scripts + inner if re.search("remote ?api", path.name, re.I)]
    # Every start of the simulator opens the ports that this file lists, 19997 to begin with.
    servers += [folder / _CONNECTIONS, folder / "addOns" / "Connectivity"]
    found = {path for path in servers if path.exists() and ".disabled" not in path.name}
    return sorted(found)


def _free_name(path: Path) -> Path:
    names = [f"{path.name}.disabled", *(f"{path.name}.disabled-{n}" for n in range(2, 100))]
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


def _listing(folder: Path, paths: list[Path]) -> str:
    return ", ".join(path.relative_to(folder).as_posix() for path in paths)


def _cannot_change(folder: Path, error: OSError) -> str:
    return (
        f"{folder} cannot be changed ({error.strerror}). Give it to a user who may, or install "
        f"another: unset COPPELIASIM_ROOT && polyarm setup rlbench"
    )


def _usrset(folder: Path) -> Path:
    return folder / "system" / "usrset.txt"


def _has_licence_line(folder: Path) -> bool:
    file = _usrset(folder)
    return file.is_file() and _LICENCE_KEY in file.read_text(errors="replace")


def _damaged(path: Path, what: str, manifest: Manifest) -> StorageError:
    if manifest.ours:
        fix = f"Install it again with: {_AGAIN}"
        return StorageError(f"CoppeliaSim is damaged: {path} {what}. {fix}")
    return StorageError(
        f"CoppeliaSim, which polyarm did not install, has changed: {path} {what}. Repair it; or, "
        f"if that was on purpose, remove {_MANIFEST} from its folder; or install another: unset "
        f"COPPELIASIM_ROOT && polyarm setup rlbench"
    )
