"""Building blocks of a task's model: positions in metres from the task's base on the table."""

from collections.abc import Sequence

import numpy as np
from pyrep.backend import rotation
from pyrep.backend.sim import Body
from pyrep.const import ObjectType
from pyrep.robots.arms.kinematics import DOWN


def shape(name: str, place: Sequence[float], size: float = 0.03) -> Body:
    return Body(name, ObjectType.SHAPE, np.array(place, float), _upright(), size=size)


def joint(name: str, place: Sequence[float]) -> Body:
    return Body(name, ObjectType.JOINT, np.array(place, float), _upright())


def sensor(name: str, place: Sequence[float], radius: float) -> Body:
    """Something that detects what is within its radius."""
    kind = ObjectType.PROXIMITY_SENSOR
    return Body(name, kind, np.array(place, float), _upright(), size=radius)


def waypoint(index: int, place: Sequence[float], extension: str = "") -> Body:
    """A pose of the tip, pointing down; the extension may open or close the gripper there."""
    name = f"waypoint{index}"
    body = Body(name, ObjectType.DUMMY, np.array(place, float), np.array(DOWN))
    body.extension = extension
    return body


def _upright() -> np.ndarray:
    return np.array(rotation.IDENTITY)
