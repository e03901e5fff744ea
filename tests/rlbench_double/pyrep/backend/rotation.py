"""Rotations as quaternions (x, y, z, w)."""

import math
from collections.abc import Sequence

import numpy as np

IDENTITY = (0.0, 0.0, 0.0, 1.0)


def about(axis: int, angle: float) -> tuple[float, float, float, float]:
    """The rotation by `angle` radians about x (0), y (1) or z (2)."""
    half = [0.0, 0.0, 0.0, math.cos(angle / 2)]
    half[axis] = math.sin(angle / 2)
    return tuple(half)


def multiply(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float, float]:
    ax, ay, az, aw = first
    bx, by, bz, bw = second
    return (
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
        aw * bw - ax * bx - ay * by - az * bz,
    )


def conjugate(quaternion: Sequence[float]) -> tuple[float, float, float, float]:
    x, y, z, w = quaternion
    return -x, -y, -z, w


def rotate(quaternion: Sequence[float], vector: Sequence[float]) -> np.ndarray:
    turned = multiply(multiply(quaternion, (*vector, 0.0)), conjugate(quaternion))
    return np.array(turned[:3])


def angle_between(first: Sequence[float], second: Sequence[float]) -> float:
    """How far apart two rotations are, in radians."""
    return 2 * math.acos(min(1.0, abs(float(np.dot(first, second)))))


def interpolate(first: Sequence[float], second: Sequence[float], share: float) -> np.ndarray:
    first, second = np.asarray(first), np.asarray(second)
    if np.dot(first, second) < 0:
        second = -second
    mixed = first + share * (second - first)
    return mixed / np.linalg.norm(mixed)


def to_matrix(quaternion: Sequence[float]) -> np.ndarray:
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def to_yaw_pitch_roll(quaternion: Sequence[float]) -> tuple[float, float, float]:
    """The angles of Rz(yaw) Ry(pitch) Rx(roll)."""
    x, y, z, w = quaternion
    pitch = math.asin(max(-1.0, min(1.0, 2 * (w * y - x * z))))
    yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    return yaw, pitch, roll
