"""Frames as a cheap pure function of the scene and a camera.

Shapes are squares in their colour. A stamp of the whole state in the top-left corner makes sure
that no change of the scene, however small, leaves the rgb and the depth as they were.
"""

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pyrep.backend import sim
from pyrep.const import ObjectType

STAMP_PIXELS = 4


@dataclass(frozen=True)
class Camera:
    extrinsics: np.ndarray
    intrinsics: np.ndarray
    near: float
    far: float


@dataclass(frozen=True)
class Picture:
    """Float32: rgb and mask (H, W, 3) in [0, 1], depth (H, W) from near (0) to far (1)."""

    rgb: np.ndarray
    depth: np.ndarray
    mask: np.ndarray


def render(camera: Camera, resolution: tuple[int, int], *, shaded: bool) -> Picture:
    rgb, depth, mask = (array.copy() for array in backdrop(resolution))
    shapes = [body for body in sim.simulator.bodies.values() if body.kind is ObjectType.SHAPE]
    inverse = camera.extrinsics[:3, :3].T
    seen = [(inverse @ (body.position - camera.extrinsics[:3, 3]), body) for body in shapes]
    for place, body in sorted(seen, key=lambda pair: -pair[0][2]):
        if camera.near < place[2] < camera.far:
            share = (place[2] - camera.near) / (camera.far - camera.near)
            window = _window(camera, place, body.size, resolution)
            rgb[window] = body.color
            depth[window] = share
            mask[window] = _coded(body.handle)
    if shaded:
        rgb *= np.float32(0.8)
    stamp = np.frombuffer(np.uint32(_state()).tobytes(), np.uint8)[: resolution[0]]
    rgb[0, : len(stamp)] = (stamp[:, None].astype(np.float32) + 0.5) / 255
    depth[0, : len(stamp)] = 0.5 + stamp.astype(np.float32) / 1024
    return Picture(rgb, depth, mask)


@lru_cache(maxsize=16)
def backdrop(resolution: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    width, height = resolution
    rows, columns = np.indices((height, width), dtype=np.float32)
    rgb = np.stack([0.3 + 0 * rows, 0.3 + rows / height / 3, 0.3 + columns / width / 3], -1)
    depth = np.float32(0.9) - rows / height / 2
    return rgb.astype(np.float32), depth.astype(np.float32), np.zeros_like(rgb, np.float32)


def _window(
    camera: Camera, place: np.ndarray, size: float, resolution: tuple[int, int]
) -> tuple[slice, slice]:
    """The pixels that a thing of this size covers."""
    column, row = (camera.intrinsics @ (place / place[2]))[:2]
    reach = max(1.0, abs(camera.intrinsics[0, 0]) * size / place[2])
    width, height = resolution
    edges = np.clip([row - reach, row + reach, column - reach, column + reach], 0, max(resolution))
    top, bottom, left, right = edges.astype(int)
    return slice(min(top, height), min(bottom, height)), slice(min(left, width), min(right, width))


def _coded(handle: int) -> tuple[float, float, float]:
    return handle % 256 / 255, handle // 256 % 256 / 255, handle // 65536 / 255


def _state() -> int:
    """A checksum of everything that can move or change its colour."""
    parts = [
        np.array([*body.position, *body.quaternion, body.joint_position, *body.color], np.float64)
        for body in sim.simulator.bodies.values()
    ]
    return zlib.crc32(np.concatenate(parts).tobytes())
