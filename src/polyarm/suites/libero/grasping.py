"""How the Panda's hand grips a thing from above: a search over height maps.

Positions are those of the hand's grip site, in metres; a yaw is the direction, in radians from
the world's x axis, along which the fingers close.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyarm.suites.libero.height_map import Floats, HeightMap, rectangle

CLEARANCE = 0.004
"""Room left around the hand and under what it puts down, in metres."""
HOME_YAW = np.pi / 2
"""The yaw of the hand at the start of an episode."""

_DEPTH = 0.02
"""How far below its top a thing is gripped, if nothing is in the way."""
_REACH = 0.68
"""How far the hand goes from the shoulder before the elbow gets straight."""
_YAWS = np.arange(16) * np.pi / 16

# The open hand seen from above, the fingers along x: the points under each of its parts, and how
# far the part's lower end is above the grip site.
_FINGER, _OUT = rectangle((0.009, 0.01), 0.005), np.array([0.046, 0])
_FINGERS = np.concatenate([_FINGER - _OUT, _FINGER + _OUT])
_PARTS = (
    (_FINGERS, -0.0092),
    (rectangle((0.1, 0.022), 0.01), 0.0254),
    (rectangle((0.1, 0.032), 0.01), 0.07),
    (rectangle((0.06, 0.06), 0.01), 0.12),
)
_BETWEEN = rectangle((0.033, 0.008), 0.003)
_ALONG = np.unique(_BETWEEN[:, 0])


@dataclass(frozen=True)
class Grasp:
    """Where the grip site goes (3,), and the direction in which the fingers close."""

    position: Floats
    yaw: float


@dataclass(frozen=True)
class Carry:
    """What a grasp is for.

    Attributes:
        mass: The thing's centre of mass (3,).
        shift: From where the thing is to where it goes (3,).
        shoulder: The point that the arm stretches from, lowered by the length of the hand (3,).
    """

    mass: Floats
    shift: Floats
    shoulder: Floats


def lowest(centres: Floats, yaw: float, heights: HeightMap) -> Floats:
    """How low the open hand may come at each centre (n, 2) without touching anything."""
    ends = [heights.tops(_placed(part, centres, yaw)).max(1) - end for part, end in _PARTS]
    found: Floats = np.max(ends, axis=0) + CLEARANCE
    return found


def find_grasp(mine: HeightMap, others: HeightMap, carry: Carry) -> Grasp:
    """The best grasp of the thing on the map ``mine`` with everything else on ``others``."""
    cells, _ = mine.cells()
    low, high = cells.min(0), cells.max(0)
    centres = (low + high) / 2 + rectangle((high - low) / 2, 0.005)
    centres = centres[np.isfinite(mine.tops(centres))]
    grasps = []
    for yaw in _YAWS:
        between = mine.tops(_placed(_BETWEEN, centres, yaw))
        tops = between.max(1)
        clear = np.maximum(lowest(centres, yaw, mine), lowest(centres, yaw, others))
        points = np.column_stack([centres, np.maximum(clear, tops - _DEPTH)])
        costs = _grip_costs(points, between) + _carry_costs(points, yaw, others, carry)
        best = int(np.argmin(costs))
        grasps.append((costs[best], Grasp(points[best], float(yaw))))
    return min(grasps, key=lambda pair: pair[0])[1]


def _grip_costs(points: Floats, between: Floats) -> Floats:
    """What the fingers would hold, in metres: deep, narrow, centred and square is cheap."""
    heights = points[:, 2]
    # Row by row across the pads, the first and the last point that they touch; a row without any
    # counts as the widest.
    touched = (between > heights[:, None]).reshape(len(points), len(_ALONG), -1)
    first = _ALONG[touched.argmax(1)]
    last = -_ALONG[touched[:, ::-1].argmax(1)]
    middle = (first + last) / 2
    missing_depth = heights - (between.max(1) - _DEPTH)
    costs: Floats = (
        3 * missing_depth
        + (last - first).mean(1)
        + 2 * np.abs(middle.mean(1))
        + 2 * np.ptp(middle, axis=1)
    )
    return costs


def _carry_costs(points: Floats, yaw: float, others: HeightMap, carry: Carry) -> Floats:
    """What is to be done with the thing, in metres: the less twist, drop and stretch the better."""
    from_mass = points[:, :2] - carry.mass[:2]
    beside = np.abs(from_mass @ [-np.sin(yaw), np.cos(yaw)])
    ends = points + carry.shift
    drop = np.maximum(lowest(ends[:, :2], yaw, others) - ends[:, 2], 0)
    # A straight elbow stops at its joint limit, and the controller cannot bend it again.
    farthest = np.linalg.norm(np.stack([points, ends]) - carry.shoulder, axis=-1).max(0)
    costs: Floats = (
        np.linalg.norm(from_mass, axis=1)
        + 2 * beside
        + drop
        + 2 * np.maximum(farthest - _REACH, 0)
        + 0.02 * abs(yaw - HOME_YAW)
    )
    return costs


def _placed(points: Floats, centres: Floats, yaw: float) -> Floats:
    """Points (m, 2) of the hand, for a hand at each centre (n, 2): (n, m, 2) in world axes."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    placed: Floats = centres[:, None] + points @ np.array([[cos, sin], [-sin, cos]])
    return placed
