"""A CoppeliaSim of a few bytes, packed or unpacked, and an empty cache to put it into."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

TOP = "CoppeliaSim_Edu_V4_1_0_Ubuntu20_04"
# The first lines of the headers of 4.1.0 and 4.10.0, which tell the version in different ways.
HEADER = '#define SIM_PROGRAM_VERSION_NB 40100\n#define SIM_PROGRAM_VERSION "4.1.0."\n'
NEW_HEADER = (
    "#define SIM_VERSION_MAJOR 4\n#define SIM_VERSION_MINOR 10\n#define SIM_VERSION_PATCH 0\n"
    "#define SIM_PROGRAM_VERSION_NB (((SIM_VERSION_MAJOR) * 10000) + (SIM_VERSION_PATCH))\n"
)
FILES = {
    "libcoppeliaSim.so": "library",
    "libQt5Core.so.5.12.5": "Qt",
    "coppeliaSim": "program",
    "programming/include/simConst.h": HEADER,
    "system/usrset.txt": "doNotShowUpdate=1",
    "simAddOnScript-b0RemoteApiServer.lua": "b0",
    "simAddOnScript-addOnScriptDemo.lua": "harmless",
    "remoteApiConnections.txt": "portIndex1_port = 19997",
    "addOns/Connectivity/server.lua": "newer releases",
    "addOns/ZMQ remote API server.lua": "zmq",
    "addOns/WebSocket remote API server.lua": "websocket",
}


def quiet(doing: str, done: int, total: int) -> None: ...


def pack(file: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(file, "w:xz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name if name.startswith("/") else f"{TOP}/{name}")
            member.size, member.mode = len(text), 0o755 if name == "coppeliaSim" else 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(f"{TOP}/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return file


def unpacked(folder: Path, header: str = HEADER) -> Path:
    for name, text in (FILES | {"programming/include/simConst.h": header}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def packed(folder: Path) -> Path:
    """What the download brings."""
    links = {"libQt5Core.so.5": "libQt5Core.so.5.12.5"}
    return pack(folder / f"{TOP}.tar.xz", FILES, links)


def empty_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """RLBench's part of a cache that is not there yet; no CoppeliaSim and no home, either."""
    for name in ("COPPELIASIM_ROOT", "LD_LIBRARY_PATH", "QT_QPA_PLATFORM_PLUGIN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POLYARM_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HOME", str(folder / "home"))
    (folder / "home").mkdir()
    return folder / "cache" / "rlbench"
