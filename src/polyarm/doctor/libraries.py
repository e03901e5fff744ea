"""Libraries of the system: whether they can be loaded, and which package brings them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from polyarm.display import external
from polyarm.doctor import frames
from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding, install, listed
from polyarm.suites.rlbench import system_packages
from polyarm.suites.rlbench.system_packages import unloadable

_EGL = {"libEGL.so.1": "libegl1", "libOpenGL.so.0": "libopengl0"}
_X = {"libGL.so.1": "libgl1", "libX11.so.6": "libx11-6"}
_OSMESA = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
_OSMESA_NAME, _DRI = "libOSMesa", "Mesa DRI"
_PACKAGES = {**_EGL, **_X, _OSMESA_NAME: "libosmesa6", _DRI: "libgl1-mesa-dri"}

# Old Mesa has a driver for each chip, new Mesa one library that they are links to.
_DRIVERS = ("swrast_dri.so", "kms_swrast_dri.so", "libdril_dri.so")
_DRIVER_FOLDERS = (
    f"/usr/lib/{platform.machine()}-linux-gnu/dri",
    "/usr/lib64/dri",
    "/usr/lib/dri",
)


def check_gl(case: Case) -> Iterator[Finding]:
    """OpenGL in its several ways in; only those that the asked suite takes are needed."""
    lacking = unloadable([*_EGL, *_X])
    if len(unloadable(_OSMESA)) == len(_OSMESA):
        lacking.append(_OSMESA_NAME)
    if not _has_mesa_driver():
        lacking.append(_DRI)
    needed = _needed(lacking, case)
    if there := [_short(name) for name in _PACKAGES if name not in lacking]:
        yield Finding("GL libraries", "ok", ", ".join(there))
    for wanted in (True, False):
        if names := [name for name in lacking if (name in needed) is wanted]:
            fix = install(_PACKAGES[name] for name in names)
            finding = Finding("GL libraries", "missing", ", ".join(map(_short, names)), fix)
            yield finding if wanted else finding.optional()


def _needed(lacking: Sequence[str], case: Case) -> set[str]:
    """What the asked suite cannot do without, given what else there is."""
    if case.needs_x:
        # Mesa may have its drivers elsewhere, and an NVIDIA server needs none of Mesa's.
        without = _DRI in lacking and (external.wanted() or frames.works(frames.XVFB, case))
        return {*_X} if without else {*_X, _DRI}
    if case.gpus:
        return {*_EGL}
    return {*_EGL, _DRI} if _OSMESA_NAME in lacking else set()


def check_qt(case: Case) -> Iterator[Finding]:
    """What the xcb plugin of CoppeliaSim's Qt loads."""
    wanted = system_packages.LIBRARIES
    lacking = unloadable(list(wanted))
    if not lacking:
        yield Finding("Qt libraries", "ok", f"all {len(wanted)} that CoppeliaSim's Qt loads")
        return
    text = f"{listed([_short(name) for name in lacking])}: Qt aborts without"
    finding = Finding("Qt libraries", "missing", text, install(wanted[name] for name in lacking))
    yield finding if case.needs("rlbench") else finding.optional()


def _has_mesa_driver() -> bool:
    named = os.environ.get("LIBGL_DRIVERS_PATH", "")
    folders = [*filter(None, named.split(":")), *_DRIVER_FOLDERS]
    return any((Path(folder) / name).exists() for folder in folders for name in _DRIVERS)


def _short(name: str) -> str:
    return name.partition(".so")[0]
