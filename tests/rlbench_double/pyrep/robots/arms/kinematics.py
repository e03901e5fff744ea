"""The toy arm's geometry: a turning column with a wrist on it.

The joints, counted from their home positions, turn the column, change the tip's radius, change its
height, and give the wrist's yaw, pitch and roll; a seventh joint is added to the yaw. That can be
inverted in closed form, so poses and joints always agree.
"""

import math
from collections.abc import Sequence

import numpy as np

from pyrep.backend import rotation

BASE = (-0.31, 0.0)
HOME_RADIUS_M, HOME_HEIGHT_M = 0.59, 1.47
METRES_PER_RADIAN = 0.3
DOWN = rotation.about(1, math.pi)

# From home: column, radius, height, yaw, pitch, roll, second yaw.
LOW = (-2.8, -1.5, -2.8, -2.9, -1.4, -2.8, -2.9)
HIGH = (2.8, 1.2, 1.0, 2.9, 1.4, 2.8, 2.9)


def solve_tip(angles: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Position and quaternion of the tip for angles counted from home."""
    column, radius, height, yaw, pitch, roll, *second = angles
    reach = HOME_RADIUS_M + METRES_PER_RADIAN * radius
    position = np.array(
        [
            BASE[0] + reach * math.cos(column),
            BASE[1] + reach * math.sin(column),
            HOME_HEIGHT_M + METRES_PER_RADIAN * height,
        ]
    )
    turned = rotation.about(2, column + yaw + sum(second))
    for axis, angle in ((1, pitch), (0, roll)):
        turned = rotation.multiply(turned, rotation.about(axis, angle))
    return position, np.array(rotation.multiply(turned, DOWN))


def solve_joints(
    position: Sequence[float], quaternion: Sequence[float], current: Sequence[float]
) -> np.ndarray | None:
    """Angles from home that bring the tip to a pose; None where it cannot get.

    Of several solutions, the one closest to `current` (angles from home as well).
    """
    x, y = position[0] - BASE[0], position[1] - BASE[1]
    radius = (math.hypot(x, y) - HOME_RADIUS_M) / METRES_PER_RADIAN
    height = (position[2] - HOME_HEIGHT_M) / METRES_PER_RADIAN
    bare = rotation.multiply(quaternion, rotation.conjugate(DOWN))
    heading, pitch, roll = rotation.to_yaw_pitch_roll(bare)
    second = list(current[6:])
    solutions = [
        [column, radius, height, yaw, pitch, turned, *second]
        for column in _turns(math.atan2(y, x))
        for yaw in _turns(heading - column - sum(second))
        for turned in _turns(roll)
    ]
    allowed = [angles for angles in solutions if _is_allowed(angles)]
    if not allowed:
        return None
    return np.array(min(allowed, key=lambda angles: math.dist(angles, current)))


def _is_allowed(angles: Sequence[float]) -> bool:
    return all(low <= angle <= high for low, angle, high in zip(LOW, angles, HIGH, strict=False))


def _turns(angle: float) -> tuple[float, float]:
    """The same direction, at most a turn away from zero."""
    first = math.remainder(angle, 2 * math.pi)
    return first, first - math.copysign(2 * math.pi, first)
