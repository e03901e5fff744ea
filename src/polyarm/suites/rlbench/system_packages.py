"""Libraries and programs of the system that CoppeliaSim and the building of PyRep need.

What counts is whether a library can be loaded, not which package manager brought it; packages are
named and installed where apt knows them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from polyarm.suites.cache import Progress
from polyarm.suites.rlbench.options import Step

NAME = "system packages"
APT_TIMEOUT_S = 1800.0

# The names are those of Debian 11 to 13 and Ubuntu 20.04 to 24.04. Where the 64-bit time_t gave a
# package another name, as libglib2.0-0t64, apt takes the old one for the new.
PROGRAMS = {"Xvfb": "xvfb"}
BUILD_PROGRAMS = {"gcc": "build-essential", "git": "git"}
LIBRARIES = {
    "libGL.so.1": "libgl1",
    "libGLU.so.1": "libglu1-mesa",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xinerama.so.0": "libxcb-xinerama0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libSM.so.6": "libsm6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libglib-2.0.so.0": "libglib2.0-0",
}
# Welcome, but nothing fails without: tools to look at an X server, and FFmpeg 4, with which a
# CoppeliaSim for Ubuntu 20.04 records videos and which later releases no longer have.
OPTIONAL = {
    "xauth": "xauth",
    "xdpyinfo": "x11-utils",
    "xset": "x11-xserver-utils",
    "xz": "xz-utils",
    "libavcodec.so.58": "libavcodec58",
    "libavformat.so.58": "libavformat58",
    "libswscale.so.5": "libswscale5",
}

_THERE = f"{', '.join(PROGRAMS)} and {len(LIBRARIES)} libraries"
LOAD_TIMEOUT_S = 30.0

_LOADER = """
import ctypes, sys
for name in sys.argv[1:]:
    print(name, end=" ", flush=True)
    try:
        ctypes.CDLL(name)
        print("loads", flush=True)
    except OSError as error:
        print("fails:", str(error).replace("\\n", " "), flush=True)
"""


def unloadable(names: Sequence[str]) -> list[str]:
    """Those of the libraries that the loader does not find, or that need one that it does not.

    They are loaded in a child process, as a simulator would: LD_LIBRARY_PATH counts.
    """
    lacking, waiting = [], list(names)
    while waiting:
        lines = _loaded(waiting)
        # One that takes its process down is the last that was named; the rest is tried anew.
        tried = max(1, len(lines))
        loads = {line.split()[0] for line in lines if line.endswith(" loads")}
        lacking += [name for name in waiting[:tried] if name not in loads]
        waiting = waiting[tried:]
    return lacking


def build_programs(*sources: str) -> tuple[str, ...]:
    """Programs that it takes to build packages from these sources."""
    from_git = any(source.startswith("git+") for source in sources)
    return ("gcc", "git") if from_git else ("gcc",)


def missing(*programs: str) -> list[str]:
    """Packages of what is not found here.

    Args:
        programs: Names in `BUILD_PROGRAMS` that are needed besides.
    """
    wanted = PROGRAMS | LIBRARIES | {name: BUILD_PROGRAMS[name] for name in programs}
    return _lacking(wanted)


def install(programs: Sequence[str], progress: Progress) -> Step:
    """Install what is missing with apt if that is possible without a password."""
    wanted = missing(*programs)
    if not wanted:
        return Step(NAME, "there", _THERE)
    if (before := _apt()) is None:
        return Step(NAME, "missing", _by_hand(wanted))
    complaint = _run([*before, "update"], "updating apt's lists", progress)
    wanted += _optional(before)
    complaint += _run([*before, *_install(wanted)], f"installing {' '.join(wanted)}", progress)
    if still := missing(*programs):
        return Step(NAME, "missing", f"{_by_hand(still)}{complaint}")
    return Step(NAME, "done", f"installed {' '.join(wanted)}")


def plan(programs: Sequence[str]) -> Step:
    """What `install` would do."""
    wanted = missing(*programs)
    if not wanted:
        return Step(NAME, "there", _THERE)
    if (before := _apt(dry=True)) is None:
        return Step(NAME, "missing", _by_hand(wanted))
    commands = [shlex.join([*before, "update"]), shlex.join([*before, *_install(wanted)])]
    optional = f"(and, where there are such packages, {' '.join(_lacking(OPTIONAL))})"
    asks = "" if os.geteuid() == 0 else ", if sudo asks for no password, else show,"
    return Step(NAME, "planned", "\n".join([f"would run{asks}", *commands, optional]))


def _by_hand(packages: list[str]) -> str:
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        return f"there is no apt-get here; install what is called in Debian: {names}"
    install = shlex.join(["apt-get", *_install(packages)])
    return f"give this, then the same command again: sudo apt-get update && sudo {install}"


def _apt(*, dry: bool = False) -> list[str] | None:
    """The beginning of a command that installs without a question; None if there is no such.

    Dry: without asking sudo, which would leave a trace in the system's log.
    """
    if (apt := shutil.which("apt-get")) is None:
        return None
    if os.geteuid() == 0:
        return ["env", "DEBIAN_FRONTEND=noninteractive", apt]
    if (sudo := shutil.which("sudo")) is None:
        return None
    if not dry and _run([sudo, "-n", "true"], "", lambda *_: None):
        return None  # it asks for a password
    return [sudo, "-n", "env", "DEBIAN_FRONTEND=noninteractive", apt]


def _install(packages: list[str]) -> list[str]:
    return ["install", "-y", "--no-install-recommends", *packages]


def _optional(before: list[str]) -> list[str]:
    """Optional packages that are not here, and that this release has."""
    simulate = [*before, "install", "--simulate"]
    names = _lacking(OPTIONAL)
    return [name for name in names if not _run([*simulate, name], "", lambda *_: None)]


def _run(command: list[str], doing: str, progress: Progress) -> str:
    """Run a command; returns what it said last if it failed."""
    progress(doing, 0, 0)
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=APT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"\n{shlex.join(command)} did not end within {APT_TIMEOUT_S:.0f} s"
    if run.returncode == 0:
        return ""
    last = "\n".join(run.stdout.splitlines()[-8:])
    return f"\n{shlex.join(command)} ended with status {run.returncode}:\n{last}"


def _lacking(wanted: Mapping[str, str]) -> list[str]:
    """Packages whose program is not on the path, or whose library cannot be loaded."""
    libraries = [name for name in wanted if ".so" in name]
    programs = [name for name in wanted if name not in libraries and shutil.which(name) is None]
    lacking = {*programs, *unloadable(libraries)}
    return [package for name, package in wanted.items() if name in lacking]


def _loaded(names: Sequence[str]) -> list[str]:
    """What a child says of these libraries: a line for each, as long as it lives."""
    command = [sys.executable, "-I", "-S", "-c", _LOADER, *names]
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LOAD_TIMEOUT_S,
            check=False,
        )
        said = run.stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
    return said.decode(errors="replace").splitlines()
