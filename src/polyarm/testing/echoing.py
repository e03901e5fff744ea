"""Envs that exercise what travels: every kind of space, and infos of every kind."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Nested = dict[str, Any]


class DictActionEnv(gymnasium.Env[Any, Any]):
    """Echoes a nested action of every supported kind of space in a nested observation.

    The observation is ``{"echo": <the last action>, "step": int64 ()}``; after a reset the echo
    is the smallest action. The reward is the sum of the action's ``arm/delta``.

    Args:
        length: Steps until the episode ends.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, *, length: int = 10) -> None:
        self.length = length
        self.action_space = _every_space()
        self.observation_space = spaces.Dict(
            {"echo": _every_space(), "step": spaces.Box(0, 2**31, (), np.int64)}
        )
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Nested, dict[str, Any]]:
        """Begin at step 0 with an echo of the smallest action."""
        super().reset(seed=seed)
        self._step = 0
        return self._observe(_smallest(self.action_space)), {}

    def step(self, action: Nested) -> tuple[Nested, float, bool, bool, dict[str, Any]]:
        """Echo ``action``."""
        self._step += 1
        reward = float(np.sum(action["arm"]["delta"]))
        return self._observe(action), reward, self._step >= self.length, False, {}

    def _observe(self, action: Nested) -> Nested:
        return {"echo": _copied(action), "step": np.array(self._step, np.int64)}


class InfoEnv(gymnasium.Env[Any, Any]):
    """Returns infos of many kinds; ``"late"`` appears from the third step on.

    At every step: ``count`` int, ``ratio`` float, ``flag`` bool, ``small`` np.float32,
    ``vector`` float64 (3,), ``label`` str, ``nothing`` None, ``nested`` dict, ``ragged`` int64
    (step,). At the reset: ``count``, ``label`` and ``began``. At the end: ``summary`` too.

    Args:
        length: Steps until the episode ends.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, *, length: int = 5) -> None:
        self.length = length
        self.observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin at step 0."""
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(1, np.float32), {"count": 0, "label": "reset", "began": "now"}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Return the infos of this step."""
        self._step += 1
        step = self._step
        info = {
            "count": step,
            "ratio": step / self.length,
            "flag": step % 2 == 0,
            "small": np.float32(step),
            "vector": np.full(3, step, np.float64),
            "label": f"step {step}",
            "nothing": None,
            "nested": {"depth": 1, "step": step},
            "ragged": np.arange(step),
        }
        if step >= 3:
            info["late"] = 10.0 * step
        ended = step >= self.length
        if ended:
            info["summary"] = f"{step} steps"
        return np.full(1, step, np.float32), 1.0, ended, False, info


def _every_space() -> spaces.Dict:
    arm = spaces.Dict(
        {
            "delta": spaces.Box(-1, 1, (3,), np.float32),
            "gripper": spaces.Box(0, 1, (), np.float64),
            "nothing": spaces.Box(-1, 1, (0,), np.float32),
        }
    )
    return spaces.Dict(
        {
            "arm": arm,
            "buttons": spaces.MultiBinary(4),
            "mode": spaces.Discrete(3, start=-1),
            "tools": spaces.MultiDiscrete([2, 3], start=[0, 10]),
        }
    )


def _smallest(space: spaces.Space[Any]) -> Any:
    """The member of ``space`` with every number as small as it may be."""
    match space:
        case spaces.Dict():
            return {key: _smallest(part) for key, part in space.items()}
        case spaces.Box():
            return space.low.copy()
        case spaces.Discrete() | spaces.MultiDiscrete():
            return np.array(space.start, space.dtype)
        case _:
            return np.zeros(space.shape or (), space.dtype)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return np.array(value)
