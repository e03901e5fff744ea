"""What the envs of all simulators have in common: frames on demand, buffers, episode indices."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import InvalidCall

Observation = dict[str, NDArray[Any]]


class SimulatedEnv(gymnasium.Env[Any, Any]):
    """A task as a Gymnasium env whose frames are drawn when somebody reads them.

    Args:
        spec: What the env was built for.
        instruction: What a language-conditioned policy is told.
        max_steps: Horizon in steps.

    Attributes:
        frames_enabled: Whether observations carry frames; setting it changes nothing else.
        frame_seconds: Seconds spent rendering since the env was built.
    """

    render_mode = "rgb_array"

    def __init__(self, spec: EnvSpec, instruction: str, max_steps: int) -> None:
        self.instruction = instruction
        self.max_steps = max_steps
        self.frames_enabled = bool(spec.cameras)
        self.frame_seconds = 0.0
        self._spec = spec
        self._buffers: Mapping[str, NDArray[Any]] | None = None
        self._next_episode = 0

    @abstractmethod
    def _frames(self) -> Observation:
        """What all cameras see now, by observation key."""

    def terminal_frame(self) -> Observation | None:
        """The frames the last step would have delivered, or None without cameras."""
        return self._frames() if self._spec.cameras else None

    def bind(self, buffers: Mapping[str, NDArray[Any]] | None) -> None:
        """Write the next observations into ``buffers`` and return those very arrays.

        Args:
            buffers: One array per observation key, or None for new arrays each time.
        """
        self._buffers = buffers

    def _begin(self, seed: int | None, options: Mapping[str, Any] | None) -> int:
        """Index of the episode to start: as given, a stream's first, or the next one."""
        index = None if options is None else options.get("episode")
        if index is not None:
            index = operator.index(index)
            if index < 0:
                raise InvalidCall(f"episode {index} does not exist: indices start at 0.")
        elif seed is not None:
            index = seed * STREAM
        else:
            index = self._next_episode
        self._next_episode = index + 1
        return index

    def _array(self, key: str, shape: tuple[int, ...], dtype: type[Any]) -> NDArray[Any]:
        bound = None if self._buffers is None else self._buffers.get(key)
        return np.empty(shape, dtype) if bound is None else bound
