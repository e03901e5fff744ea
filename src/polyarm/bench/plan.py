"""From options to what is made: envs, their suites' options, the source of actions, the film."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium

from polyarm import registry
from polyarm.bench.actions import Actions, PoseNoise, RandomActions
from polyarm.bench.options import BenchOptions
from polyarm.bench.ranks import Rank, of_this_rank
from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall, UnknownName
from polyarm.recording.encoder import require_video_extra
from polyarm.recording.options import VideoOptions
from polyarm.rollout.options import EvalOptions
from polyarm.vector.make import expand_tasks, make_vec, specify

POSE_MODES = ("ik", "planning")
"""Values of a suite's ``arm_mode`` whose actions are poses of the hand."""

POS_NOISE_STD = 0.01
"""Metres; what the hand's random walk is where the user gives nothing."""

FOLDER = "runs/bench"
"""Where ``record`` puts videos where the user gives no folder."""

_OWN = ("arm_mode", "robot_setup", "idle_fps")


class SuiteSettings(Protocol):
    """Options of a command that pass some on to its suites."""

    @property
    def tasks(self) -> list[str]:
        """Names of tasks and sets."""

    @property
    def suite_options(self) -> tuple[str, ...]:
        """Each as NAME=VALUE."""


def suite_settings(options: SuiteSettings) -> dict[str, Any]:
    """What the suites are told: ``suite_options``, and what has an option of its own here.

    Raises:
        UnknownName: A suite has no such option.
        InvalidCall: One of them is no suite's.
    """
    settings = EvalOptions(suite_options=options.suite_options).suite_settings()
    for name in settings:
        if name in inspect.signature(make_vec).parameters:
            raise InvalidCall(f"{name!r} is an option of the command, not of a suite")
    given = {name: getattr(options, name, None) for name in _OWN}
    named = {name: value for name, value in given.items() if value is not None}
    if named:
        for spec in specs(options.tasks, {}):
            for name in named:
                if name not in spec.options:
                    raise UnknownName(
                        f"option of {spec.suite}", name, spec.options, "(rlbench has it.)"
                    )
    return {**settings, **named}


def specs(tasks: Sequence[str], settings: Mapping[str, Any]) -> list[EnvSpec]:
    """What is built for each task, without cameras.

    Raises:
        UnknownName: For a suite, task or option that does not exist.
    """
    return [specify(task, (), None, dict(settings)) for task in expand_tasks(tasks)]


@dataclass(frozen=True, slots=True)
class Film:
    """What is filmed.

    Attributes:
        folder: Gets the folder ``videos``.
        cameras: Whose frames are filmed, side by side.
        slots: Envs that are filmed; None for all.
        observer_options: Of `polyarm.recording.video:video_recorder`.
    """

    folder: Path
    cameras: tuple[str, ...]
    slots: tuple[int, ...] | None
    observer_options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark, checked; nothing has been made.

    Attributes:
        options: With this rank's number of envs.
        seed: Of this rank: its envs count on from those of the ranks before it.
        settings: Options of the suites.
        pose_noise_std: Of the hand's random walk; None where actions are uniform.
        delta: Whether poses are given as displacements.
        film: What is filmed, if anything is.
    """

    options: BenchOptions
    seed: int
    settings: Mapping[str, Any]
    pose_noise_std: float | None
    delta: bool
    film: Film | None

    def actions(self, space: gymnasium.Space[Any]) -> Actions:
        """The source of actions for envs with this action space."""
        if self.pose_noise_std is not None and isinstance(space, gymnasium.spaces.Box):
            return PoseNoise(space, self.pose_noise_std, self.seed, delta=self.delta)
        return RandomActions(space, self.options.num_envs, self.seed)

    def make_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `make_vec`, beside the tasks."""
        options, film = self.options, self.film
        filmed: dict[str, Any] = {}
        if film is not None:
            filmed = {
                "observer": "polyarm.recording.video:video_recorder",
                "observer_options": film.observer_options,
                "observed_slots": film.slots,
            }
        return {
            "num_envs": options.num_envs,
            "num_workers": options.num_workers,
            "cameras": options.cameras if options.renders else film.cameras if film else (),
            "image_size": options.image_size,
            "copy": options.copy_obs and not options.fast,
            "frames": "last" if options.renders else "none",
            "display": options.display,
            "seed": self.seed,
            **filmed,
            **self.settings,
        }


def make_plan(options: BenchOptions) -> Plan:
    """Check the options and fill in what follows from them.

    Raises:
        PolyarmError: They make no sense, or name what does not exist.
    """
    _check(options)
    options, before = of_this_rank(options)
    settings = suite_settings(options)
    built = specs(options.tasks, settings)
    if options.fast:
        _check_fast(built)
    std, delta = _pose_noise(options, built)
    film = None
    if options.films:
        # A video is kept when its episode ends, so episodes must not outlast the run.
        if "max_steps" not in settings and all("max_steps" in spec.options for spec in built):
            horizon = min(spec.options["max_steps"] for spec in built)
            settings["max_steps"] = min(horizon, options.max_steps)
        film = _film(options, built)
    return Plan(options, options.seed + before, settings, std, delta, film)


def _check(options: BenchOptions) -> None:
    if not options.tasks:
        raise InvalidCall("no task was given; `polyarm suites` lists the suites and their tasks")
    for name in ("max_steps", "action_chunk"):
        if (found := getattr(options, name)) < 1:
            raise InvalidCall(f"{name} must be at least 1, found {found}")
    std = options.pos_noise_std
    if std is not None and not (math.isfinite(std) and std >= 0):
        raise InvalidCall(f"pos_noise_std is a length in metres from 0 on, found {std}")


def _check_fast(built: Sequence[EnvSpec]) -> None:
    for name, value in (("arm_mode", "ik"), ("idle_fps", 0)):
        for spec in built:
            if (found := spec.options.get(name, value)) != value:
                raise InvalidCall(
                    f"--fast means {name}={value}, found {found!r}; use --no-rgb instead of --fast"
                )


def _pose_noise(options: BenchOptions, built: Sequence[EnvSpec]) -> tuple[float | None, bool]:
    modes = [spec.options.get("arm_mode") for spec in built]
    if all(mode in POSE_MODES for mode in modes):
        std = options.pos_noise_std
        delta = built[0].options.get("control") == "delta"
        return POS_NOISE_STD if std is None else std, delta
    if options.pos_noise_std is not None:
        found = {
            f"{spec.suite} (arm_mode {mode or 'is not an option'})"
            for spec, mode in zip(built, modes, strict=True)
        }
        raise InvalidCall(
            f"pos_noise_std is noise on poses, so it needs a suite with arm_mode "
            f"{' or '.join(POSE_MODES)}, such as rlbench; found {', '.join(sorted(found))}"
        )
    return None, False


def _film(options: BenchOptions, built: Sequence[EnvSpec]) -> Film:
    require_video_extra()
    cameras = options.cameras
    for spec in built:
        cameras = cameras or getattr(registry.load(spec.suite), "default_cameras", ())
        if not cameras:
            raise InvalidCall(f"filming needs a camera; name one, {spec.suite} has no default")
    folder = Path(Rank.current().folder(options.output_dir or FOLDER)).absolute()
    video = {
        "folder": str(folder / "videos"),
        "cameras": cameras,
        "fps": options.fps,
        "stride": options.video_stride,
    }
    try:
        VideoOptions(**video)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidCall(str(error)) from error
    return Film(folder, cameras, None if options.video_all else (0,), video)
