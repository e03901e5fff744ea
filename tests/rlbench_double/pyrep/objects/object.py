"""An object of the scene, found by its name. Positions are in metres, quaternions (x, y, z, w)."""

from collections.abc import Sequence

import numpy as np

from pyrep.backend import rotation, sim
from pyrep.const import ObjectType


def as_float32(values: Sequence[float]) -> np.ndarray:
    """Float64 values as they come out of an interface that speaks float32."""
    return np.asarray(values, np.float32).astype(np.float64)


class Object:
    def __init__(self, name: str) -> None:
        self._name = name
        self._handle = sim.get(name).handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Object) and self._handle == other._handle

    __hash__ = None

    @property
    def _body(self) -> sim.Body:
        body = sim.simulator.bodies.get(self._name)
        sim.enter()
        if body is None or body.handle != self._handle:
            sim.fault()
        return body

    @staticmethod
    def exists(name: str) -> bool:
        return name in sim.simulator.bodies

    def still_exists(self) -> bool:
        body = sim.simulator.bodies.get(self._name)
        return body is not None and body.handle == self._handle

    def get_handle(self) -> int:
        return self._handle

    def get_name(self) -> str:
        return self._name

    def get_type(self) -> ObjectType:
        return self._body.kind

    def get_position(self) -> np.ndarray:
        return as_float32(self._body.position)

    def set_position(self, position: Sequence[float]) -> None:
        self._body.position = np.array(position, float)

    def get_quaternion(self) -> np.ndarray:
        return as_float32(self._body.quaternion)

    def set_quaternion(self, quaternion: Sequence[float]) -> None:
        self._body.quaternion = np.array(quaternion, float)

    def get_pose(self) -> np.ndarray:
        body = self._body
        return as_float32([*body.position, *body.quaternion])

    def set_pose(self, pose: Sequence[float]) -> None:
        self.set_position(pose[:3])
        self.set_quaternion(pose[3:])

    def get_matrix(self) -> np.ndarray:
        matrix = np.eye(4)
        matrix[:3, :3] = rotation.to_matrix(self._body.quaternion)
        matrix[:3, 3] = self._body.position
        return as_float32(matrix)

    def get_extension_string(self) -> str:
        return self._body.extension

    def is_collidable(self) -> bool:
        return self._body.is_collidable

    def set_collidable(self, value: bool) -> None:
        self._body.is_collidable = value

    def get_explicit_handling(self) -> int:
        return self._body.explicit_handling

    def set_explicit_handling(self, value: int) -> None:
        self._body.explicit_handling = value

    def remove(self) -> None:
        sim.remove(self._body.name)
