"""Random actions for all envs of a benchmark, the same for the same seed."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

_OPENING, _POSITION, _TURN = 0, slice(1, 4), slice(4, 8)
_GRIPPER = 7
"""Where states and actions have what `polyarm.contracts.PoseActions` says."""

_IDENTITY = (0.0, 0.0, 0.0, 1.0)


class Actions(Protocol):
    """A source of actions."""

    def build(self, chunk: int | None, obs: Any) -> Any:
        """Actions ``(N, …)``, or ``(N, K, …)`` for a chunk of K.

        Args:
            chunk: K, or None for single steps.
            obs: What the envs have delivered last, ``(N, …)``.
        """
        ...


class RandomActions:
    """Uniform in the action space.

    Args:
        space: Action space of a single env.
        num_envs: Number of envs, N.
        seed: Seed of the draws.
    """

    def __init__(self, space: gymnasium.Space[Any], num_envs: int, seed: int) -> None:
        self._space = space
        self._num_envs = num_envs
        self._random = np.random.default_rng(seed)
        self._flat: dict[int, gymnasium.Space[Any]] = {}

    def build(self, chunk: int | None, obs: Any = None) -> Any:
        """Actions ``(N, …)``, or ``(N, K, …)`` for a chunk of K; observations do not matter."""
        number = self._num_envs * (chunk or 1)
        if number not in self._flat:
            space = batch_space(self._space, number)
            space.seed(int(self._random.integers(2**31)))
            self._flat[number] = space
        sample = self._flat[number].sample()
        return sample if chunk is None else _fold(sample, self._num_envs, chunk)


class PoseNoise:
    """Poses around the current one: a random walk of the hand, which neither turns nor grips.

    A pose drawn uniformly would be out of reach, its quaternion no rotation.

    Args:
        space: Action space of a single env: position (3), unit quaternion (4), gripper, maybe
            more.
        std: Standard deviation of a step along each axis, in metres.
        seed: Seed of the draws.
        delta: Whether actions are displacements instead of places.
    """

    def __init__(self, space: gymnasium.spaces.Box, std: float, seed: int, *, delta: bool) -> None:
        self._space = space
        self._std = std
        self._random = np.random.default_rng(seed)
        self._delta = delta

    def build(self, chunk: int | None, obs: Any) -> NDArray[np.float32]:
        """Actions ``(N, A)``, or ``(N, K, A)`` that walk on from step to step.

        Args:
            chunk: K, or None for single steps.
            obs: Its ``"state"`` ``(N, n)`` starts with the gripper's opening and the hand's pose.
                A slot that has just failed has its last one, and is reset whatever its action.
        """
        state = np.asarray(obs["state"], np.float64)[:, None]
        shape = (len(state), chunk or 1)
        steps = self._random.normal(0.0, self._std, (*shape, 3))
        actions = np.zeros((*shape, *self._space.shape))
        if self._delta:
            actions[..., :3] = steps
            actions[..., 3:_GRIPPER] = _IDENTITY
        else:
            actions[..., :3] = state[..., _POSITION] + steps.cumsum(axis=1)
            actions[..., 3:_GRIPPER] = _unit(state[..., _TURN])
        # A continuous gripper's bound is its width when it is open.
        actions[..., _GRIPPER] = state[..., _OPENING] * self._space.high[_GRIPPER]
        built: NDArray[np.float32] = actions.astype(np.float32)
        return built if chunk is not None else built[:, 0]


def _unit(quaternions: NDArray[np.float64]) -> NDArray[np.float64]:
    turned: NDArray[np.float64] = quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)
    return turned


def _fold(sample: Any, num_envs: int, chunk: int) -> Any:
    if isinstance(sample, dict):
        return {key: _fold(value, num_envs, chunk) for key, value in sample.items()}
    return sample.reshape(num_envs, chunk, *sample.shape[1:])
