"""From LeRobot's env configs to what we build: each field is honoured, or refused by name."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium

from polyarm import registry
from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall, MissingExtra, UnknownName
from polyarm.vector.make import specify
from polyarm.vector.tasks import TaskLike

_log = logging.getLogger(__name__)

RENDER_FPS = 80
"""Frames per second of LeRobot's videos of LIBERO and Meta-World."""

LIBERO_NAMES = {"agentview_image": "image", "robot0_eye_in_hand_image": "image2"}
"""LeRobot's names of LIBERO's cameras, where a config gives none."""

_HARMLESS = {
    "task", "fps", "features", "features_map", "max_parallel_tasks", "disable_env_checker",
    "render_mode", "multitask_eval", "runner", "visualization_height", "visualization_width",
}  # fmt: skip
"""Fields that say what is played, are read elsewhere, or change no episode."""

_METAWORLD_HORIZON = 500


@dataclass(frozen=True)
class EnvPlan:
    """One task as a config asks for it.

    Attributes:
        group: LeRobot's name for the set of tasks it belongs to.
        task_id: Its place in the group.
        suite: Our suite, or ``"callable"``.
        task: As `make_vec` takes it.
        obs_type: ``"pixels"``, ``"pixels_agent_pos"`` or ``"state"``; "" for an env's own.
        cameras: Ours, by LeRobot's names.
        image_size: Height and width of frames; None where the env decides.
        options: Of the suite.
    """

    group: str
    task_id: int
    suite: str
    task: TaskLike
    obs_type: str = ""
    cameras: Mapping[str, str] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def frames(self) -> tuple[str, ...]:
        """Cameras whose frames are observed."""
        return () if self.obs_type == "state" else tuple(self.cameras.values())

    @cached_property
    def spec(self) -> EnvSpec:
        """What is built, complete and checked."""
        return specify(self.task, self.frames, self.image_size, dict(self.options))

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """What LeRobot asks an env for by name; none where the env itself is asked."""
        if self.suite == "callable":
            return {}
        suite, spec = registry.load(self.suite), self.spec
        told = {task.name: task.instruction for task in suite.tasks()}
        name = spec.task
        if self.suite == "libero":
            description = suite.describe(spec)
            name = description.provenance["libero_name"] if description else name
        return {
            "task": name,
            "task_id": self.task_id,
            "task_description": told[spec.name],
            "_max_episode_steps": spec.options["max_steps"],
        }


def plan_envs(cfg: Any) -> list[EnvPlan]:
    """All tasks of a config, in LeRobot's order.

    Raises:
        UnknownName: A group, task, camera or value that does not exist.
        InvalidCall: A field that cannot be honoured.
        MissingExtra: The package of a Gymnasium env is not installed.
    """
    kind = str(cfg.type).removeprefix("polyarm_")
    if kind in ("libero", "libero_plus"):
        return _plan_libero(cfg)
    if kind == "metaworld":
        return _plan_metaworld(cfg)
    return [_plan_gym(cfg)]


def _plan_libero(cfg: Any) -> list[EnvPlan]:
    known = {
        "task_ids", "episode_length", "obs_type", "camera_name", "camera_name_mapping",
        "init_states", "hard_reset", "observation_height", "observation_width", "is_libero_plus",
        "control_mode",
    }  # fmt: skip
    _refuse_unknown(cfg, known)
    if not cfg.init_states:
        raise InvalidCall("init_states=False leaves LIBERO's initial states out; polyarm sets them")
    if getattr(cfg, "is_libero_plus", False) or cfg.type == "libero_plus":
        raise InvalidCall("polyarm has LIBERO's 130 tasks, not those of LIBERO-plus")
    rate = cfg.gym_kwargs.get("control_freq", 20)
    if rate != 20:
        raise InvalidCall(
            f"LIBERO runs at 20 steps per second in polyarm, found fps={rate}; use 20"
        )
    options = {"protocol": "lerobot", "control": cfg.control_mode}
    if cfg.episode_length is not None:
        options["max_steps"] = cfg.episode_length
    sets = registry.load("libero").sets()
    return [
        EnvPlan(
            group,
            place,
            "libero",
            f"libero/{task}",
            _obs_type(cfg, ("pixels", "pixels_agent_pos")),
            _libero_cameras(cfg),
            (cfg.observation_height, cfg.observation_width),
            options,
        )
        for group in _groups(cfg, sets)
        for place, task in _chosen(cfg, sets[group])
    ]


def _plan_metaworld(cfg: Any) -> list[EnvPlan]:
    known = {
        "task_ids", "episode_length", "obs_type", "camera_name", "observation_height",
        "observation_width",
    }  # fmt: skip
    _refuse_unknown(cfg, known)
    suite = registry.load("metaworld")
    names = [task.name.partition("/")[2] for task in suite.tasks()]
    sets = {name: tuple(members) for name, members in suite.sets().items()}
    sets |= {task: (task,) for name in names for task in (name, f"metaworld-{name}")}
    size = (getattr(cfg, "observation_height", 480), getattr(cfg, "observation_width", 480))
    cameras = {name: name for name in _names(getattr(cfg, "camera_name", "corner2"))}
    return [
        EnvPlan(
            group,
            place,
            "metaworld",
            f"metaworld/{task.removeprefix('metaworld-')}",
            _obs_type(cfg, ("pixels", "pixels_agent_pos", "state")),
            cameras,
            size,
            {"max_steps": _metaworld_horizon(cfg)},
        )
        for group in _groups(cfg, sets)
        for place, task in _chosen(cfg, sets[group])
    ]


def _metaworld_horizon(cfg: Any) -> int:
    """LeRobot's own config says 400, but its env plays 500 whatever is said."""
    length: int = cfg.episode_length
    if cfg.type == "metaworld" and length == _default(cfg, "episode_length"):
        _log.info("Meta-World's episodes have %d steps, as in LeRobot", _METAWORLD_HORIZON)
        return _METAWORLD_HORIZON
    return length


def _plan_gym(cfg: Any) -> EnvPlan:
    """A single env that Gymnasium knows by its id, from the package that the config names."""
    maker = getattr(type(cfg), "create_envs", None)
    if maker is not None and not maker.__qualname__.startswith("EnvConfig."):
        raise InvalidCall(
            f"envs of type {cfg.type!r} are LeRobot's own: make them with its make_env; "
            "eval_policy_all takes them as they are"
        )
    env_id, package = cfg.gym_id, cfg.package_name
    spec = gymnasium.registry.get(env_id)
    if spec is None and importlib.util.find_spec(package) is None:
        raise MissingExtra(
            f"{env_id} is not registered, and the package {package} of env type {cfg.type!r} is "
            f"not installed: pip install {package.replace('_', '-')}"
        )
    kwargs = {"disable_env_checker": cfg.disable_env_checker, **(cfg.gym_kwargs or {})}
    return EnvPlan(cfg.type, 0, "callable", _gym_factory(env_id, package, spec, kwargs))


def _gym_factory(
    env_id: str, package: str, spec: Any, kwargs: Mapping[str, Any]
) -> Callable[[], gymnasium.Env[Any, Any]]:
    def make() -> gymnasium.Env[Any, Any]:
        if spec is None:
            importlib.import_module(package)
        return gymnasium.make(env_id if spec is None else spec, **kwargs)

    make.__qualname__ = env_id
    return make


def _groups(cfg: Any, known: Mapping[str, Any]) -> list[str]:
    groups = _names(cfg.task or "")
    if not groups:
        raise InvalidCall(f"env type {cfg.type!r} needs a task, or several separated by commas")
    for group in groups:
        if group not in known:
            hint = "Meta-World's tasks end in -v3." if group.endswith(("-v1", "-v2")) else ""
            raise UnknownName(f"task of {cfg.type}", group, known, hint)
    return list(dict.fromkeys(groups))


def _chosen(cfg: Any, tasks: Sequence[str]) -> list[tuple[int, str]]:
    """Places and names of the tasks that ``task_ids`` leaves."""
    wanted = getattr(cfg, "task_ids", None)
    places = range(len(tasks)) if wanted is None else sorted({int(place) for place in wanted})
    for place in places:
        if not 0 <= place < len(tasks):
            raise UnknownName("task id", str(place), [str(one) for one in range(len(tasks))])
    if not places:
        raise InvalidCall("task_ids is empty: leave it out for all tasks")
    return [(place, tasks[place]) for place in places]


def _libero_cameras(cfg: Any) -> dict[str, str]:
    names = LIBERO_NAMES if cfg.camera_name_mapping is None else cfg.camera_name_mapping
    asked = _names(cfg.camera_name)
    for camera in asked:
        if camera not in names:
            hint = "Give it a name in camera_name_mapping."
            raise UnknownName("camera", camera, names, hint)
    cameras = {names[camera]: camera.removesuffix("_image") for camera in asked}
    if len(cameras) != len(asked) or not asked:
        raise InvalidCall(f"cameras need names of their own, found {asked} named {names}")
    return cameras


def _names(listed: str | Iterable[str]) -> list[str]:
    parts = listed.split(",") if isinstance(listed, str) else [str(one) for one in listed]
    return [part.strip() for part in parts if part.strip()]


def _obs_type(cfg: Any, known: Sequence[str]) -> str:
    if cfg.obs_type not in known:
        raise UnknownName("obs_type", str(cfg.obs_type), known)
    return str(cfg.obs_type)


def _refuse_unknown(cfg: Any, known: set[str]) -> None:
    for each in dataclasses.fields(cfg):
        if each.name in known | _HARMLESS or getattr(cfg, each.name) == _default(cfg, each.name):
            continue
        raise InvalidCall(
            f"{each.name}={getattr(cfg, each.name)!r} of env type {cfg.type!r} is not known to "
            "polyarm and may change the score; leave it out"
        )


def _default(cfg: Any, name: str) -> Any:
    each = next(one for one in dataclasses.fields(cfg) if one.name == name)
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return each.default
