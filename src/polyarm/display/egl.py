"""EGL: rendering on a GPU, or on Mesa's software devices, without any screen.

EGL and CUDA count GPUs in orders of their own; a device says itself which CUDA device it is.

Runs as a script to prove itself: it walks the path that MuJoCo takes to a GL context, on the
device of a CUDA index if one is given, and writes the renderer's name to stdout. ``devices`` as
its argument tries every device instead. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

ENV = {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
"""What a process needs in its environment before it imports a simulator."""

DEVICE_VARIABLE = "MUJOCO_EGL_DEVICE_ID"

_PLATFORM_DEVICE = 0x313F
_OPENGL_API = 0x30A2
_EXTENSIONS = 0x3055
_CUDA_DEVICE = 0x323A
_GL_RENDERER = 0x1F01
_NONE = 0x3038
# 8 bits a channel, 24 of depth, 8 of stencil, pbuffer surfaces, desktop OpenGL: as MuJoCo asks.
_CONFIG = (
    *(0x3024, 8, 0x3023, 8, 0x3022, 8, 0x3021, 8, 0x3025, 24, 0x3026, 8),
    *(0x3033, 0x0001, 0x3040, 0x0008, _NONE),
)
_DEVICE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class EglDevice:
    """A device as EGL counts it, tried out.

    Attributes:
        index: Its number among EGL's devices.
        cuda: Its number among CUDA's, or None if it is no CUDA device.
        renderer: What renders there, or "" if it gives no context.
        seconds: From nothing to a context.
        complaint: Why it gives none.
    """

    index: int
    cuda: int | None
    renderer: str = ""
    seconds: float = 0.0
    complaint: str = ""


class Egl:
    """The EGL library of this machine.

    Args:
        library: Loaded ``libEGL.so.1``, or what stands in for it.

    Raises:
        RuntimeError: The driver cannot list its devices.
    """

    def __init__(self, library: Any) -> None:
        self._egl = library
        self._egl.eglGetProcAddress.restype = ctypes.c_void_p
        handles = (ctypes.c_void_p * 64)()
        count = ctypes.c_int()
        query = self._extension(
            "eglQueryDevicesEXT", ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
        )
        if not query(len(handles), ctypes.byref(handles), ctypes.byref(count)) or not count.value:
            raise RuntimeError("the EGL driver offers no device")
        self.devices: list[int] = [handle for handle in handles[: count.value] if handle]

    def cuda_indices(self) -> list[int | None]:
        """CUDA's number of each device, in EGL's order."""
        return [self._cuda_index(device) for device in self.devices]

    def index_of_cuda(self, cuda: int) -> int:
        """EGL's number of the device that CUDA calls ``cuda``.

        Raises:
            RuntimeError: EGL has no such device.
        """
        found = self.cuda_indices()
        if cuda not in found:
            known = ", ".join(f"EGL {index} is CUDA {one}" for index, one in enumerate(found))
            raise RuntimeError(f"no EGL device is CUDA device {cuda}: {known}")
        return found.index(cuda)

    def make_current(self, index: int) -> bool:
        """Create a context on a device and make it current; False if it can't be initialized.

        Raises:
            RuntimeError: It is initialized but gives no context.
        """
        display = self.initialized(index)
        if display is not None:
            self._create_context(ctypes.c_void_p(display))
        return display is not None

    def initialized(self, index: int) -> int | None:
        """The display of a device, initialized; None if it can't be."""
        get_display = self._extension(
            "eglGetPlatformDisplayEXT",
            ctypes.c_void_p,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
        display: int | None = get_display(_PLATFORM_DEVICE, self.devices[index], None)
        if not display or not self._egl.eglInitialize(ctypes.c_void_p(display), None, None):
            return None
        return display

    def _create_context(self, display: ctypes.c_void_p) -> None:
        egl, config, count = self._egl, ctypes.c_void_p(), ctypes.c_int()
        attributes = (ctypes.c_int * len(_CONFIG))(*_CONFIG)
        egl.eglChooseConfig(display, attributes, ctypes.byref(config), 1, ctypes.byref(count))
        if not count.value:
            raise RuntimeError("the EGL device has no framebuffer configuration for OpenGL")
        egl.eglBindAPI(_OPENGL_API)
        egl.eglCreateContext.restype = ctypes.c_void_p
        context = egl.eglCreateContext(display, config, None, None)
        if not context or not egl.eglMakeCurrent(display, None, None, ctypes.c_void_p(context)):
            raise RuntimeError(f"the EGL device gives no context (error {egl.eglGetError():#x})")

    def _cuda_index(self, device: int) -> int | None:
        handle = ctypes.c_void_p
        try:
            text = self._extension(
                "eglQueryDeviceStringEXT", ctypes.c_char_p, handle, ctypes.c_int
            )(device, _EXTENSIONS)
            query = self._extension(
                "eglQueryDeviceAttribEXT", ctypes.c_uint, handle, ctypes.c_int, handle
            )
        except RuntimeError:
            return None
        number = ctypes.c_ssize_t(-1)
        if b"EGL_NV_device_cuda" not in (text or b"").split():
            return None
        found = query(device, _CUDA_DEVICE, ctypes.byref(number))
        return number.value if found and number.value >= 0 else None

    def _extension(self, name: str, *signature: Any) -> Any:
        address = self._egl.eglGetProcAddress(name.encode())
        if not address:
            raise RuntimeError(f"the EGL driver lacks {name}")
        return ctypes.CFUNCTYPE(*signature)(address)


def load() -> Egl:
    """EGL as it is installed here.

    Raises:
        OSError: It is not.
        RuntimeError: It has no devices.
    """
    count_all_gpus(os.environ)
    return Egl(_load("libEGL.so.1"))


def count_all_gpus(environment: MutableMapping[str, str]) -> None:
    """Have devices say their CUDA numbers among all GPUs, and not among the visible ones.

    As measured on NVIDIA's driver, a GPU that ``CUDA_VISIBLE_DEVICES`` hides has no CUDA number.
    Where that variable names GPUs by UUID it stays: then what counts is the place in it.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if all(name.strip().isdecimal() for name in visible.split(",")) or not visible:
        environment.pop("CUDA_VISIBLE_DEVICES", None)


def ranks_share_gpus(environment: Mapping[str, str]) -> bool:
    """Whether a GPU's number is just the rank's, and not one that somebody has chosen."""
    chosen = ("CUDA_VISIBLE_DEVICES", "POLYARM_RENDER_GPU")
    return not any(environment.get(name) for name in chosen)


def chosen_index(egl: Egl, cuda: int | None, *, shared: bool = False) -> int | None:
    """The device to use: the user's, else the rank's; None to take the first that works.

    Args:
        egl: The library.
        cuda: CUDA's number of the rank's GPU, or None for any.
        shared: Whether ranks take turns where there are more of them than GPUs.

    Raises:
        RuntimeError: There is no such device.
    """
    chosen = os.environ.get(DEVICE_VARIABLE)
    if chosen is not None:
        if not chosen.isdecimal() or int(chosen) >= len(egl.devices):
            last = len(egl.devices) - 1
            raise RuntimeError(f"{DEVICE_VARIABLE} is {chosen!r}, but the devices are 0 to {last}")
        return int(chosen)
    gpus = sum(one is not None for one in egl.cuda_indices())
    # Without a CUDA device there is no GPU to be wrong about: Mesa's software serves any rank.
    if cuda is None or not gpus:
        return None
    return egl.index_of_cuda(cuda % gpus if shared else cuda)


def prove(cuda: int | None = None) -> tuple[str, int | None]:
    """Create a context on the chosen device, or on the first that allows it.

    Returns:
        What renders there, and the device's number if one was chosen.

    Raises:
        OSError: A library is missing.
        RuntimeError: No device gives a context.
    """
    shared = ranks_share_gpus(os.environ)
    egl = load()
    gl = _load("libOpenGL.so.0", "libGL.so.1")
    chosen = chosen_index(egl, cuda, shared=shared)
    candidates = range(len(egl.devices)) if chosen is None else [chosen]
    for index in candidates:
        if egl.make_current(index):
            gl.glGetString.restype = ctypes.c_char_p
            renderer: bytes = gl.glGetString(_GL_RENDERER) or b"unknown renderer"
            return renderer.decode(), chosen
    raise RuntimeError(f"none of the {len(candidates)} EGL devices can be initialized")


def try_devices() -> list[EglDevice]:
    """Every device with what renders on it, each tried in a process of its own.

    Raises:
        OSError: EGL is not installed.
        RuntimeError: It has no devices.
    """
    found = load().cuda_indices()
    return [_try_device(index, cuda) for index, cuda in enumerate(found)]


def _try_device(index: int, cuda: int | None) -> EglDevice:
    began = time.monotonic()
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            env={**os.environ, DEVICE_VARIABLE: str(index)},
            capture_output=True,
            text=True,
            timeout=_DEVICE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return EglDevice(index, cuda, complaint=f"no answer within {_DEVICE_TIMEOUT_S:g} s")
    seconds = round(time.monotonic() - began, 3)
    if child.returncode:
        words = child.stderr.strip() or f"its probe ended with code {child.returncode}"
        return EglDevice(index, cuda, "", seconds, words)
    return EglDevice(index, cuda, child.stdout.splitlines()[0].removeprefix("EGL on "), seconds)


def _load(*names: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise OSError(f"{' or '.join(names)} is not installed")


def _main(arguments: list[str]) -> str:
    if arguments == ["devices"]:
        return json.dumps([asdict(device) for device in try_devices()])
    renderer, chosen = prove(int(arguments[0]) if arguments else None)
    if chosen is None:
        return f"EGL on {renderer}"
    return f"EGL on {renderer}\n{DEVICE_VARIABLE}={chosen}"


if __name__ == "__main__":
    try:
        sys.stdout.write(_main(sys.argv[1:]))
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
