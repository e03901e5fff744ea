"""Frames of a MuJoCo model, drawn off screen.

MuJoCo's own `Renderer` frees its resources after its GL context, in whichever context is then
current: under OSMesa, closing one env deletes the textures of its neighbour in the same process.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray


class OffscreenRenderer:
    """One GL context with a model's textures and meshes in it.

    Args:
        model: The `mujoco.MjModel`; its offscreen buffer is at least as large as the frames.
        image_size: ``(height, width)`` of the frames in pixels.
    """

    def __init__(self, model: Any, image_size: tuple[int, int]) -> None:
        height, width = image_size
        self._model = model
        self._gl = mujoco.GLContext(width, height)
        self._gl.make_current()
        self._resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)

    def draw(self, data: Any, camera: int, out: NDArray[np.uint8], *, half_turn: bool) -> None:
        """Draw the scene as it is; physics is not touched.

        Args:
            data: The `mujoco.MjData` to show.
            camera: Index of the camera in the model.
            out: Receives the frame, uint8 (H, W, 3).
            half_turn: Turn the frame by 180 degrees.
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
        mujoco.mjr_render(self._viewport, self._scene, self._resources)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._resources)
        # OpenGL's first row is the lowest one.
        out[:] = self._pixels[:, ::-1] if half_turn else self._pixels[::-1]

    def close(self) -> None:
        """Free everything; the renderer cannot be used afterwards."""
        self._gl.make_current()
        self._resources.free()
        self._gl.free()
