"""Choose how workers render: what must be in the environment before a simulator is imported.

A backend is tried out in a short-lived child process, so that this one never holds a GL context.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Literal

from polyarm.display import external
from polyarm.display.rank import cuda_index, local_rank
from polyarm.errors import DisplayError, UnknownName

PROBE_TIMEOUT_S = 30.0
"""Seconds that a backend gets to prove itself; a cold GPU driver takes several."""

PACKAGES = "apt-get install libegl1 libgl1-mesa-dri libopengl0 libosmesa6"
"""What a machine without a GPU driver needs for EGL and OSMesa."""

XServerMode = Literal["", "worker", "shared"]
"""Who runs an X server for the workers: nobody, each worker, or the fork server for all."""


@dataclass(frozen=True, slots=True)
class Display:
    """One way to render, ready to be used.

    Attributes:
        name: The backend's name, or ``"none"``.
        env: Variables that a worker's environment needs before it imports a simulator.
        description: What renders, such as the GL driver's own name; recorded with results.
        x_server: Who starts an X server before an env is built.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    x_server: XServerMode = ""


def _importer(name: str) -> Callable[[], ModuleType]:
    return lambda: importlib.import_module(f"polyarm.display.{name}")


# In the order in which "auto" tries them. A backend is a module that also runs as a script: given
# the GPU of this rank, it writes a description to stdout, then further variables as NAME=value, or
# fails with a message on stderr. ENV holds the variables that it always needs.
_BACKENDS: dict[str, Callable[[], ModuleType]] = {
    "egl": _importer("egl"),
    "osmesa": _importer("osmesa"),
    "xvfb": _importer("xvfb"),
}
_OFF_SCREEN = ("egl", "osmesa")
_VIRTUALGL = _importer("virtualgl")
_EXTERNAL = _importer("external")

NAMES = ("auto", "egl", "osmesa", "xvfb", "xvfb-shared", "external", "none")
"""What a user may choose; ``external`` also as ``external:99``, a server with a screen per rank."""


def select(name: str = "auto", *, frames: bool, needs_x: bool = False) -> Display:
    """Choose a display and make sure that it works.

    Args:
        name: One of `NAMES`. ``"auto"`` is none when no frames are needed; else the backend in
            ``MUJOCO_GL`` if the user has set it, else the first that works. For simulators that
            need an X server it is Xvfb, or somebody else's server where the environment says so.
        frames: Whether frames will be rendered.
        needs_x: Whether the simulator insists on an X server.

    Raises:
        DisplayError: The asked backend does not work, or none does.
        UnknownName: There is no such backend.
    """
    kind, _, base = name.partition(":")
    if kind not in NAMES or (base and kind != "external"):
        raise UnknownName("display", name, NAMES)
    if kind == "none" and frames:
        raise DisplayError(
            "display='none' cannot render the frames that were asked for; "
            "leave cameras empty, or use display='auto'."
        )
    if kind in ("auto", "none") and not frames:
        # Without it MuJoCo loads a window library that finds no screen and warns, and Qt aborts.
        env = {"MUJOCO_GL": "disable", **({"QT_QPA_PLATFORM": "offscreen"} if needs_x else {})}
        return Display("none", env, "no rendering")
    if kind == "external" or (kind == "auto" and needs_x and external.wanted()):
        return _external(f":{base}" if base else "")
    if needs_x:
        return _for_x(kind)
    if kind != "auto":
        return _backend(kind)
    asked = _asked()
    return _backend(asked) if asked in _BACKENDS else _first_that_works(_BACKENDS)


def offer(*, renders: bool) -> Display:
    """Choose a display for envs that set up rendering by themselves, if they ever do.

    Nothing fails where no display works, no X server is started, and a ``MUJOCO_GL`` that the user
    has set stays.

    Args:
        renders: Whether they may render; only then is a backend tried out.
    """
    asked = _asked()
    if not renders and not asked:
        return select("none", frames=False)
    if not renders or (asked and asked not in _OFF_SCREEN):
        return Display("none", {}, f"left to the envs, with MUJOCO_GL={asked}")
    return _off_screen(asked, _gpu(), os.environ.get("MUJOCO_EGL_DEVICE_ID"))


@cache
def _off_screen(asked: str, gpu: str, device: str | None) -> Display:
    """What works, if anything does; found out once, also where a broken driver takes its time."""
    try:
        return _backend(asked) if asked else _first_that_works(_OFF_SCREEN)
    except DisplayError:
        return Display("none", {}, "left to the envs, as no display was found")


def _asked() -> str:
    """What the user wants of MuJoCo, or ""."""
    return os.environ.get("MUJOCO_GL", "").strip().lower()


def _for_x(kind: str) -> Display:
    """A display for a simulator that needs an X server."""
    if kind == "osmesa":
        raise DisplayError(
            "display='osmesa' cannot serve a simulator that needs an X server; "
            "use display='xvfb', or 'external' with a server of your own."
        )
    server = _backend("xvfb" if kind in ("auto", "egl") else kind)
    if kind != "egl":
        return server
    proven = _prove("egl", _VIRTUALGL, _gpu())
    return Display("egl", {**server.env, **proven.env}, proven.description, "worker")


def _external(base: str) -> Display:
    name = external.display_name(base, local_rank())
    if not name:
        raise DisplayError(
            "display='external' needs an X server: set DISPLAY, or name a server with a screen "
            "per GPU as display='external:99' or RLBENCH_BASE_DISPLAY=:99 "
            "(`polyarm setup xorg` configures one)."
        )
    proven = _prove("external", _EXTERNAL, name)
    return replace(proven, env={**proven.env, "DISPLAY": name})


def _first_that_works(names: Iterable[str]) -> Display:
    complaints = []
    for name in names:
        try:
            return _backend(name)
        except DisplayError as error:
            complaints.append(str(error))
    raise DisplayError("no display works here. " + " ".join(complaints))


def _backend(name: str) -> Display:
    kind, _, shared = name.partition("-")
    proven = _prove(kind, _BACKENDS[kind], _gpu())
    if kind != "xvfb":
        return proven
    return replace(proven, name=name, x_server="shared" if shared else "worker")


def _gpu() -> str:
    """The GPU of this rank as CUDA counts, or "" for any."""
    index = cuda_index()
    return "" if index is None else str(index)


def _prove(name: str, importer: Callable[[], ModuleType], argument: str) -> Display:
    module = importer()
    try:
        # The device is part of the question: a user may change it between two calls.
        answer = _probe(str(module.__file__), argument, os.environ.get("MUJOCO_EGL_DEVICE_ID"))
    except DisplayError as error:
        fix = getattr(module, "FIX", f"Fix: {PACKAGES}.")
        raise DisplayError(f"display {name!r} does not work: {error}. {fix}".strip()) from None
    description, *added = answer
    variables = dict(line.partition("=")[::2] for line in added)
    return Display(name, {**module.ENV, **variables}, description)


@cache
def _probe(script: str, argument: str, device: str | None) -> tuple[str, ...]:
    """What a backend's script says of itself, line by line; asked once."""
    # -I and -S keep the child to the standard library: it starts in about 20 ms.
    command = [sys.executable, "-I", "-S", script, *filter(None, [argument])]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        complaint = f"it did not answer within {PROBE_TIMEOUT_S:g} s"
    else:
        if child.returncode == 0:
            return tuple(child.stdout.strip().splitlines()) or ("",)
        # Negative return codes are signals: a broken driver may take its process down.
        complaint = child.stderr.strip() or f"its probe ended with code {child.returncode}"
    raise DisplayError(complaint)
