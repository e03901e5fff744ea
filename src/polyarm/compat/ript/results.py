"""What `run` reports: RIPT-VLA's result dictionary, with errors beside the score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyarm.compat.ript.episodes import EpisodeForm
from polyarm.contracts import STREAM, EpisodeResult
from polyarm.errors import WorkerError
from polyarm.rollout.episode import RunningEpisode


class Tally:
    """Adds up episodes of several tasks.

    Args:
        names: LIBERO's names of the tasks, by polyarm's.
        n_video: How many episodes of each task are filmed.
    """

    def __init__(self, names: Mapping[str, str], n_video: int) -> None:
        self._names = names
        self._n_video = n_video
        self._ended: dict[str, list[EpisodeResult]] = {task: [] for task in names}
        self._errors: dict[str, list[str]] = {task: [] for task in names}
        self._films: dict[str, dict[int, Any]] = {task: {} for task in names}

    def enter(
        self,
        episode: RunningEpisode,
        form: EpisodeForm,
        save_video_fn: Callable[[Any, str, int], Any] | None,
    ) -> None:
        """Note an episode that has ended."""
        result = episode.result
        assert result is not None
        task, number = result.key.task, result.key.index % STREAM
        if result.outcome == "error":
            self._errors[task].append(result.error.get("message", ""))
            return
        self._ended[task].append(result)
        if number < self._n_video:
            film = form.upright(episode.trajectory()["obs"]).transpose(0, 3, 1, 2)
            if save_video_fn is None:
                self._films[task][number] = film
            else:
                save_video_fn(film, self._names[task], number)

    def output(self) -> dict[str, Any]:
        """The result dictionary, of plain numbers.

        Raises:
            WorkerError: No episode of a task came to its end.
        """
        for task, ended in self._ended.items():
            if not ended:
                told = self._errors[task][-1]
                raise WorkerError(f"no episode of {self._names[task]} came to its end: {told}")
        succeeded = {
            task: [result.outcome == "success" for result in ended]
            for task, ended in self._ended.items()
        }
        successes = [one for each in succeeded.values() for one in each]
        rewards = [result.total_reward for ended in self._ended.values() for result in ended]
        output: dict[str, Any] = {
            "rollout": {
                "overall_success_rate": float(np.mean(successes)),
                "overall_average_reward": float(np.mean(rewards)),
                "environments_solved": sum(any(each) for each in succeeded.values()),
                "rollout_count": len(rewards),
                "rollout_errors": sum(map(len, self._errors.values())),
            },
            "rollout_success_rate": {
                self._names[task]: float(np.mean(each)) for task, each in succeeded.items()
            },
        }
        films = {
            self._names[task]: np.concatenate([each[number] for number in sorted(each)])
            for task, each in self._films.items()
            if each
        }
        return {**output, "rollout_videos": films} if films else output
