"""A camera. Resolutions are (width, height), images (height, width, ...)."""

import math
from collections.abc import Sequence

import numpy as np

from pyrep.backend import renderer, sim
from pyrep.const import RenderMode
from pyrep.objects.object import Object

NEAR_M, FAR_M = 0.01, 4.5
VIEW_ANGLE_DEGREES = 60.0


class VisionSensor(Object):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.resolution = (128, 128)
        self._render_mode = RenderMode.OPENGL3
        self._picture: renderer.Picture | None = None

    def set_resolution(self, resolution: Sequence[int]) -> None:
        self.resolution = tuple(resolution)

    def get_resolution(self) -> list[int]:
        return list(self.resolution)

    def set_render_mode(self, render_mode: RenderMode) -> None:
        self._render_mode = render_mode

    def get_near_clipping_plane(self) -> float:
        return NEAR_M

    def get_far_clipping_plane(self) -> float:
        return FAR_M

    def handle_explicitly(self) -> None:
        """Render a frame of the scene as it is now."""
        if not self.get_explicit_handling():
            raise RuntimeError("explicit handling is off: call set_explicit_handling(value=1)")
        sim.touch_display()
        camera = renderer.Camera(self.get_matrix(), self.get_intrinsic_matrix(), NEAR_M, FAR_M)
        shaded = self._render_mode is not RenderMode.OPENGL
        self._picture = renderer.render(camera, self.resolution, shaded=shaded)

    def capture_rgb(self) -> np.ndarray:
        """Float32 (H, W, 3) in [0, 1]; of a sensor for masks, the handle spread over channels."""
        if self._name.endswith("_mask"):
            return self._picture.mask.copy()
        return self._picture.rgb.copy()

    def capture_depth(self, in_meters: bool = False) -> np.ndarray:
        """Float32 (H, W), in metres or as the share of the way from near to far."""
        depth = self._picture.depth
        return depth * np.float32(FAR_M - NEAR_M) + np.float32(NEAR_M) if in_meters else depth + 0

    def get_intrinsic_matrix(self) -> np.ndarray:
        width, height = self.resolution
        focal = -max(width, height) / (2 * math.tan(math.radians(VIEW_ANGLE_DEGREES) / 2))
        return np.array([[focal, 0.0, width / 2], [0.0, focal, height / 2], [0.0, 0.0, 1.0]])

    def pointcloud_from_depth(self, depth: np.ndarray) -> np.ndarray:
        return self.pointcloud_from_depth_and_camera_params(
            depth, self.get_matrix(), self.get_intrinsic_matrix()
        )

    @staticmethod
    def pointcloud_from_depth_and_camera_params(
        depth: np.ndarray, extrinsics: np.ndarray, intrinsics: np.ndarray
    ) -> np.ndarray:
        """World coordinates, float64 (H, W, 3), of depths in metres."""
        rows, columns = np.indices(depth.shape, dtype=np.float64)
        x = (columns - intrinsics[0, 2]) / intrinsics[0, 0] * depth
        y = (rows - intrinsics[1, 2]) / intrinsics[1, 1] * depth
        points = np.stack([x, y, depth], -1)
        return points @ extrinsics[:3, :3].T + extrinsics[:3, 3]
