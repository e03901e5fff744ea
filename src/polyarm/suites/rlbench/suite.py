"""RLBench: over a hundred tasks in CoppeliaSim, each with variations.

CoppeliaSim cannot be forked, and a process holds one of them: workers are fresh interpreters, each
with an X server of its own where it renders.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from polyarm.contracts import (
    EnvDescription,
    EnvSpec,
    Footprint,
    ForkMode,
    PoseActions,
    Requirement,
    Task,
)
from polyarm.errors import InvalidCall, MissingExtra, UnknownName
from polyarm.suites.rlbench import catalogue
from polyarm.suites.rlbench.actions import JOINTS, POSE_MODES, action_space
from polyarm.suites.rlbench.coppeliasim import check_version
from polyarm.suites.rlbench.environment import Environment, current, known_version
from polyarm.suites.rlbench.options import VERSION
from polyarm.suites.rlbench.simulator import CAMERAS, channels

if TYPE_CHECKING:
    from polyarm.suites.rlbench.env import RLBenchEnv

METADATA = {"render_modes": ["rgb_array"], "render_fps": 20}

_SETUP = "polyarm setup rlbench"
_DEMOS = "demos:"

HORIZONS = {
    "ik": 400,
    "planning": 25,
    "joint_velocity": 400,
    "joint_position": 400,
    "joint_torque": 400,
}
"""Steps of an episode: 20 s of simulated time where an action is one simulator step (with ``ik``
it is about three), or 25 keyframes."""

_DEFAULTS: dict[str, Any] = {
    "arm_mode": "ik",
    "control": "absolute",
    "gripper": "discrete",
    "ignore_collision": False,
    "collision_checking": False,
    "robot_setup": "panda",
    "episodes": "random",
    "static_positions": False,
    "shaped_rewards": False,
    "on_invalid_action": "fail",
    "max_steps": None,
    "task_state": 0,
    "render_mode": "opengl3",
    "depth": False,
    "point_cloud": False,
    "mask": False,
    "idle_fps": 0.0,
    "coppeliasim_root": None,
    "interpreter": None,
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "arm_mode": tuple(HORIZONS),
    "control": ("absolute", "delta"),
    "gripper": ("discrete", "continuous"),
    "ignore_collision": (False, True),
    "collision_checking": (False, True),
    "robot_setup": tuple(JOINTS),
    "static_positions": (False, True),
    "shaped_rewards": (False, True),
    "on_invalid_action": ("fail", "skip", "end"),
    "render_mode": ("opengl3", "opengl"),
    "depth": (False, True),
    "point_cloud": (False, True),
    "mask": (False, True),
}
_PATHS = ("coppeliasim_root", "interpreter")
_HOST_ONLY = ("idle_fps", "coppeliasim_root", "interpreter")

_NOT_REPRODUCIBLE = (
    "resets that sample joint positions or plan paths, and planned actions: "
    "both have time limits, so that a slower machine may find another one"
)


class RLBench:
    """The suite ``rlbench``: ``"rlbench/open_drawer"``, or as its class ``"rlbench/OpenDrawer"``.

    An episode's index chooses its variation, in turn; ``"rlbench/open_drawer:2"`` is one variation
    alone, ``"rlbench/open_drawer:all"`` each as a task of its own. The set ``peract18`` holds
    PerAct's tasks.

    Options:
        arm_mode: ``"ik"`` (default): pose of the hand, reached by inverse kinematics;
            ``"planning"``: pose, reached along a planned path, as in next-best-pose policies;
            ``"joint_velocity"``, ``"joint_position"``, ``"joint_torque"``.
        control: ``"absolute"`` (default) or ``"delta"``, for poses and joint positions.
        gripper: ``"discrete"`` (default; above 0.5 is open) or ``"continuous"`` (metres).
        ignore_collision: A further number of a planned action: whether collisions are ignored.
        collision_checking: Whether planned paths avoid collisions, where actions do not say.
        robot_setup: ``"panda"`` (default), ``"sawyer"``, ``"ur5"``, ``"jaco"`` or ``"mico"``.
        episodes: ``"random"`` (default), or ``"demos:<dataset_root>"``: episode k starts as the
            k-th stored demonstration did.
        static_positions: Do not place the task at random.
        shaped_rewards: The task's dense reward instead of 1 for success; few tasks have one.
        on_invalid_action: What an action without solution, path or unit quaternion does:
            ``"fail"`` (default) ends the episode as a failure, ``"end"`` ends it with the success
            it has, ``"skip"`` does nothing. ``info["invalid_actions"]`` counts them.
        max_steps: Horizon; by default 25 keyframes when planning, else 400 steps.
        task_state: Room for so many numbers of the task's own state, as ``"task_state"``.
        render_mode: ``"opengl3"`` (default, RLBench's) or ``"opengl"``: faster, without shadows.
        depth, point_cloud, mask: Deliver them for every camera, as ``"depth/<camera>"`` ….
        idle_fps: How often PyRep's ``step_ui`` is called between actions; kept for old scripts.
        coppeliasim_root: CoppeliaSim's folder; by default ``$COPPELIASIM_ROOT`` if it is exactly
            4.1.0, else the set-up's.
        interpreter: A Python that has PyRep and RLBench; by default the set-up's, or this one.
    """

    name = "rlbench"
    fork: ForkMode = "never"
    episodic = True
    needs_x = True
    one_per_process = True
    default_cameras = ("front",)

    def tasks(self) -> Sequence[Task]:
        """All tasks, with the horizon of the default arm mode."""
        horizon = HORIZONS[_DEFAULTS["arm_mode"]]
        return [
            Task(f"rlbench/{name}", name.replace("_", " "), horizon) for name in catalogue.names()
        ]

    def sets(self) -> Mapping[str, Sequence[str]]:
        """PerAct's tasks; and ``<task>:all``, the variations of a task."""
        return catalogue.TaskSets()

    def defaults(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """25 episodes of each task, as PerAct's evaluations have it; frames of RLBench's size."""
        return {"episodes": 25, "image_size": (128, 128)}

    def check(self, spec: EnvSpec) -> EnvSpec:
        """Validate task, cameras and options; fill in the defaults.

        Raises:
            UnknownName: A task, camera, option or option value that does not exist.
            InvalidCall: Options that exclude each other.
        """
        task, variation = catalogue.find(spec.task)
        name = task if variation is None else f"{task}:{variation}"
        for camera in spec.cameras:
            if camera not in CAMERAS:
                raise UnknownName("camera of rlbench", camera, CAMERAS)
        for option in spec.options:
            if option not in _DEFAULTS:
                raise UnknownName("option of rlbench", option, _DEFAULTS)
        options = {**_DEFAULTS, **spec.options}
        for option in _PATHS:
            if isinstance(options[option], Path):
                options[option] = str(options[option])
        for option, value in options.items():
            _check_value(option, value)
        if options["max_steps"] is None:
            options["max_steps"] = HORIZONS[options["arm_mode"]]
        _check_together(options)
        return replace(spec, task=name, options=options)

    def describe(self, spec: EnvSpec) -> EnvDescription:
        """Spaces, which all tasks of an arm share, and everything that shapes an episode."""
        spec = self.check(spec)
        return EnvDescription(
            observation_space=observation_space(spec),
            action_space=action_space(spec),
            metadata=METADATA,
            provenance=_provenance(spec),
        )

    def footprint(self, spec: EnvSpec) -> Footprint:
        """A simulator and its X server; what cameras take is in main memory without a GPU."""
        return Footprint(host=240 * 2**20, graphics=300 * 2**20 if spec.cameras else 0)

    def pose_actions(self, spec: EnvSpec) -> PoseActions | None:
        """As ``control`` says where actions are poses; None where they move joints."""
        if spec.options["arm_mode"] not in POSE_MODES:
            return None
        control: PoseActions = spec.options["control"]
        return control

    def environment(self, spec: EnvSpec) -> Mapping[str, str]:
        """Where CoppeliaSim's libraries and Qt's plugins are; read when a process starts."""
        found = _installation(spec)
        return {} if found is None else found.variables()

    def interpreter(self, spec: EnvSpec) -> str | None:
        """The Python that has PyRep and RLBench, if it is another than this one."""
        chosen: str | None = spec.options["interpreter"]
        if chosen is None and not catalogue.installed_here():
            found = _installation(spec)
            chosen = None if found is None else str(found.interpreter)
        return None if chosen == sys.executable else chosen

    def requirements(self) -> Sequence[Requirement]:
        """CoppeliaSim, PyRep, RLBench and what they need."""
        from polyarm.suites.rlbench.setup import requirements

        return requirements()

    def preload(self, spec: EnvSpec) -> None:
        """Import RLBench.

        Raises:
            MissingExtra: RLBench or PyRep is not installed.
        """
        try:
            importlib.import_module("rlbench.environment")
        except ImportError as error:
            raise MissingExtra(
                f"{spec.name} needs {error.name or 'rlbench'}, which cannot be imported "
                f"({error}). Install it with: {_SETUP}; `polyarm doctor --suite rlbench` looks "
                "further."
            ) from error

    def make(self, spec: EnvSpec) -> RLBenchEnv:
        """Launch the simulator of this process.

        Raises:
            MissingExtra: CoppeliaSim, RLBench or PyRep is not installed.
            StorageError: CoppeliaSim is not exactly the version that PyRep needs.
        """
        spec = self.check(spec)
        found = _installation(spec)
        if found is None:
            raise MissingExtra(
                f"{spec.name} needs CoppeliaSim {VERSION}: COPPELIASIM_ROOT is not set. "
                f"Install it with: {_SETUP}"
            )
        if known_version(found.root) != VERSION:
            check_version(found.root)
        os.environ.update(found.variables())
        self.preload(spec)
        from polyarm.suites.rlbench.env import RLBenchEnv

        return RLBenchEnv(spec, found.root)

    def attach_display(self, env: gymnasium.Env[Any, Any]) -> None:
        """Nothing to do: the simulator has been launched on its display."""


def observation_space(spec: EnvSpec) -> Dict:
    """``"state"``, the task's own if asked for, and what each camera gives.

    The state is the gripper's opening, pose (7) and joints, then position, velocity and force of
    the arm's joints.
    """
    robot = spec.options["robot_setup"]
    fingers = 3 if robot == "jaco" else 2
    size = 1 + 7 + fingers + 3 * JOINTS[robot]
    spaces: dict[str, gymnasium.Space[Any]] = {"state": Box(-np.inf, np.inf, (size,), np.float32)}
    if room := spec.options["task_state"]:
        spaces["task_state"] = Box(-np.inf, np.inf, (room,), np.float32)
    for prefix in channels(spec):
        for camera in spec.cameras:
            spaces[f"{prefix}/{camera}"] = _channel_space(prefix, spec.image_size)
    return Dict(spaces)


def demo_root(spec: EnvSpec) -> Path | None:
    """The dataset whose demonstrations start the episodes, if there is one."""
    episodes: str = spec.options["episodes"]
    return Path(episodes.removeprefix(_DEMOS)) if episodes.startswith(_DEMOS) else None


def _channel_space(prefix: str, image_size: tuple[int, int]) -> Box:
    if prefix == "pixels":
        return Box(0, 255, (*image_size, 3), np.uint8)
    shape = (*image_size, 3) if prefix == "point_cloud" else image_size
    return Box(-np.inf, np.inf, shape, np.float32)


def _check_value(option: str, value: Any) -> None:
    if (choices := _CHOICES.get(option)) is not None:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise UnknownName(f"value of {option}", repr(value), map(repr, choices))
    elif option == "episodes":
        stored = isinstance(value, str) and value.startswith(_DEMOS) and value != _DEMOS
        if value != "random" and not stored:
            valid = ("random", f"{_DEMOS}<dataset_root>")
            raise UnknownName("value of episodes", repr(value), valid)
    elif option in ("max_steps", "task_state"):
        least = 0 if option == "task_state" else 1
        missing = value is None and option == "max_steps"
        if not missing and (type(value) is not int or value < least):
            hint = f"Give an int of at least {least}."
            raise UnknownName(f"value of {option}", repr(value), (), hint)
    elif option == "idle_fps":
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e4:
            raise UnknownName("value of idle_fps", repr(value), (), "Give frames per second.")
    elif value is not None and not isinstance(value, str):
        raise UnknownName(f"value of {option}", repr(value), (), "Give a path.")


def _check_together(options: Mapping[str, Any]) -> None:
    mode = options["arm_mode"]
    if options["ignore_collision"] and mode != "planning":
        raise InvalidCall(f"ignore_collision needs arm_mode='planning', found {mode!r}")
    if options["collision_checking"] and mode != "planning":
        raise InvalidCall(f"collision_checking needs arm_mode='planning', found {mode!r}")
    if options["gripper"] == "continuous" and options["robot_setup"] == "jaco":
        raise InvalidCall("gripper='continuous' drives two fingers, and jaco has three")
    if options["control"] == "delta" and mode not in (*POSE_MODES, "joint_position"):
        raise InvalidCall(f"control='delta' does not go with arm_mode={mode!r}")


def _installation(spec: EnvSpec) -> Environment | None:
    if (root := spec.options["coppeliasim_root"]) is None:
        return current()
    written = Environment.read()
    interpreter = Path(sys.executable) if written is None else written.interpreter
    return Environment(Path(root).absolute(), interpreter)


def _provenance(spec: EnvSpec) -> dict[str, Any]:
    _, variation = catalogue.find(spec.task)
    packages = _package_folders(RLBench().interpreter(spec))
    found = _installation(spec)
    return {
        "rlbench": _version("rlbench", packages),
        "pyrep": _version("PyRep", packages),
        "coppeliasim": None if found is None else known_version(found.root),
        "task": spec.task,
        "variation": "by the episode's index, in turn" if variation is None else variation,
        "cameras": list(spec.cameras),
        "image_size": list(spec.image_size),
        "not_reproducible": _NOT_REPRODUCIBLE,
        **{name: value for name, value in spec.options.items() if name not in _HOST_ONLY},
    }


def _package_folders(interpreter: str | None) -> list[str]:
    """Where a Python finds its packages: this one, or the virtual environment of another."""
    if interpreter is None:
        return sys.path
    return [str(path) for path in Path(interpreter).parents[1].glob("lib/python*/site-packages")]


def _version(distribution: str, folders: list[str]) -> str | None:
    found = Distribution.discover(name=distribution, path=folders)
    return next((one.version for one in found), None)
