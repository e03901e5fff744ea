"""The vector envs of an evaluation: built for all its policies, kept alive between them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey
from polyarm.rollout.dataset import DatasetExport
from polyarm.rollout.filming import Film, plan_film
from polyarm.rollout.options import EvalOptions, seconds
from polyarm.rollout.plan import Group
from polyarm.vector import host
from polyarm.vector.env import VectorEnv
from polyarm.vector.fitting import fit
from polyarm.vector.make import make_vec

_log = logging.getLogger(__name__)

_NO_LIMIT = 1_000_000
"""Restarts are limited per episode, by the runner."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the policies of a run need of a group's env.

    Attributes:
        frames: Whether there are frames that one of them looks at.
        missing: The most episodes that one of them has to play.
    """

    frames: bool
    missing: int


class LiveEnvs:
    """One vector env per group of tasks.

    Args:
        options: Of the evaluation.
        folder: Where videos go, if there are any.
        observed_slots: Slots that are recorded; None for all.
        dataset: What is saved of all episodes, if it is.
    """

    def __init__(
        self,
        options: EvalOptions,
        folder: Path | None,
        observed_slots: Sequence[int] | None,
        dataset: DatasetExport | None = None,
    ) -> None:
        self._options = options
        self._folder = folder
        self._observed_slots = observed_slots
        self._dataset = dataset
        self._envs: dict[Group, VectorEnv] = {}

    @property
    def records(self) -> bool:
        """Whether envs have observers."""
        return self._options.recorded != "none" or self._dataset is not None

    def check_recording(self, group: Group) -> None:
        """Refuse to record what cannot be recorded.

        Raises:
            InvalidCall: There is no camera, or an option is wrong.
            MissingExtra: What encodes videos is not installed.
        """
        self._film(group)

    def get(self, group: Group, need: Need, missing: Sequence[EpisodeKey]) -> VectorEnv:
        """The group's env; made anew if there is none that serves.

        Args:
            group: The tasks.
            need: What all policies of this run need of it.
            missing: What the first of them has to play: these tasks are dealt to the slots.
        """
        wanted = self._count(group, need)
        if (env := self._envs.get(group)) is not None and not env.closed:
            if env.num_envs >= wanted and (env.delivers_frames or not need.frames):
                return env
            env.close()
        options = self._options
        needed = {key.name for key in missing}
        pairs = zip(group.tasks, group.specs, strict=True)
        self._envs[group] = env = make_vec(
            [task for task, spec in pairs if spec.name in needed][:wanted],
            num_envs=wanted,
            num_workers=options.num_workers,
            cameras=self._cameras(group),
            image_size=options.image_size,
            frames="last" if need.frames else "none",
            autoreset="disabled",
            display=options.display,
            max_restarts=_NO_LIMIT,
            step_timeout_s=seconds(options.step_timeout) or _NO_LIMIT,
            reset_timeout_s=seconds(options.reset_timeout) or _NO_LIMIT,
            **self._observer(group),
            **options.suite_settings(),
        )
        return env

    def _count(self, group: Group, need: Need) -> int:
        """How many envs: as many as were asked for, are of use, and fit."""
        options = self._options
        wanted = min(options.num_envs or max(4, 2 * host.cores()), need.missing)
        if options.max_envs != "auto":
            return min(wanted, options.max_envs)
        cameras = self._cameras(group) if need.frames or self.records else ()
        room = fit(replace(group.specs[0], cameras=cameras), options.display)
        if room is None or room.num_envs >= wanted:
            return wanted
        _log.warning(
            "%d envs at once instead of %d: no more fit into %s. --max-envs %d insists.",
            room.num_envs,
            wanted,
            room.limit,
            wanted,
        )
        return room.num_envs

    def close(self, group: Group | None = None) -> None:
        """Close the env of a group, or of all."""
        for each in [*self._envs] if group is None else [group]:
            if (env := self._envs.pop(each, None)) is not None:
                env.close()

    def _cameras(self, group: Group) -> tuple[str, ...]:
        film = self._film(group)
        return film.cameras if film else group.specs[0].cameras

    def _observer(self, group: Group) -> dict[str, Any]:
        """Keyword arguments of `make_vec`."""
        film = self._film(group)
        filming = film.make_arguments() if film else {}
        return self._dataset.make_arguments(filming) if self._dataset else filming

    def _film(self, group: Group) -> Film | None:
        """What is filmed: what the policy sees, or the suite's own choice."""
        options = self._options
        if options.recorded == "none":
            return None
        return plan_film(
            group.specs,
            group.specs[0].cameras,
            self._folder or Path(),
            self._observed_slots,
            record=options.recorded,
            fps=options.fps,
            stride=options.video_stride,
            realtime=options.realtime,
            layout=options.video_layout,
            start=options.start,
        )
