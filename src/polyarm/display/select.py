"""Choose how workers render: what must be in the environment before a simulator is imported.

A backend is tried out in a short-lived child process, so that this one never holds a GL context.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType

from polyarm.errors import DisplayError, UnknownName

PROBE_TIMEOUT_S = 30.0
"""Seconds that a backend gets to prove itself; a cold GPU driver takes several."""

PACKAGES = "apt-get install libegl1 libgl1-mesa-dri libopengl0 libosmesa6"
"""What a machine without a GPU driver needs for either backend."""


@dataclass(frozen=True, slots=True)
class Display:
    """One way to render, ready to be used.

    Attributes:
        name: The backend's name, or ``"none"``.
        env: Variables that a worker's environment needs before it imports a simulator.
        description: What renders, such as the GL driver's own name; recorded with results.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    description: str = ""


def _import_egl() -> ModuleType:
    return importlib.import_module("polyarm.display.egl")


def _import_osmesa() -> ModuleType:
    return importlib.import_module("polyarm.display.osmesa")


# In the order in which "auto" tries them. A backend is a module with ENV, the variables it needs,
# that also runs as a script: it writes a description to stdout, or fails with a message on stderr.
_BACKENDS: dict[str, Callable[[], ModuleType]] = {
    "egl": _import_egl,
    "osmesa": _import_osmesa,
}


def select(name: str = "auto", *, frames: bool) -> Display:
    """Choose a display and make sure that it works.

    Args:
        name: A backend's name, ``"none"``, or ``"auto"``: none when no frames are needed, else
            the backend in ``MUJOCO_GL`` if the user has set it, else the first that works.
        frames: Whether frames will be rendered.

    Raises:
        DisplayError: The asked backend does not work, or none does.
        UnknownName: There is no such backend.
    """
    if name not in ("auto", "none", *_BACKENDS):
        raise UnknownName("display", name, ("auto", "none", *_BACKENDS))
    if name == "none" and frames:
        raise DisplayError(
            "display='none' cannot render the frames that were asked for; "
            "leave cameras empty, or use display='auto'."
        )
    if name == "auto" and frames:
        asked = os.environ.get("MUJOCO_GL", "").lower()
        return _backend(asked) if asked in _BACKENDS else _first_that_works()
    if name in ("auto", "none"):
        # Without it MuJoCo loads a window library that finds no screen and warns.
        return Display("none", {"MUJOCO_GL": "disable"}, "no rendering")
    return _backend(name)


def _first_that_works() -> Display:
    complaints = []
    for name in _BACKENDS:
        try:
            return _backend(name)
        except DisplayError as error:
            complaints.append(str(error))
    raise DisplayError("no display works here. " + " ".join(complaints))


def _backend(name: str) -> Display:
    # The device is part of the question: a user may change it between two calls.
    return _proven_backend(name, os.environ.get("MUJOCO_EGL_DEVICE_ID"))


@cache
def _proven_backend(name: str, device: str | None) -> Display:
    module = _BACKENDS[name]()
    description = _probe(name, module)
    if device is not None and name == "egl":
        description += f", MUJOCO_EGL_DEVICE_ID={device}"
    return Display(name, dict(module.ENV), description)


def _probe(name: str, module: ModuleType) -> str:
    # -I and -S keep the child to the standard library: it starts in about 20 ms.
    command = [sys.executable, "-I", "-S", str(module.__file__)]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        complaint = f"it did not answer within {PROBE_TIMEOUT_S:g} s"
    else:
        if child.returncode == 0:
            return child.stdout.strip()
        # Negative return codes are signals: a broken driver may take its process down.
        complaint = child.stderr.strip() or f"its probe ended with code {child.returncode}"
    raise DisplayError(f"display {name!r} does not work: {complaint}. Fix: {PACKAGES}.")
