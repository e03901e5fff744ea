"""OSMesa: rendering in software into plain memory, where EGL finds no device.

Runs as a script to prove itself and writes the renderer's name to stdout. Standard library only.
"""

from __future__ import annotations

import ctypes
import sys

ENV = {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}
"""What a process needs in its environment before it imports a simulator."""

_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
_RGBA = 0x1908
_UNSIGNED_BYTE = 0x1401
_GL_RENDERER = 0x1F01
_DEPTH_BITS, _STENCIL_BITS, _ACCUM_BITS = 24, 8, 0
_SIDE = 16


def prove() -> str:
    """Create a context in a small buffer and return the renderer's name.

    Raises:
        OSError: The library is missing.
        RuntimeError: It gives no context.
    """
    library = _load()
    library.OSMesaCreateContextExt.restype = ctypes.c_void_p
    context = library.OSMesaCreateContextExt(_RGBA, _DEPTH_BITS, _STENCIL_BITS, _ACCUM_BITS, None)
    pixels = ctypes.create_string_buffer(_SIDE * _SIDE * 4)
    if not context or not library.OSMesaMakeCurrent(
        ctypes.c_void_p(context), pixels, _UNSIGNED_BYTE, _SIDE, _SIDE
    ):
        raise RuntimeError("OSMesa gives no OpenGL context")
    library.glGetString.restype = ctypes.c_char_p
    renderer: bytes = library.glGetString(_GL_RENDERER) or b"unknown renderer"
    return f"OSMesa on {renderer.decode()}"


def _load() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise OSError(f"{_LIBRARIES[0]} is not installed")


if __name__ == "__main__":
    try:
        sys.stdout.write(prove())
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
