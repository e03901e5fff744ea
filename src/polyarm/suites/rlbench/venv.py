"""The virtual environment that PyRep and RLBench go into, and calls of what is in it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyarm.errors import InvalidCall, MissingExtra
from polyarm.suites.cache import Progress, write_whole
from polyarm.suites.rlbench.environment import suite_folder
from polyarm.suites.rlbench.options import Installer, Step

BUILD_TIMEOUT_S = 1800.0

_MARK = "made-by-polyarm-setup"
"""A file in environments that are for RLBench alone, where versions may be changed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit status, what it wrote to stdout, and all that it wrote."""

    status: int
    stdout: str
    output: str


def make(folder: Path, installer: Installer, progress: Progress) -> Step:
    """Make a virtual environment unless it is there.

    Raises:
        MissingExtra: It cannot be made.
        InvalidCall: The folder holds something else.
    """
    if is_complete(folder, installer):
        return Step("venv", "there", str(folder))
    filled = folder.exists() and any(folder.iterdir())
    if filled and not (folder / "pyvenv.cfg").exists():
        raise InvalidCall(f"{folder} is no virtual environment; give another folder with --venv")
    # One whose making was interrupted is still ours, but somebody else's without pip is not.
    begun = suite_folder() / "venv.begun"
    own = not filled or (begun.is_file() and begun.read_text() == str(folder))
    if own:
        begun.parent.mkdir(parents=True, exist_ok=True)
        write_whole(begun, str(folder))
    progress(f"making the virtual environment {folder}", 0, 0)
    making = command(folder, installer)
    ended = call(making, timeout_s=BUILD_TIMEOUT_S)
    if ended.status != 0 or not is_complete(folder, installer):
        last = "\n".join(ended.output.splitlines()[-8:])
        raise MissingExtra(
            f"{folder} could not be made with: {shlex.join(making)}\n{last}\n"
            f"In Debian and Ubuntu: apt-get install python3-venv; or give: --installer uv"
        )
    if own:
        write_whole(folder / _MARK, "by `polyarm setup rlbench --venv`, for RLBench alone\n")
        begun.unlink()
    return Step("venv", "done", str(folder))


def is_own(folder: Path) -> bool:
    """Whether the set-up made it."""
    return (folder / _MARK).is_file()


def command(folder: Path, installer: Installer) -> list[str]:
    """What makes it."""
    if installer == "uv" and (uv := shutil.which("uv")) is not None:
        return [uv, "venv", "--python", sys.executable, str(folder)]
    return [sys.executable, "-m", "venv", str(folder)]


def is_complete(folder: Path, installer: Installer) -> bool:
    """Whether it has a Python that packages can be installed into."""
    interpreter = folder / "bin" / "python"
    if not interpreter.exists():
        return False
    by_uv = installer == "uv" or (installer == "auto" and shutil.which("uv") is not None)
    return by_uv or has_pip(interpreter)


def has_pip(interpreter: Path) -> bool:
    """Whether this Python has pip."""
    return call([str(interpreter), "-c", "import pip"]).status == 0


def call(
    command: Sequence[str], variables: Mapping[str, str] | None = None, *, timeout_s: float = 120.0
) -> Ended:
    """Run a command to its end, or to its deadline."""
    try:
        run = subprocess.run(
            command,
            cwd="/",  # in a checkout of PyRep, Python would import that one
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return Ended(127, "", f"{command[0]} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Ended(124, "", f"it did not end within {timeout_s:.0f} s")
    return Ended(run.returncode, run.stdout, f"{run.stdout}{run.stderr}")
