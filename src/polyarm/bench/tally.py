"""What the envs did during a run: steps, frames, episodes, returns and errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray


class Tally:
    """Counts over the results of `VectorEnv.step` and `step_chunk`.

    Args:
        num_envs: Number of slots.
        observation_space: Of a single env; tells how many frames an observation holds.

    Attributes:
        steps: Env steps executed.
        frames: Frames delivered fresh.
        errors: Episodes cut short by a failing env or worker.
        successes: Finished episodes that succeeded; None while no env has said.
        returns: Of every finished episode.
        files: What observers made of finished episodes, relative to their folder.
    """

    def __init__(self, num_envs: int, observation_space: gymnasium.Space[Any]) -> None:
        self.steps = 0
        self.frames = 0
        self.errors = 0
        self.successes: int | None = None
        self.returns: list[float] = []
        self.files: list[str] = []
        self._running = np.zeros(num_envs)
        self._cameras = 0
        if isinstance(observation_space, gymnasium.spaces.Dict):
            self._cameras = sum(key.startswith("pixels/") for key in observation_space.spaces)

    def add(
        self,
        rewards: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        info: dict[str, Any],
    ) -> NDArray[np.bool_]:
        """Count one call's results; returns which slots failed, (N,)."""
        failed: NDArray[np.bool_] = info.get("_error", np.zeros(len(terminated), np.bool_))
        self.errors += int(failed.sum())
        self.steps += int(info["steps"].sum())
        self.frames += int(info["frame_valid"].sum()) * self._cameras
        self._running += rewards if rewards.ndim == 1 else rewards.sum(axis=1)
        ended = (terminated | truncated) & ~failed
        if ended.any():
            self.returns += self._running[ended].tolist()
            if "is_success" in info:
                told = ended & info["_is_success"]
                self.successes = (self.successes or 0) + int(info["is_success"][told].sum())
            for slot in np.flatnonzero(info.get("_observed_files", ())):
                self.files += info["observed_files"][slot]
        self._running[ended | failed] = 0.0
        return failed

    @property
    def average_return(self) -> float | None:
        """Of the finished episodes; None while there are none."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def running_return(self) -> float:
        """What the episodes still running have gathered, averaged over the slots."""
        return float(self._running.mean())

    @property
    def success_rate(self) -> float | None:
        """Of the finished episodes; None where the envs don't say, or none has finished."""
        return None if self.successes is None else self.successes / len(self.returns)
