"""What a learner sees of observations, and what its outputs mean as actions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from numpy.typing import NDArray

from polyarm.errors import InvalidCall

Array = NDArray[Any]
Leaves = dict[str, Any]

_TURN = slice(3, 7)
_NO_TURN = (0.0, 0.0, 0.0, 1.0)
_STATE = "state"
_PICTURE = "pixels/"


@dataclass(frozen=True, slots=True)
class Sight:
    """Which parts of an observation are looked at.

    Attributes:
        state_size: Numbers of the state; 0 without one.
        pictures: Keys of the frames, each uint8 ``(H, W, C)``.
        shapes: ``(H, W, C)`` of each of them.
        bare: Whether the observation is an array, not a dict of them.
    """

    state_size: int
    pictures: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    bare: bool = False

    @classmethod
    def of(cls, space: Space[Any]) -> Sight:
        """What there is to see in a single env's observation.

        Raises:
            InvalidCall: Neither a state nor a picture.
        """
        if isinstance(space, Box):
            if space.dtype == np.uint8 and len(space.shape) == 3 and not _is_picture(space):
                raise InvalidCall(
                    f"train looks at frames that are uint8 (H, W, C) with 1, 3 or 4 channels, found"
                    f" {space}"
                )
            if _is_picture(space):
                return cls(0, (_PICTURE,), (space.shape,), bare=True)
            return cls(math.prod(space.shape), bare=True)
        boxes = space.spaces if isinstance(space, Dict) else {}
        pictures = {
            key: box.shape
            for key, box in boxes.items()
            if key.startswith(_PICTURE) and isinstance(box, Box) and _is_picture(box)
        }
        state = boxes.get(_STATE)
        size = math.prod(state.shape) if isinstance(state, Box) else 0
        odd = [key for key in boxes if key.startswith(_PICTURE) and key not in pictures]
        if odd:
            raise InvalidCall(
                f"train looks at frames that are uint8 (H, W, C) with 1, 3 or 4 channels, and"
                f" {odd[0]!r} is {boxes[odd[0]]}"
            )
        if not size and not pictures:
            raise InvalidCall(
                f"train needs a 'state', frames ('pixels/…') or a Box to look at, found {space}"
            )
        return cls(size, tuple(pictures), tuple(pictures.values()))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Sight:
        """What `as_dict` gave."""
        shapes = tuple(map(tuple, saved["shapes"]))
        return cls(saved["state_size"], tuple(saved["pictures"]), shapes, saved["bare"])

    def leaves(self, obs: Any, leading: int = 1) -> Leaves:
        """The parts by name: ``"state"`` ``(…, n)`` and pictures ``(…, H, W, C)``.

        Args:
            obs: An observation of a batch; of a ring, with ``leading=2``.
            leading: How many dimensions come before those of a single env.
        """
        if self.bare:
            obs = {self.pictures[0] if self.pictures else _STATE: obs}
        found = {key: obs[key] for key in self.pictures}
        if self.state_size:
            state = obs[_STATE]
            found[_STATE] = state.reshape(*state.shape[:leading], -1)
        return found


@dataclass(frozen=True)
class Acts:
    """How a learner's outputs become actions of an env.

    Attributes:
        space: Action space of a single env.
        poses: Whether actions are displacements of a hand: the quaternion stays as it is.
    """

    space: Box | Discrete
    poses: bool = False

    @classmethod
    def of(cls, space: Space[Any], *, poses: bool = False) -> Acts:
        """For this space.

        Raises:
            InvalidCall: It is neither a Box of real numbers nor Discrete.
        """
        if isinstance(space, Discrete):
            return cls(space)
        if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
            return cls(space, poses)
        raise InvalidCall(
            f"train needs actions that are a Box of real numbers or Discrete, found {space}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a file."""
        if isinstance(self.space, Discrete):
            return {"choices": int(self.space.n), "start": int(self.space.start)}
        bounds = {"low": self.space.low.tolist(), "high": self.space.high.tolist()}
        return {**bounds, "dtype": str(self.space.dtype), "poses": self.poses}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Acts:
        """What `as_dict` gave."""
        if "choices" in saved:
            return cls(Discrete(saved["choices"], start=saved["start"]))
        dtype = np.dtype(saved["dtype"])
        low, high = np.array(saved["low"], dtype), np.array(saved["high"], dtype)
        return cls(Box(low, high, dtype=dtype.type), saved["poses"])

    @property
    def discrete(self) -> bool:
        """Whether one of several actions is chosen."""
        return isinstance(self.space, Discrete)

    @property
    def outputs(self) -> int:
        """Numbers that describe the choice of one action: logits, or means."""
        if isinstance(self.space, Discrete):
            return int(self.space.n)
        return len(self._free)

    @cached_property
    def _free(self) -> NDArray[np.intp]:
        """The numbers of an action that are chosen."""
        free = np.arange(math.prod(self.space.shape or ()))
        return np.delete(free, _TURN) if self.poses else free

    @cached_property
    def _spans(self) -> tuple[Array, Array, Array, Array]:
        """Of the chosen numbers: middle and half width of their bounds, and the bounds."""
        assert isinstance(self.space, Box)
        low: Array = self.space.low.ravel()[self._free]
        high: Array = self.space.high.ravel()[self._free]
        # Some envs write the largest number of the type for "without bounds".
        most = np.finfo(low.dtype).max / 4
        bounded = (np.abs(low) < most) & (np.abs(high) < most)
        lowest, highest = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        middle, half = (lowest + highest) / 2, (highest - lowest) / 2
        return middle.astype(low.dtype), half.astype(low.dtype), low, high

    def to_env(self, chosen: Array) -> Array:
        """Actions ``(…, *space.shape)`` from choices: ``(…)`` indices, or ``(…, outputs)`` numbers.

        Numbers from -1 to 1 span the bounds, where there are any, and are cut off there.
        """
        if isinstance(self.space, Discrete):
            return (chosen + self.space.start).astype(self.space.dtype)
        middle, half, low, high = self._spans
        numbers: Array = np.clip(middle + half * chosen, low, high)
        if not self.poses:
            whole: Array = numbers.reshape(*chosen.shape[:-1], *self.space.shape)
            return whole.astype(self.space.dtype, copy=False)
        actions = np.empty((*chosen.shape[:-1], *self.space.shape), self.space.dtype)
        actions[..., self._free] = numbers
        actions[..., _TURN] = _NO_TURN
        return actions


def _is_picture(space: Box) -> bool:
    return space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[-1] in (1, 3, 4)
