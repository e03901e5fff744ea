"""EGL: rendering on a GPU, or on Mesa's software devices, without any screen.

Runs as a script to prove itself: it walks the path that MuJoCo takes to a GL context, and writes
the renderer's name to stdout. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

ENV = {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
"""What a process needs in its environment before it imports a simulator."""

_PLATFORM_DEVICE = 0x313F
_OPENGL_API = 0x30A2
_GL_RENDERER = 0x1F01
_NONE = 0x3038
# 8 bits a channel, 24 of depth, 8 of stencil, pbuffer surfaces, desktop OpenGL: as MuJoCo asks.
_CONFIG = (
    *(0x3024, 8, 0x3023, 8, 0x3022, 8, 0x3021, 8, 0x3025, 24, 0x3026, 8),
    *(0x3033, 0x0001, 0x3040, 0x0008, _NONE),
)


def prove() -> str:
    """Create a context on the first device that allows it and return the renderer's name.

    Raises:
        OSError: A library is missing.
        RuntimeError: No device gives a context.
    """
    egl = _load("libEGL.so.1")
    gl = _load("libOpenGL.so.0", "libGL.so.1")
    devices = _devices(egl)
    for device in devices:
        display = _display(egl, device)
        if display and egl.eglInitialize(ctypes.c_void_p(display), None, None):
            _make_current(egl, display)
            gl.glGetString.restype = ctypes.c_char_p
            renderer: bytes = gl.glGetString(_GL_RENDERER) or b"unknown renderer"
            return f"EGL on {renderer.decode()}"
    raise RuntimeError(f"none of the {len(devices)} EGL devices can be initialized")


def _load(*names: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise OSError(f"{' or '.join(names)} is not installed")


def _extension(egl: ctypes.CDLL, name: str, *signature: Any) -> Any:
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    address = egl.eglGetProcAddress(name.encode())
    if not address:
        raise RuntimeError(f"the EGL driver lacks {name}")
    return ctypes.CFUNCTYPE(*signature)(address)


def _devices(egl: ctypes.CDLL) -> list[int]:
    """Handles of the EGL devices, or of the one in MUJOCO_EGL_DEVICE_ID."""
    handles = (ctypes.c_void_p * 64)()
    count = ctypes.c_int()
    query = _extension(
        egl, "eglQueryDevicesEXT", ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    )
    if not query(len(handles), ctypes.byref(handles), ctypes.byref(count)) or not count.value:
        raise RuntimeError("the EGL driver offers no device")
    devices = [handle for handle in handles[: count.value] if handle]
    chosen = os.environ.get("MUJOCO_EGL_DEVICE_ID")
    if chosen is None:
        return devices
    if not chosen.isdecimal() or int(chosen) >= len(devices):
        raise RuntimeError(
            f"MUJOCO_EGL_DEVICE_ID is {chosen!r}, but the devices are 0 to {len(devices) - 1}"
        )
    return [devices[int(chosen)]]


def _display(egl: ctypes.CDLL, device: int) -> int | None:
    get = _extension(
        egl,
        "eglGetPlatformDisplayEXT",
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.c_void_p,
        ctypes.c_void_p,
    )
    display: int | None = get(_PLATFORM_DEVICE, device, None)
    return display


def _make_current(egl: ctypes.CDLL, display: int) -> None:
    config = ctypes.c_void_p()
    count = ctypes.c_int()
    attributes = (ctypes.c_int * len(_CONFIG))(*_CONFIG)
    handle = ctypes.c_void_p(display)
    egl.eglChooseConfig(handle, attributes, ctypes.byref(config), 1, ctypes.byref(count))
    if not count.value:
        raise RuntimeError("the EGL device has no framebuffer configuration for OpenGL")
    egl.eglBindAPI(_OPENGL_API)
    egl.eglCreateContext.restype = ctypes.c_void_p
    context = egl.eglCreateContext(handle, config, None, None)
    if not context or not egl.eglMakeCurrent(handle, None, None, ctypes.c_void_p(context)):
        raise RuntimeError(f"the EGL device gives no context (error {egl.eglGetError():#x})")


if __name__ == "__main__":
    try:
        sys.stdout.write(prove())
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
