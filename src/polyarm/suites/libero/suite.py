"""LIBERO: 130 tasks of one arm at a table, as published evaluations run them.

An episode's index alone fixes its initial state, the place of every fixture and all that follows,
bit for bit as in LIBERO's own `OffScreenRenderEnv`, in any process and whatever ran before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from polyarm.contracts import EnvDescription, EnvSpec, Footprint, ForkMode, Requirement, Task
from polyarm.errors import InvalidCall, UnknownName
from polyarm.suites.cache import Progress
from polyarm.suites.libero import catalogue
from polyarm.suites.libero.assets import Manifest, assets_folder
from polyarm.suites.libero.protocols import GRIPPERS, PROTOCOLS, Protocol

if TYPE_CHECKING:
    from polyarm.suites.libero.env import LiberoEnv

WRIST = "robot0_eye_in_hand"
CAMERAS = (
    "agentview",
    WRIST,
    "frontview",
    "birdview",
    "sideview",
    "galleryview",
    "robot0_robotview",
)
"""Cameras of all of LIBERO's scenes."""

ORIENTATIONS = {"raw": (1, 1), "upright": (-1, 1), "rot180": (-1, -1)}
"""Steps of rows and columns from OpenGL's frame, whose first row is the lowest."""

METADATA = {"render_modes": ["rgb_array"], "render_fps": 20}

ROBOT_STATE = {
    "robot_state/eef_pos": 3,
    "robot_state/eef_quat": 4,
    "robot_state/eef_mat": 9,
    "robot_state/gripper_qpos": 2,
    "robot_state/gripper_qvel": 2,
    "robot_state/joint_pos": 7,
    "robot_state/joint_vel": 7,
}
"""Keys of the robot state and their sizes."""

_CHOICES: dict[str, tuple[Any, ...]] = {
    "protocol": tuple(PROTOCOLS),
    "control": ("relative", "absolute"),
    "orientation": tuple(ORIENTATIONS),
    "gripper": tuple(GRIPPERS),
    "quaternion": ("raw", "canonical"),
    "robot_state": (True, False),
    "soft_reset": (True, False),
    "lean_step": (True, False),
    "share_gl": (True, False),
}
_COUNTS = {"max_steps": 1, "settle_steps": 0, "resize": 1, "first_seed": 0}


class Libero:
    """The suite ``libero``: tasks ``"libero/libero_spatial/0"``, sets ``"libero/libero_10"``.

    A task can also be called by LIBERO's name: ``"libero/libero_goal/put_the_bowl_on_the_plate"``.

    Options:
        protocol: Whose rules apply: ``"polyarm"`` (default), ``"openpi"``, ``"oft"``,
            ``"simplevla"``, ``"ript-oft"``, ``"ript-quest"``, ``"lerobot"`` or ``"vla-eval"``. It
            sets the options below, unless they are given, and how episodes are seeded.
        control: ``"relative"`` (default): actions are displacements, 1 is 5 cm or 0.5 rad;
            ``"absolute"``: they are poses, position in metres and axis times angle.
        orientation: Of frames: ``"rot180"`` (what most policies are trained on; left and right are
            exchanged), ``"upright"`` (what a person sees) or ``"raw"`` (upside down, as LIBERO
            delivers them). Videos are upright in any case.
        resize: Side in pixels to which frames are resized, or None.
        gripper: ``"as_is"``, ``"sign"`` (-1 or 1) or ``"oft"`` (from 0 closed … 1 open).
        quaternion: ``"raw"`` or ``"canonical"``: which of two angles the state shows.
        robot_state: Whether observations carry ``robot_state/…``.
        max_steps: Horizon in policy steps; by default the protocol's for the task.
        settle_steps: Steps before the policy's first.
        first_seed: What the protocol's seeds count from, where it has any; by default its own.
        soft_reset: Start episodes without loading the model anew: faster, same bits.
        lean_step: Leave out what robosuite computes repeatedly: faster, same bits.
        share_gl: Let envs of one process share a GL context and textures: smaller, same pixels.
    """

    name = "libero"
    fork: ForkMode = "built"
    episodic = True
    default_cameras = ("agentview", WRIST)

    def tasks(self) -> Sequence[Task]:
        """All 130 tasks with the horizons of the default protocol."""
        return [
            Task(f"libero/{task.name}", task.instruction, catalogue.HORIZONS[task.suite])
            for task in catalogue.tasks().values()
        ]

    def sets(self) -> Mapping[str, Sequence[str]]:
        """LIBERO's five suites."""
        return catalogue.sets()

    def defaults(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a protocol asks for besides options of the suite, where the user says nothing."""
        protocol = _protocol(options)
        return {"episodes": protocol.trials, "image_size": protocol.image_size}

    def check(self, spec: EnvSpec) -> EnvSpec:
        """Validate task, cameras and options; fill in the defaults.

        Raises:
            UnknownName: A task, camera, option or option value that does not exist.
        InvalidCall: A first seed for a protocol that has none.
        """
        task = catalogue.find(spec.task)
        cameras = tuple(WRIST if camera == "wrist" else camera for camera in spec.cameras)
        for camera in cameras:
            if camera not in CAMERAS:
                raise UnknownName("camera of libero", camera, (*CAMERAS, "wrist"))
        protocol = _protocol(spec.options)
        options = {**_default_options(protocol, task), **spec.options}
        for option, value in options.items():
            _check_value(option, value)
        if protocol.seed_rule == "episode" and options["first_seed"] != protocol.seed:
            raise InvalidCall(
                f"first_seed={options['first_seed']} would change nothing: the protocol "
                f"{options['protocol']!r} makes an episode's seed of its task and index"
            )
        return replace(spec, task=task.name, cameras=cameras, options=options)

    def describe(self, spec: EnvSpec) -> EnvDescription:
        """Spaces, which all tasks share, and everything that shapes an episode."""
        spec = self.check(spec)
        return EnvDescription(
            observation_space=observation_space(spec),
            action_space=action_space(spec),
            metadata=METADATA,
            provenance=_provenance(spec),
        )

    def footprint(self, spec: EnvSpec) -> Footprint:
        """As measured over several scenes; a worker that has switched tasks shares nothing."""
        return Footprint(host=450 * 2**20, graphics=500 * 2**20 if spec.cameras else 0)

    def requirements(self) -> Sequence[Requirement]:
        """LIBERO, its assets and what they need."""
        from polyarm.suites.libero.setup import requirements

        return requirements()

    def setup(self, assets: Path | None, progress: Progress, *, force: bool = False) -> list[str]:
        """Install LIBERO and its assets; returns what was done."""
        from polyarm.suites.libero.setup import setup

        return setup(assets, progress, force=force)

    def check_setup(self, progress: Progress) -> Sequence[Requirement]:
        """As `requirements`, with every asset's contents compared."""
        from polyarm.suites.libero.setup import requirements

        return requirements(deep=True, progress=progress)

    def preload(self, spec: EnvSpec) -> None:
        """Import LIBERO.

        Raises:
            MissingExtra: Something is not installed.
            StorageError: Assets are missing or damaged.
        """
        from polyarm.suites.libero.importing import import_libero

        import_libero()

    def make(self, spec: EnvSpec) -> LiberoEnv:
        """Build the env; it holds no GL context until `attach_display`."""
        self.preload(spec)
        from polyarm.suites.libero.env import LiberoEnv

        return LiberoEnv(self.check(spec))

    def attach_display(self, env: gymnasium.Env[Any, Any]) -> None:
        """Create the env's GL context if it has cameras; does nothing the second time."""
        env.unwrapped.attach_display()  # type: ignore[attr-defined]


def observation_space(spec: EnvSpec) -> Dict:
    """``"state"``, one ``"pixels/<camera>"`` per camera, and the robot state if asked for.

    The state is the hand's position, its orientation as axis times angle, and the fingers.
    """
    spaces: dict[str, gymnasium.Space[Any]] = {"state": Box(-np.inf, np.inf, (8,), np.float32)}
    if spec.options["robot_state"]:
        for key, size in ROBOT_STATE.items():
            spaces[key] = Box(-np.inf, np.inf, (size,), np.float64)
    height, width = frame_size(spec)
    for camera in spec.cameras:
        spaces[f"pixels/{camera}"] = Box(0, 255, (height, width, 3), np.uint8)
    return Dict(spaces)


def frame_size(spec: EnvSpec) -> tuple[int, int]:
    """Height and width of delivered frames."""
    side: int | None = spec.options["resize"]
    return spec.image_size if side is None else (side, side)


def action_space(spec: EnvSpec) -> Box:
    """Hand displacement or pose (6) and gripper command, (7,)."""
    reach = np.inf if spec.options["control"] == "absolute" else 1.0
    bound = np.array([reach] * 6 + [1.0], np.float32)
    return Box(-bound, bound, dtype=np.float32)


def _protocol(options: Mapping[str, Any]) -> Protocol:
    name = options.get("protocol", "polyarm")
    if name not in PROTOCOLS:
        raise UnknownName("protocol of libero", str(name), PROTOCOLS)
    return PROTOCOLS[name]


def _default_options(protocol: Protocol, task: catalogue.LiberoTask) -> dict[str, Any]:
    return {
        "protocol": "polyarm",
        "control": "relative",
        "orientation": protocol.orientation,
        "resize": protocol.resize,
        "gripper": protocol.gripper,
        "quaternion": protocol.quaternion,
        "robot_state": protocol.robot_state,
        "max_steps": protocol.horizons[task.suite],
        "settle_steps": protocol.settle_steps,
        "first_seed": protocol.seed,
        "soft_reset": True,
        "lean_step": True,
        "share_gl": True,
    }


def _check_value(option: str, value: Any) -> None:
    if option in _CHOICES:
        choices = _CHOICES[option]
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise UnknownName(f"value of {option}", repr(value), map(repr, choices))
    elif option in _COUNTS:
        least = _COUNTS[option]
        if value is None and option == "resize":
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            hint = f"Give an int of at least {least}."
            raise UnknownName(f"value of {option}", repr(value), (), hint)
    else:
        raise UnknownName("option of libero", option, (*_CHOICES, *_COUNTS))


def _provenance(spec: EnvSpec) -> dict[str, Any]:
    task = catalogue.find(spec.task)
    switches = ("soft_reset", "lean_step", "share_gl")
    return {
        **{name: _version(name) for name in ("hf-libero", "robosuite", "mujoco", "numpy")},
        "assets": _assets_digest(),
        "task": spec.task,
        "libero_name": task.stem,
        "instruction": task.instruction,
        "cameras": list(spec.cameras),
        "image_size": list(spec.image_size),
        **{name: value for name, value in spec.options.items() if name not in switches},
    }


def _assets_digest() -> str | None:
    """Tells sets of assets apart; None where it cannot."""
    manifest = Manifest.read(assets_folder())
    if manifest is None:
        return None
    files = sorted((path, sha) for path, (_, sha) in manifest.files.items())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
