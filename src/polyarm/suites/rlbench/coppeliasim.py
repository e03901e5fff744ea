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

_MANIFEST = "polyarm.json"
_FORMAT = 1
_AGAIN = "polyarm setup rlbench --force"

# The number that PyRep's setup.py gives.
_LICENCE_KEY = "allowOldEduRelease"
_LICENCE_LINE = f"{_LICENCE_KEY}=7501"

_ADD_ONS, _USRSET = "network add-ons", "usrset.txt"
_CONNECTIONS = "remoteApiConnections.txt"
_PARTS = ("MAJOR", "MINOR", "PATCH")
_WANTED = f"RLBench needs exactly {VERSION}, CoppeliaSim_Edu_V4_1_0_Ubuntu20_04.tar.xz."


def version_of(folder: Path) -> str | None:
    """CoppeliaSim's version as its C header tells it, or None if that cannot be told."""
    for header in sorted(folder.glob("programming/**/simConst.h")):
        text = header.read_text(errors="replace")
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
        source: The address or file that it came from; ``"found"`` if it was there.
        sha256: Of the archive, or "" if there was none.
        version: CoppeliaSim's.
        files: Size in bytes and sha256 of each program and library, by its path in the folder.
    """

    source: str
    sha256: str
    version: str
    files: dict[str, tuple[int, str]]

    @classmethod
    def of(cls, folder: Path, source: str, sha256: str, progress: Progress) -> Manifest:
        """Take stock of a folder; what the simulator rewrites, such as settings, is left out."""
        found = [*sorted(folder.rglob("*.so*")), *sorted(folder.glob("coppeliaSim*"))]
        paths = [path for path in found if path.is_file() and not path.is_symlink()]
        files = {}
        for done, path in enumerate(paths):
            files[path.relative_to(folder).as_posix()] = (path.stat().st_size, sha256_of(path))
            progress("taking stock", done + 1, len(paths))
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


def check(folder: Path, *, deep: bool = False, progress: Progress | None = None) -> None:
    """Compare a folder with its manifest, if it has one.

    Args:
        folder: CoppeliaSim's.
        deep: Compare contents and not just sizes.
        progress: Is told how many files have been read.

    Raises:
        StorageError: It is another version, or a program or library is missing or differs.
    """
    check_version(folder)
    manifest = Manifest.read(folder)
    files = {} if manifest is None else manifest.files
    for done, (name, (size, sha)) in enumerate(files.items()):
        path = folder / name
        if not path.is_file():
            raise _damaged(path, "is missing")
        if (found := path.stat().st_size) != size:
            raise _damaged(path, f"has {found:,} bytes instead of {size:,}")
        if deep and sha256_of(path) != sha:
            raise _damaged(path, "has other contents than when it was installed")
        if progress is not None:
            progress("checking CoppeliaSim", done + 1, len(files))


def disable_add_ons(folder: Path) -> Step:
    """Rename what opens network ports, which many simulators on one machine would fight for."""
    found = network_add_ons(folder)
    if not found:
        return Step(_ADD_ONS, "there", "none is enabled")
    try:
        for path in found:
            path.rename(_free_name(path))
    except OSError as error:
        return Step(_ADD_ONS, "missing", _cannot_change(folder, error))
    return Step(_ADD_ONS, "done", f"renamed to *.disabled: {_listing(folder, found)}")


def plan_add_ons(folder: Path) -> Step:
    """What `disable_add_ons` would do."""
    if not folder.is_dir():
        where = f"the remote API servers in {folder}"
        return Step(_ADD_ONS, "planned", f"would rename to *.disabled: {where}")
    if found := network_add_ons(folder):
        text = f"would rename to *.disabled: {_listing(folder, found)}"
        return Step(_ADD_ONS, "planned", text)
    return Step(_ADD_ONS, "there", "none is enabled")


def allow_old_release(folder: Path) -> Step:
    """Let a release that has expired start, as PyRep's own set-up does."""
    step = plan_old_release(folder)
    if step.state == "there":
        return step
    file = folder / "system" / "usrset.txt"
    try:
        text = file.read_text() if file.exists() else ""
        file.parent.mkdir(exist_ok=True)
        ended = text if text.endswith("\n") or not text else f"{text}\n"
        write_whole(file, f"{ended}{_LICENCE_LINE}\n")
    except OSError as error:
        return Step(_USRSET, "missing", _cannot_change(folder, error))
    return Step(_USRSET, "done", f"{_LICENCE_LINE} in {file}")


def plan_old_release(folder: Path) -> Step:
    """What `allow_old_release` would do."""
    file = folder / "system" / "usrset.txt"
    if file.is_file() and _LICENCE_KEY in file.read_text():
        return Step(_USRSET, "there", f"{_LICENCE_KEY} in {file}")
    return Step(_USRSET, "planned", f"would add {_LICENCE_LINE} to {file}")


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


def _damaged(path: Path, what: str) -> StorageError:
    return StorageError(f"CoppeliaSim is damaged: {path} {what}. Install it again with: {_AGAIN}")
