"""From options to what is made: envs, their suites' options, the source of actions, the film."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from polyarm.bench.actions import Actions, PoseNoise, RandomActions
from polyarm.bench.options import BenchOptions
from polyarm.contracts import EnvSpec, PoseActions
from polyarm.distributed.ranks import Share
from polyarm.errors import InvalidCall, StorageError
from polyarm.rollout.filming import Film, plan_film
from polyarm.rollout.suite_settings import check_fast, pose_actions, specs, suite_settings
from polyarm.vector.tasks import TaskLike, expand_tasks

POS_NOISE_STD = 0.01
"""Metres; what the hand's random walk is where the user gives nothing."""

FOLDER = "runs/bench"
"""Where ``record`` puts videos where the user gives no folder."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark, checked; nothing has been made.

    Attributes:
        options: With this rank's number of envs.
        share: Of the envs of all ranks.
        tasks: One for each env of this rank.
        all_tasks: How many there are, for all ranks.
        settings: Options of the suites.
        poses: How actions are poses; None where they are none, and uniform.
        film: What is filmed, if anything is.
    """

    options: BenchOptions
    share: Share
    tasks: Sequence[TaskLike]
    all_tasks: int
    settings: Mapping[str, Any]
    poses: PoseActions | None
    film: Film | None

    @property
    def seed(self) -> int:
        """Of this rank: its envs count on from those of the ranks before it."""
        return self.options.seed + self.share.before

    @property
    def pose_noise_std(self) -> float | None:
        """Of the hand's random walk, in metres; None where actions are uniform."""
        given = self.options.pos_noise_std
        return None if self.poses is None else POS_NOISE_STD if given is None else given

    def actions(self, space: gymnasium.Space[Any]) -> Actions:
        """The source of actions for envs with this action space."""
        if self.pose_noise_std is not None and isinstance(space, gymnasium.spaces.Box):
            return PoseNoise(space, self.pose_noise_std, self.seed, delta=self.poses == "delta")
        return RandomActions(space, self.options.num_envs, self.seed)

    def make_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `make_vec`, beside the tasks."""
        options, film = self.options, self.film
        return {
            "num_envs": options.num_envs,
            "num_workers": options.num_workers,
            "cameras": options.cameras if options.renders else film.cameras if film else (),
            "image_size": options.image_size,
            "copy": options.copy_obs,
            "frames": "last" if options.renders else "none",
            "display": options.display,
            "seed": self.seed,
            **(film.make_arguments() if film else {}),
            **self.settings,
        }


def make_plan(options: BenchOptions) -> Plan:
    """Check the options and fill in what follows from them.

    Raises:
        PolyarmError: They make no sense, or name what does not exist.
    """
    _check(options)
    share = Share.current(options)
    settings = suite_settings(options)
    built = specs(options.tasks, settings)
    if options.fast:
        check_fast(built)
    film = None
    if options.films:
        # A video is kept when its episode ends, so episodes must not outlast the run.
        if "max_steps" not in settings and all("max_steps" in spec.options for spec in built):
            horizon = min(spec.options["max_steps"] for spec in built)
            settings["max_steps"] = min(horizon, options.max_steps)
        film = _film(options, built, share)
    options = replace(options, num_envs=share.num_envs)
    tasks, poses = expand_tasks(options.tasks), _poses(options, built)
    return Plan(options, share, share.deal(tasks), len(tasks), settings, poses, film)


def _check(options: BenchOptions) -> None:
    if not options.tasks:
        raise InvalidCall("no task was given; `polyarm suites` lists the suites and their tasks")
    counted = ("num_envs",) if options.num_envs_total is None else ()
    for name in (*counted, "max_steps", "action_chunk"):
        if (found := getattr(options, name)) < 1:
            raise InvalidCall(f"{name} must be at least 1, found {found}")
    std = options.pos_noise_std
    if std is not None and not (math.isfinite(std) and std >= 0):
        raise InvalidCall(f"pos_noise_std is a length in metres from 0 on, found {std}")
    if options.fast and options.copy_obs:
        raise InvalidCall("--fast means copy_obs=0, found 1; leave out one of them")


def _poses(options: BenchOptions, built: Sequence[EnvSpec]) -> PoseActions | None:
    poses = pose_actions(built)
    if poses is None and options.pos_noise_std is not None:
        names = ", ".join(sorted({spec.name for spec in built}))
        raise InvalidCall(
            f"pos_noise_std is noise on poses of the hand, and actions of {names} are none with "
            "these options; leave it out, or see --arm-mode"
        )
    return poses


def _film(options: BenchOptions, built: Sequence[EnvSpec], share: Share) -> Film:
    folder = Path(share.rank.folder(options.output_dir or FOLDER))
    film = plan_film(
        built,
        options.cameras,
        folder,
        None if options.video_all else (0,),
        fps=options.fps,
        stride=options.video_stride,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"no videos can be written into {folder}: {error.strerror}") from error
    return film
