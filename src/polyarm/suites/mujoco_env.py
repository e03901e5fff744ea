"""What the envs of all MuJoCo suites have in common: frames on demand, buffers, episode indices."""

from __future__ import annotations

import operator
import os
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import DisplayError, InvalidCall
from polyarm.suites.mujoco_renderer import OffscreenRenderer

Observation = dict[str, NDArray[Any]]


class MujocoEnv(gymnasium.Env[Any, Any]):
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
        self._renderer: OffscreenRenderer | None = None
        self._buffers: Mapping[str, NDArray[Any]] | None = None
        self._next_episode = 0

    @abstractmethod
    def _make_renderer(self) -> OffscreenRenderer:
        """A renderer for the simulator's model."""

    @abstractmethod
    def _draw(self, renderer: OffscreenRenderer, camera: str, out: NDArray[np.uint8]) -> None:
        """Draw what the last observation shows."""

    @property
    def _default_camera(self) -> str:
        """The camera of `render` where the spec names none."""
        raise NotImplementedError

    @property
    def _frame_shape(self) -> tuple[int, int, int]:
        return (*self._spec.image_size, 3)

    def terminal_frame(self) -> Observation | None:
        """The frames the last step would have delivered, or None without cameras."""
        return self._frames() if self._spec.cameras else None

    def render(self) -> NDArray[np.uint8]:
        """A frame of the first camera, uint8 (H, W, 3)."""
        frame = np.empty(self._frame_shape, dtype=np.uint8)
        self._show(self._spec.cameras[0] if self._spec.cameras else self._default_camera, frame)
        return frame

    def bind(self, buffers: Mapping[str, NDArray[Any]] | None) -> None:
        """Write the next observations into ``buffers`` and return those very arrays.

        Args:
            buffers: One array per observation key, or None for new arrays each time.
        """
        self._buffers = buffers

    def attach_display(self) -> None:
        """Create the GL context, once, if there are cameras to render."""
        if self._spec.cameras:
            self._attached_renderer()

    def close(self) -> None:
        """Free the GL context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

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

    def _frames(self) -> Observation:
        frames = {}
        for camera in self._spec.cameras:
            key = f"pixels/{camera}"
            frames[key] = self._array(key, self._frame_shape, np.uint8)
            self._show(camera, frames[key])
        return frames

    def _array(self, key: str, shape: tuple[int, ...], dtype: type[Any]) -> NDArray[Any]:
        bound = None if self._buffers is None else self._buffers.get(key)
        return np.empty(shape, dtype) if bound is None else bound

    def _show(self, camera: str, out: NDArray[np.uint8]) -> None:
        start = time.perf_counter()
        self._draw(self._attached_renderer(), camera, out)
        self.frame_seconds += time.perf_counter() - start

    def _attached_renderer(self) -> OffscreenRenderer:
        if self._renderer is None:
            if not hasattr(mujoco, "GLContext"):
                raise self._display_error("this process was started without a display")
            try:
                self._renderer = self._make_renderer()
            except (ImportError, RuntimeError, mujoco.FatalError) as error:
                raise self._display_error(str(error)) from error
        return self._renderer

    def _display_error(self, reason: str) -> DisplayError:
        backend = os.environ.get("MUJOCO_GL", "")
        return DisplayError(
            f"{self._spec.name} cannot render with MUJOCO_GL={backend!r}: {reason}. "
            "Ask for cameras, or for display='egl' or 'osmesa', when the env is made."
        )
