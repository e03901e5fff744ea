"""Frames of a MuJoCo model, drawn off screen.

MuJoCo's own `Renderer` frees its resources after its GL context, in whichever context is then
current: under OSMesa, closing one env deletes the textures of its neighbour in the same process.
Its `GLContext` is of the backend that was chosen when it was imported, and the trainer may have
imported it long ago. Here it is of the one that is chosen when it is needed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Hashable
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from polyarm.errors import DisplayError

_DISABLED = ("disable", "disabled", "off", "false", "0")
_OPENGL = ("egl", "osmesa")


class OffscreenRenderer:
    """Draws a model's scene with textures and meshes that live in a GL context.

    All renderers of a process that are given a ``share`` use one GL context, and those with the
    same ``share`` one copy of textures and meshes. They are freed with the last renderer.

    Args:
        model: The `mujoco.MjModel`; its offscreen buffer is at least as large as the frames.
        image_size: ``(height, width)`` of the frames in pixels.
        hidden_groups: Groups of geoms that are not drawn.
        share: Names the model's textures and meshes; None for a GL context of its own.

    Raises:
        DisplayError: This process has loaded OpenGL for another display.
        RuntimeError: There is no display, or it gives no context.
    """

    def __init__(
        self,
        model: Any,
        image_size: tuple[int, int],
        *,
        hidden_groups: Collection[int] = (),
        share: Hashable | None = None,
    ) -> None:
        height, width = image_size
        self._model = model
        self._share = object() if share is None else share
        self._screen = self._share if share is None else "shared"
        self._gl = _CONTEXTS.take(self._screen, lambda: _new_context(width, height))
        self._gl.make_current()
        self._resources = _RESOURCES.take(
            self._share, lambda: mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        )
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        for group in hidden_groups:
            self._options.geomgroup[group] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)

    def draw(
        self, data: Any, camera: int, out: NDArray[np.uint8], steps: tuple[int, int] = (-1, 1)
    ) -> None:
        """Draw the scene as it is; physics is not touched.

        Args:
            data: The `mujoco.MjData` to show.
            camera: Index of the camera in the model.
            out: Receives the frame, uint8 (H, W, 3).
            steps: Of rows and columns, from OpenGL's lowest row and leftmost column: ``(-1, 1)``
                is upright, ``(1, 1)`` is as OpenGL delivers it.
        """
        self._gl.make_current()
        self._camera.fixedcamid = camera
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._options,
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        # Another renderer of this GL context may have left its own buffer selected.
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        mujoco.mjr_render(self._viewport, self._scene, self._resources)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._resources)
        out[:] = self._pixels[:: steps[0], :: steps[1]]

    def close(self) -> None:
        """Free what nobody else uses; the renderer cannot be used afterwards."""
        self._gl.make_current()
        _RESOURCES.give_back(self._share)
        _CONTEXTS.give_back(self._screen)


def _new_context(width: int, height: int) -> Any:
    """A GL context of the backend that ``MUJOCO_GL`` names now.

    Raises:
        DisplayError: This process has loaded OpenGL for another one.
        RuntimeError: It names none.
    """
    backend = os.environ.get("MUJOCO_GL", "").strip().lower()
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if backend in _DISABLED or not (backend in _OPENGL or screen):
        raise RuntimeError("this process has no display")
    loaded = _loaded_backend()
    if backend in _OPENGL and loaded not in ("", backend):
        raise DisplayError(
            f"display={backend!r} cannot be had in this process, which has loaded OpenGL for "
            f"{loaded!r}; take display={loaded!r}, or start Python (a notebook's kernel) anew."
        )
    module: Any = importlib.import_module(f"mujoco.{backend if backend in _OPENGL else 'glfw'}")
    return module.GLContext(width, height)


def _loaded_backend() -> str:
    """What PyOpenGL has been loaded for, such as ``"egl"``, or "" if it has not been."""
    loaded = getattr(sys.modules.get("OpenGL.platform"), "PLATFORM", None)
    return "" if loaded is None else type(loaded).__module__.rpartition(".")[2]


class _Shared:
    """Things made once for all who ask, and freed with the last of them."""

    def __init__(self) -> None:
        self._things: dict[Hashable, Any] = {}
        self._users: dict[Hashable, int] = {}

    def take(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._things:
            self._things[key] = make()
        self._users[key] = self._users.get(key, 0) + 1
        return self._things[key]

    def give_back(self, key: Hashable) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._things.pop(key).free()


_CONTEXTS = _Shared()
_RESOURCES = _Shared()
