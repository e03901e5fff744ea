"""Envs whose every number can be predicted: they count, draw noise, take their time or do nothing.

`CountingEnv` offers everything an env made by a suite offers, so the engine's tests need no
simulator. It refuses a step before a reset or after the end, so an engine that forgets a reset
is found out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]


class CountingEnv(gymnasium.Env[Any, Any]):
    """Counts its steps and ends after ``length`` of them; the reward is the step's number.

    ``"state"`` float32 (4,) is (origin, step, sum of action[0], sum of action[1]); every
    ``"pixels/<camera>"`` uint8 (H, W, 3) is a pattern of camera, origin and step. The origin is
    ``options["episode"]`` or else the seed, modulo 1000; without either it is one more than before.

    Args:
        length: Steps until the episode ends.
        cameras: Cameras in the observation.
        image_size: ``(height, width)`` of a frame in pixels.
        truncate: End by truncation, without success, instead of by termination with success.

    Attributes:
        frames_rendered: Frames rendered since the env was built.
        frame_seconds: Seconds spent rendering since the env was built.
        display_pid: The only process that may render, as with a GL context; None: any.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}
    render_mode = "rgb_array"

    def __init__(
        self,
        *,
        length: int = 10,
        cameras: tuple[str, ...] = ("front",),
        image_size: tuple[int, int] = (8, 8),
        truncate: bool = False,
    ) -> None:
        self.length = self.max_steps = length
        self.truncate = truncate
        self.instruction = f"count to {length}"
        self.cameras = cameras
        self.image_size = image_size
        self.frames_enabled = True
        self.frames_rendered = 0
        self.frame_seconds = 0.0
        self.display_pid: int | None = None
        self.observation_space, self.action_space = counting_spaces(cameras, image_size)
        self._buffers: Mapping[str, NDArray[Any]] = {}
        self._state = np.full(4, -1, np.float32)
        self._seed = -1
        self._running = False

    @property
    def step_number(self) -> int:
        """Steps taken in this episode."""
        return int(self._state[1])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the episode that ``options["episode"]`` or else ``seed`` asks for."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed = seed
        start = (options or {}).get("episode", seed)
        origin = self._state[0] + 1 if start is None else start % 1000
        self._state[:] = (origin, 0, 0, 0)
        self._running = True
        return self._observe(), self._info()

    def step(self, action: NDArray[np.float32]) -> Step:
        """Count one step."""
        if not self._running:
            raise RuntimeError(f"{type(self).__name__} was stepped without a running episode")
        self._state[1] += 1
        self._state[2:] += action
        ended = self.step_number >= self.length
        self._running = not ended
        terminated, truncated = ended and not self.truncate, ended and self.truncate
        return self._observe(), float(self.step_number), terminated, truncated, self._info()

    def expert_action(self) -> NDArray[np.float32]:
        """(origin, step), scaled to [-1, 1]: a different action at every step of every episode."""
        return np.array([self._state[0] / 1000, self._state[1] / self.length], np.float32)

    def terminal_frame(self) -> dict[str, NDArray[np.uint8]] | None:
        """The frames of the last step, rendered now."""
        return {f"pixels/{camera}": self._frame(camera) for camera in self.cameras}

    def render(self) -> NDArray[np.uint8]:
        """The first camera's frame, or ``"front"`` where no camera is on."""
        return self._frame((*self.cameras, "front")[0])

    def _observe(self) -> Observation:
        obs: Observation = {"state": self._deliver("state", self._state)}
        if self.frames_enabled:
            for camera in self.cameras:
                key = f"pixels/{camera}"
                obs[key] = self._deliver(key, self._frame(camera))
        return obs

    def _deliver(self, key: str, value: NDArray[Any]) -> NDArray[Any]:
        if key not in self._buffers:
            return value.copy()
        self._buffers[key][...] = value
        return self._buffers[key]

    def _frame(self, camera: str) -> NDArray[np.uint8]:
        if self.display_pid not in (None, os.getpid()):
            raise RuntimeError(f"no display in process {os.getpid()}: attach_display comes first")
        began = time.perf_counter()
        height, width = self.image_size
        origin, step = int(self._state[0]), self.step_number
        pattern = np.arange(height * width * 3).reshape(height, width, 3)
        frame = (pattern + 7 * step + 31 * origin + sum(camera.encode())).astype(np.uint8)
        self.frames_rendered += 1
        self.frame_seconds += time.perf_counter() - began
        return frame

    def _info(self) -> dict[str, Any]:
        success = self.step_number >= self.length and not self.truncate
        return {"seed": self._seed, "step": self.step_number, "is_success": success}


class BindingEnv(CountingEnv):
    """A `CountingEnv` that writes its observations in place once it is bound to buffers."""

    def bind(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        """Write the next observations into ``buffers`` (key → array) and return those arrays."""
        self._buffers = buffers


class SlowEnv(CountingEnv):
    """A `CountingEnv` that sleeps in its constructor, in reset, in step and for every frame.

    Args:
        build_s: Seconds the constructor takes.
        reset_s: Seconds a reset takes.
        step_s: Seconds a step takes.
        frame_s: Seconds a frame takes, counted in ``frame_seconds``.
        length: Steps until the episode ends.
    """

    def __init__(
        self,
        *,
        build_s: float = 0.0,
        reset_s: float = 0.0,
        step_s: float = 0.01,
        frame_s: float = 0.0,
        length: int = 10,
    ) -> None:
        super().__init__(length=length)
        self.reset_s, self.step_s, self.frame_s = reset_s, step_s, frame_s
        time.sleep(build_s)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Sleep ``reset_s``, then reset."""
        time.sleep(self.reset_s)
        return super().reset(seed=seed, options=options)

    def step(self, action: NDArray[np.float32]) -> Step:
        """Sleep ``step_s``, then step."""
        time.sleep(self.step_s)
        return super().step(action)

    def _frame(self, camera: str) -> NDArray[np.uint8]:
        time.sleep(self.frame_s)
        self.frame_seconds += self.frame_s
        return super()._frame(camera)


class NoisyEnv(gymnasium.Env[Any, Any]):
    """Draws observations, rewards and ends from ``self.np_random``: one lost seed shows at once.

    Args:
        size: Numbers in an observation.
        end_probability: Chance that a step ends the episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, *, size: int = 4, end_probability: float = 0.1) -> None:
        self.end_probability = end_probability
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Draw the first observation."""
        super().reset(seed=seed)
        return self._draw(), {"draw": float(self.np_random.random())}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Draw an observation, a reward and whether this was the last step."""
        reward = float(self.np_random.normal() + np.sum(action))
        ended = bool(self.np_random.random() < self.end_probability)
        return self._draw(), reward, ended, False, {"draw": float(self.np_random.random())}

    def _draw(self) -> NDArray[np.float64]:
        return self.np_random.normal(size=self.observation_space.shape)


class NullEnv(gymnasium.Env[Any, Any]):
    """Two frames and 39 floats for nothing: what is left is the cost of the transport.

    It never ends and returns the same arrays again and again; the first byte of each frame and
    the first float carry the step's number (modulo 256), the rest stays zero.

    Args:
        image_size: ``(height, width)`` of a frame in pixels.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, *, image_size: tuple[int, int] = (256, 256)) -> None:
        pixels = spaces.Box(0, 255, (*image_size, 3), np.uint8)
        state = spaces.Box(0, 255, (39,), np.float32)
        self.observation_space = spaces.Dict(
            {"pixels/front": pixels, "pixels/wrist": pixels, "state": state}
        )
        self.action_space = spaces.Box(-1, 1, (4,), np.float32)
        self._step = 0
        self._obs: Observation = {
            "pixels/front": np.zeros(pixels.shape, np.uint8),
            "pixels/wrist": np.zeros(pixels.shape, np.uint8),
            "state": np.zeros(state.shape, np.float32),
        }
        self._info: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin at step 0."""
        super().reset(seed=seed)
        self._step = 0
        return self._stamped(), self._info

    def step(self, action: NDArray[np.float32]) -> Step:
        """Stamp the step's number and return the same arrays."""
        self._step = (self._step + 1) % 256
        return self._stamped(), 0.0, False, False, self._info

    def _stamped(self) -> Observation:
        obs, step = self._obs, self._step
        obs["pixels/front"][0, 0, 0] = step
        obs["pixels/wrist"][0, 0, 0] = step
        obs["state"][0] = step
        return obs


class BindingNullEnv(NullEnv):
    """A `NullEnv` that writes in place, as a renderer does that draws into the shared block."""

    def bind(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        """Stamp the next observations into ``buffers`` (key → array) and return those arrays."""
        self._obs = dict(buffers)


def counting_spaces(
    cameras: tuple[str, ...], image_size: tuple[int, int]
) -> tuple[spaces.Dict, spaces.Box]:
    """Observation and action space of a `CountingEnv`."""
    pixels = {
        f"pixels/{camera}": spaces.Box(0, 255, (*image_size, 3), np.uint8) for camera in cameras
    }
    state = spaces.Box(-1e6, 1e6, (4,), np.float32)
    return spaces.Dict({**pixels, "state": state}), spaces.Box(-1, 1, (2,), np.float32)
