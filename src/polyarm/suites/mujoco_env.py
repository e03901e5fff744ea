"""What the envs of all MuJoCo suites have in common: a renderer that is made when it is needed."""

from __future__ import annotations

import os
import time
from abc import abstractmethod

import mujoco
import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import EnvSpec
from polyarm.errors import DisplayError
from polyarm.suites.mujoco_renderer import OffscreenRenderer
from polyarm.suites.simulated_env import Observation, SimulatedEnv

__all__ = ["MujocoEnv", "Observation"]


class MujocoEnv(SimulatedEnv):
    """A task as a Gymnasium env; its GL context is made by `attach_display` or the first frame.

    Args:
        spec: What the env was built for.
        instruction: What a language-conditioned policy is told.
        max_steps: Horizon in steps.
    """

    def __init__(self, spec: EnvSpec, instruction: str, max_steps: int) -> None:
        super().__init__(spec, instruction, max_steps)
        self._renderer: OffscreenRenderer | None = None

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

    def render(self) -> NDArray[np.uint8]:
        """A frame of the first camera, uint8 (H, W, 3)."""
        frame = np.empty(self._frame_shape, dtype=np.uint8)
        self._show(self._spec.cameras[0] if self._spec.cameras else self._default_camera, frame)
        return frame

    def attach_display(self) -> None:
        """Create the GL context, once, if there are cameras to render."""
        if self._spec.cameras:
            self._attached_renderer()

    def close(self) -> None:
        """Free the GL context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _frames(self) -> Observation:
        frames = {}
        for camera in self._spec.cameras:
            key = f"pixels/{camera}"
            frames[key] = self._array(key, self._frame_shape, np.uint8)
            self._show(camera, frames[key])
        return frames

    def _show(self, camera: str, out: NDArray[np.uint8]) -> None:
        start = time.perf_counter()
        self._draw(self._attached_renderer(), camera, out)
        self.frame_seconds += time.perf_counter() - start

    def _attached_renderer(self) -> OffscreenRenderer:
        if self._renderer is None:
            try:
                self._renderer = self._make_renderer()
            except DisplayError:
                raise  # it says what to do
            except (ImportError, RuntimeError, mujoco.FatalError) as error:
                raise self._display_error(str(error)) from error
        return self._renderer

    def _display_error(self, reason: str) -> DisplayError:
        backend = os.environ.get("MUJOCO_GL", "")
        return DisplayError(
            f"{self._spec.name} cannot render with MUJOCO_GL={backend!r}: {reason}. "
            "Ask for cameras, or for display='egl' or 'osmesa', when the env is made."
        )
