"""GLX: OpenGL through an X server, which is what a simulator with windows renders with.

Runs as a script to prove itself on ``$DISPLAY``: it creates a context, draws into it, reads the
pixel back, and writes the renderer's name to stdout. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

_GL_RENDERER = 0x1F01
_GL_COLOR_BUFFER_BIT = 0x4000
_GL_RGB, _GL_UNSIGNED_BYTE = 0x1907, 0x1401
# RGBA, double-buffered, at least one bit a channel and 16 of depth: what any window has.
_VISUAL = (4, 5, 8, 1, 9, 1, 10, 1, 12, 16, 0)
_SIDE = 16
_INPUT_OUTPUT = 1
_ATTRIBUTES_GIVEN = (1 << 3) | (1 << 9) | (1 << 13)  # border pixel, override redirect, colormap


def prove() -> str:
    """Draw on the X server that ``$DISPLAY`` names and return the renderer's name.

    Raises:
        OSError: A library is missing.
        RuntimeError: There is no such server, or it renders nothing.
    """
    name = os.environ.get("DISPLAY", "")
    x11, gl = _load("libX11.so.6"), _load("libGL.so.1")
    x11.XOpenDisplay.restype = ctypes.c_void_p
    gl.glXChooseVisual.restype = gl.glXCreateContext.restype = ctypes.c_void_p
    display = ctypes.c_void_p(x11.XOpenDisplay(name.encode() or None))
    if not display.value:
        raise RuntimeError(f"no X server answers at DISPLAY={name!r}")
    screen = x11.XDefaultScreen(display)
    attributes = (ctypes.c_int * len(_VISUAL))(*_VISUAL)
    visual = ctypes.c_void_p(gl.glXChooseVisual(display, screen, attributes))
    context = ctypes.c_void_p(
        gl.glXCreateContext(display, visual, None, 1) if visual.value else None
    )
    if not context.value:
        raise RuntimeError(f"the X server {name} gives no OpenGL context (no GLX)")
    window = _open_window(x11, display, ctypes.cast(visual, ctypes.POINTER(_Visual)).contents)
    if not gl.glXMakeCurrent(display, window, context):
        raise RuntimeError(f"the X server {name} does not make an OpenGL context current")
    _draw(gl)
    gl.glGetString.restype = ctypes.c_char_p
    renderer: bytes = gl.glGetString(_GL_RENDERER) or b"unknown renderer"
    return renderer.decode()


class _Visual(ctypes.Structure):
    """The beginning of XVisualInfo."""

    _fields_ = (
        ("visual", ctypes.c_void_p),
        ("id", ctypes.c_ulong),
        ("screen", ctypes.c_int),
        ("depth", ctypes.c_int),
    )


class _Attributes(ctypes.Structure):
    """XSetWindowAttributes."""

    _fields_ = (
        *((name, ctypes.c_ulong) for name in ("pixmap", "pixel", "border_pixmap", "border_pixel")),
        *((name, ctypes.c_int) for name in ("bit_gravity", "win_gravity", "backing_store")),
        *((name, ctypes.c_ulong) for name in ("backing_planes", "backing_pixel")),
        ("save_under", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("event_mask", "no_propagation")),
        ("override_redirect", ctypes.c_int),
        *((name, ctypes.c_ulong) for name in ("colormap", "cursor")),
    )


def _open_window(x11: Any, display: ctypes.c_void_p, visual: _Visual) -> ctypes.c_ulong:
    """Map a window of a visual that may differ from the screen's own, so it needs a colormap."""
    for function in (x11.XRootWindow, x11.XCreateColormap, x11.XCreateWindow):
        function.restype = ctypes.c_ulong
    root = ctypes.c_ulong(x11.XRootWindow(display, visual.screen))
    handle = ctypes.c_void_p(visual.visual)
    colormap = x11.XCreateColormap(display, root, handle, 0)
    attributes = _Attributes(border_pixel=0, override_redirect=1, colormap=colormap)
    window = ctypes.c_ulong(
        x11.XCreateWindow(
            *(display, root, 0, 0, _SIDE, _SIDE, 0, visual.depth, _INPUT_OUTPUT, handle),
            *(ctypes.c_ulong(_ATTRIBUTES_GIVEN), ctypes.byref(attributes)),
        )
    )
    x11.XMapWindow(display, window)
    x11.XSync(display, 0)
    return window


def _draw(gl: Any) -> None:
    """Clear to red and read a pixel back: some drivers give contexts that draw nothing."""
    pixel = (ctypes.c_ubyte * 4)()
    gl.glClearColor.argtypes = [ctypes.c_float] * 4
    gl.glClearColor(1.0, 0.0, 0.0, 1.0)
    gl.glClear(_GL_COLOR_BUFFER_BIT)
    gl.glReadPixels(0, 0, 1, 1, _GL_RGB, _GL_UNSIGNED_BYTE, pixel)
    if tuple(pixel[:3]) != (255, 0, 0):
        raise RuntimeError(f"a cleared frame came back as {tuple(pixel[:3])}, not red")


def _load(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise OSError(f"{name} is not installed") from error


if __name__ == "__main__":
    try:
        sys.stdout.write(prove())
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
