"""A test frame from each backend, with what renders it and how long it takes from nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

from polyarm import display as displays
from polyarm.display import external
from polyarm.display.rank import local_rank
from polyarm.doctor.case import Case
from polyarm.doctor.devices import MESA_FIX_PACKAGES, gpu_fix
from polyarm.doctor.findings import Finding, install
from polyarm.errors import DisplayError

SOFTWARE = ("llvmpipe", "softpipe", "swrast", "osmesa")


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to render.

    Attributes:
        name: What a user calls it.
        display: What `select` calls it.
        on_gpu: Whether it is meant for GPUs, so that software there is a fault.
    """

    name: str
    display: str
    on_gpu: bool


EGL = Backend("egl", "egl", on_gpu=True)
OSMESA = Backend("osmesa", "osmesa", on_gpu=False)
XVFB = Backend("xvfb", "xvfb", on_gpu=False)
EXTERNAL = Backend("external", "external", on_gpu=True)
VIRTUALGL = Backend("virtualgl", "egl", on_gpu=True)


def check(case: Case) -> Iterator[Finding]:
    """One line per backend; one that works for the asked suite is enough."""
    working: set[Backend] = set()
    failed: list[tuple[Backend, Finding]] = []
    for backend in _backends(case):
        finding, good = _tried(backend, case)
        if good:
            working.add(backend)
            yield finding
        else:
            failed.append((backend, finding))
    for backend, finding in failed:
        yield finding if _is_needed(backend, working, case) else finding.optional()


def works(backend: Backend, case: Case) -> bool:
    """Whether a frame comes out of it."""
    return _tried(backend, case)[1]


def _tried(backend: Backend, case: Case) -> tuple[Finding, bool]:
    """The same answer as long as the case lasts: a frame takes up to seconds."""
    if backend.name not in case.frames:
        case.frames[backend.name] = _try(backend, case)
    return case.frames[backend.name]


def _backends(case: Case) -> list[Backend]:
    named = [EXTERNAL] if external.display_name("", local_rank()) else []
    if case.needs_x:
        return [XVFB, *named, VIRTUALGL]
    if case.suite_name is not None:
        return [EGL, OSMESA, XVFB]
    return [EGL, OSMESA, XVFB, *named, VIRTUALGL]


def _is_needed(backend: Backend, working: set[Backend], case: Case) -> bool:
    """Whether a backend that fails stands in the way, although these others work."""
    if case.needs_x:
        if external.wanted():  # the environment says which one it has to be
            return backend is EXTERNAL
        return backend is XVFB
    return backend is EGL and (bool(case.gpus) or not working & {OSMESA, XVFB})


def _try(backend: Backend, case: Case) -> tuple[Finding, bool]:
    name = f"frame: {backend.name}"
    began = time.monotonic()
    try:
        needs_x = backend is VIRTUALGL
        found = displays.select(backend.display, frames=True, needs_x=needs_x).description
    except DisplayError as error:
        return _failed(name, backend, str(error), case), False
    took = f"{found}, {(time.monotonic() - began) * 1e3:.0f} ms"
    if not case.gpus or not any(word in found.lower() for word in SOFTWARE):
        return Finding(name, "ok", took), True
    if backend.on_gpu:
        return Finding(
            name, "broken", f"{took}: software, beside a GPU", _fix(backend, case)
        ), False
    if backend is XVFB and case.needs_x:
        text = f"{took}: Xvfb renders in software, which takes most of the time"
        fix = "render on the GPU: `polyarm setup xorg` and display='external', or VirtualGL"
        return Finding(name, "hint", text, fix), True
    return Finding(name, "ok", took), True


def _failed(name: str, backend: Backend, message: str, case: Case) -> Finding:
    said = message.removeprefix(f"display {backend.display!r} does not work: ")
    text = said.partition(" Fix: ")[0].removesuffix(external.FIX).strip().rstrip(".")
    if backend is VIRTUALGL and shutil.which("vglrun") is None:
        text = "VirtualGL is not installed"
    absent = "not installed" in text or "needs an X server" in text
    return Finding(name, "missing" if absent else "broken", text, _fix(backend, case))


def _fix(backend: Backend, case: Case) -> str:
    if backend is EGL:
        return gpu_fix(case) if case.gpus else install(MESA_FIX_PACKAGES)
    if backend is OSMESA:
        return install(["libosmesa6"])
    if backend is XVFB:
        return install(["xvfb", "libgl1-mesa-dri", "libgl1"])
    if backend is VIRTUALGL:
        return "VirtualGL 3 or newer, for its EGL back end: https://virtualgl.org"
    variables = " ".join(("DISPLAY", *external.BASE_DISPLAY))
    return f"start that X server (`polyarm setup xorg` configures one), or: unset {variables}"
