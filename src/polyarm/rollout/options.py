"""What an evaluation is asked for: Python API, command line and provenance in one dataclass.

And what the options of all commands have in common; light to import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from polyarm.errors import InvalidCall, UnknownName

LAST_SEED = 2**29
"""The highest seed of a command; that of a vector env may be higher, below 2**31."""

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)


OF_SUITE = {"of_suite": True}
"""Metadata of an option that a command passes on to its suites, under the same name."""


class NamesTasks:
    """Options whose ``task`` holds names of tasks and sets, separated by commas."""

    __slots__ = ()

    task: str

    @property
    def tasks(self) -> list[str]:
        """The names in ``task``."""
        return [name.strip() for name in self.task.split(",") if name.strip()]


@dataclass(frozen=True, slots=True)
class EvalOptions(NamesTasks):
    """Options of an evaluation.

    Attributes:
        policy: random, zero, expert, replay:FILE, module:callable, module:callable@CHECKPOINT, a
            TorchScript file, lerobot:FOLDER, openpi:ws://HOST:PORT or vla-eval:ws://HOST:PORT; a
            glob of checkpoints evaluates all of them.
        task: A task (metaworld/reach-v3), a set (metaworld/mt10), or several of them separated by
            commas.
        episodes: Episodes per task; by default the protocol's, or 10.
        protocol: Whose published rules the suite follows, such as openpi or oft for LIBERO.
        out: Folder for the journal, results, report and videos; by default runs/POLICY-TASK. The
            same command again goes on where it was.
        num_envs: Envs that run at once; by default two per core, at least four. Under torchrun or
            srun those of each rank.
        num_envs_total: Envs of all ranks together, instead of num_envs.
        max_envs: Envs that run at once at most, or auto: as many as fit into main memory and, if a
            GPU renders, into its memory.
        num_workers: Worker processes; by default one per env, 0 to run in this process.
        seed: Selects the stream of episodes.
        start: Index of the first episode in the stream.
        repeats: How often each episode is played, with other policy noise.
        chunk: Actions per decision of the built-in policies.
        execute: Actions executed before the policy is asked again; by default all it returns.
        ensemble: Weight of temporal ensembling (ACT uses 0.01); off by default. The policy is then
            asked at every step, unless execute says otherwise.
        max_batch: Rows per decision at most.
        max_wait_ms: How long a ready env waits for others to join its batch.
        policy_timeout: How long one decision may take, such as 10m.
        step_timeout: How long one env step may take before its worker is replaced; on a crowded
            machine, how long it may compute.
        reset_timeout: The same for a reset.
        cameras: Cameras whose frames the policy sees, and which are recorded.
        image_size: Height and width of each frame in pixels; by default the protocol's, or 256.
        display: How frames are rendered: auto, egl, osmesa, xvfb, xvfb-shared, external or none.
        suite_options: Options of the suite as NAME=VALUE, such as success=last.
        record: Episodes that are recorded as videos: all, failures, first:N or none.
        video_all: Record every episode; the same as record=all.
        fps: Frames per second of the videos.
        video_stride: Every how many steps a frame is recorded.
        realtime: Play videos at the speed of simulated time, whatever the stride.
        video_layout: side: all cameras in one file; separate: a file for each.
        save_trajectories: Save observations, actions, rewards and extras, one file per episode.
        save_dataset: Folder for a LeRobotDataset of all steps and frames of the finished episodes.
        dataset_episodes: Which of them the dataset holds: all or successes.
        max_attempts: How often an episode whose simulator fails is tried.
        max_errors: Share of episodes that may remain errors before the exit code says so.
        retry_errors: Run episodes again that ended as errors in an earlier run of this command.
        fresh: Forget what an earlier run has left in the folder.
        stop_after: Stop cleanly after so long, such as 3h50m; the same command goes on later.
        ray: Play on the nodes of a Ray cluster: auto for the one that runs, local to start one on
            this machine for this run, or HOST:PORT; num_envs are then each node's.
        ray_policy: Where the policy is then: replicate puts one on every node, central has one
            that all nodes ask; auto is central where some nodes have a GPU and others none.
        report_to: Also report to wandb, trackio or tensorboard.
        dry_run: Only say how many episodes there are and how long they will take.
        ddp_bind_gpu: Under torchrun, bind this rank to the GPU of its local number: its envs
            render there, and its policy computes there.
        policy_gpus: GPUs that ranks compute on, such as 0-3, dealt to them in turn.
        render_gpus: GPUs that ranks render on, such as 4-7 or 4,6, dealt to them in turn.
    """

    policy: str = "random"
    task: str = "metaworld/mt10"
    episodes: int | None = None
    protocol: str | None = None
    out: str | None = None
    num_envs: int | None = None
    num_envs_total: int | None = None
    max_envs: int | Literal["auto"] = "auto"
    num_workers: int | None = None
    seed: int = 0
    start: int = 0
    repeats: int = 1
    chunk: int = 1
    execute: int | None = None
    ensemble: float | None = None
    max_batch: int | None = None
    max_wait_ms: float = 50.0
    policy_timeout: str = "10m"
    step_timeout: str = "1m"
    reset_timeout: str = "2m"
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] | None = None
    display: str = "auto"
    suite_options: tuple[str, ...] = ()
    record: str = "none"
    video_all: bool = False
    fps: float = 20.0
    video_stride: int = 4
    realtime: bool = False
    video_layout: Literal["side", "separate"] = "side"
    save_trajectories: bool = False
    save_dataset: str | None = None
    dataset_episodes: Literal["all", "successes"] = "all"
    max_attempts: int = 3
    max_errors: float = 0.02
    retry_errors: bool = False
    fresh: bool = False
    stop_after: str | None = None
    ray: str | None = None
    ray_policy: Literal["auto", "replicate", "central"] = "auto"
    report_to: str | None = None
    dry_run: bool = False
    ddp_bind_gpu: bool = False
    policy_gpus: str | None = None
    render_gpus: str | None = None

    def __post_init__(self) -> None:
        for name in ("cameras", "image_size", "suite_options"):
            value = getattr(self, name)
            listed = value if value is None or isinstance(value, list | tuple) else (value,)
            object.__setattr__(self, name, None if listed is None else tuple(listed))
        if self.save_dataset is not None:
            object.__setattr__(self, "save_dataset", str(self.save_dataset))
        _require_one_of("choice of episodes", self.dataset_episodes, "all", "successes")
        _require_one_of("ray-policy", self.ray_policy, "auto", "replicate", "central")
        for name in ("repeats", "chunk", "video_stride", "max_attempts"):
            _require(name, getattr(self, name), 1)
        for name in ("episodes", "num_envs", "num_envs_total", "max_envs", "execute", "max_batch"):
            if getattr(self, name) not in (None, "auto"):
                _require(name, getattr(self, name), 1)
        for name in ("start", "seed", "max_wait_ms", "max_errors"):
            _require(name, getattr(self, name), 0)
        if self.seed > LAST_SEED:
            raise InvalidCall(f"seed must be at most {LAST_SEED}, found {self.seed}")
        if self.image_size is not None and len(self.image_size) != 2:
            raise InvalidCall(f"image_size is a height and a width, found {self.image_size}")
        for size in self.image_size or ():
            _require("image_size", size, 1)
        for name in ("stop_after", "policy_timeout", "step_timeout", "reset_timeout"):
            seconds(getattr(self, name))
        self.suite_settings()

    @property
    def recorded(self) -> str:
        """Which episodes are recorded."""
        return "all" if self.video_all else self.record

    def suite_settings(self) -> dict[str, Any]:
        """The suite's options, with numbers and booleans read as such."""
        protocol = {} if self.protocol is None else {"protocol": self.protocol}
        return {**protocol, **read_settings(self.suite_options)}

    def as_dict(self) -> dict[str, Any]:
        """All options by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def read_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Options of suites, each given as NAME=VALUE, with numbers and booleans read as such.

    Raises:
        InvalidCall: One is not given like this.
    """
    read = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise InvalidCall(f"suite options are given as NAME=VALUE, found {setting!r}")
        read[name.strip().replace("-", "_")] = _value(value.strip())
    return read


def seconds(duration: str | float | None) -> float | None:
    """Seconds of ``3h50m``, ``90s`` or a bare number of seconds; None for None.

    Raises:
        InvalidCall: It is no duration.
    """
    if duration is None:
        return None
    match = _DURATION.fullmatch(str(duration).strip())
    try:
        if match and any(match.groups()):
            hours, minutes, rest = (float(part or 0) for part in match.groups())
            found = hours * 3600 + minutes * 60 + rest
        else:
            found = float(duration)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise InvalidCall(f"a duration is written like 3h50m, 10m or 90s, found {duration!r}")
    return found


def options_from(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options read from a file, checked: names as on the command line or as in Python.

    Raises:
        UnknownName: For a name that is no option.
    """
    known = {field.name for field in fields(EvalOptions)}
    named = {str(name).replace("-", "_"): value for name, value in given.items()}
    for name in named:
        if name not in known:
            raise UnknownName("option", name, known)
    if isinstance(named.get("task"), list):
        named["task"] = ",".join(named["task"])
    return named


def _require_one_of(kind: str, value: str, *valid: str) -> None:
    if value not in valid:
        raise UnknownName(kind, value, valid)


def _require(name: str, value: Any, least: int) -> None:
    whole = name not in ("max_wait_ms", "max_errors")
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "a whole number" if whole else "a number"
        raise InvalidCall(f"{name.replace('_', '-')} must be {kind}, found {value!r}")
    if not value >= least:
        raise InvalidCall(f"{name.replace('_', '-')} must be at least {least}, found {value}")


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
