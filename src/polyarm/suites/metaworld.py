"""Meta-World: 50 tasks of one arm over one table.

An episode's index alone fixes its goal and its initial state, bit for bit, in any process and
whatever ran before, although Meta-World keeps state between episodes and ignores
``reset(seed=)``. Given its goal, an episode is the one Meta-World's own env plays.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from polyarm.contracts import EnvDescription, EnvSpec, Footprint, ForkMode, Requirement, Task
from polyarm.errors import MissingExtra, UnknownName
from polyarm.suites.metaworld_tasks import INSTRUCTIONS, SETS

if TYPE_CHECKING:
    from polyarm.suites.metaworld_env import MetaWorldEnv

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
"""Cameras of Meta-World's scene, in the order of its model."""

CORNER2_POSITION = (0.75, 0.075, 0.7)
"""Where LeRobot puts ``corner2``, in metres; it also turns the image by 180 degrees."""

METADATA = {"render_modes": ["rgb_array"], "render_fps": 80}

_INSTALL = "pip install 'polyarm[metaworld]'"

_DEFAULTS: dict[str, Any] = {
    "success": "any",
    "terminate_on_success": None,
    "goal": "visible",
    "reward_version": "v2",
    "max_steps": 500,
    "shadow_size": None,
    "msaa": None,
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "success": ("any", "last"),
    "terminate_on_success": (True, False),
    "goal": ("visible", "hidden"),
    "reward_version": ("v2", "v1"),
}
_LIMITS = {"max_steps": (1, None), "shadow_size": (0, 2**14), "msaa": (0, 16)}
"""Least and greatest value; of larger ones, OpenGL would take less in silence."""


class MetaWorld:
    """The suite ``metaworld``: tasks ``"metaworld/reach-v3"``, sets ``"metaworld/mt10"``.

    Cameras: ``topview``, ``corner``, ``corner2`` (the default, as LeRobot shows it), ``corner3``,
    ``corner4``, ``behindGripper`` and ``gripperPOV``.

    Options:
        success: ``"any"`` (default): an episode that has succeeded once stays a success;
            ``"last"``: ``is_success`` is that of the current step.
        terminate_on_success: Whether an episode ends at its first success. By default yes with
            ``success="any"`` and no with ``"last"``, which would be decided by the first as well.
        goal: ``"visible"`` (default, as in Meta-World's MT benchmarks): the state's last three
            numbers are the goal; ``"hidden"`` (ML benchmarks): they are zero.
        reward_version: Meta-World's reward function, ``"v2"`` (default) or ``"v1"``.
        max_steps: Horizon in steps (default 500).
        shadow_size: Side of the shadow map in pixels, 0 for no shadows; None (default) leaves the
            scene's 4096. Smaller is cheaper and changes pixels.
        msaa: Samples per pixel; None (default) leaves the scene's 4. Fewer is cheaper and
            changes pixels.
    """

    name = "metaworld"
    fork: ForkMode = "built"
    episodic = True
    default_cameras = ("corner2",)

    def tasks(self) -> Sequence[Task]:
        """The 50 tasks of version 3."""
        horizon = _DEFAULTS["max_steps"]
        return [Task(f"metaworld/{task}", text, horizon) for task, text in INSTRUCTIONS.items()]

    def sets(self) -> Mapping[str, Sequence[str]]:
        """Meta-World's benchmarks and LeRobot's groups by difficulty."""
        return SETS

    def check(self, spec: EnvSpec) -> EnvSpec:
        """Validate task, cameras and options; fill in the defaults.

        Raises:
            UnknownName: A task, camera, option or option value that does not exist.
        """
        if spec.task not in INSTRUCTIONS:
            raise _unknown_task(spec)
        for camera in spec.cameras:
            if camera not in CAMERAS:
                raise UnknownName("camera of metaworld", camera, CAMERAS)
        for option in spec.options:
            if option not in _DEFAULTS:
                raise UnknownName("option of metaworld", option, _DEFAULTS)
        options = {**_DEFAULTS, **spec.options}
        if options["terminate_on_success"] is None:
            options["terminate_on_success"] = options["success"] == "any"
        for option, value in options.items():
            _check_value(option, value)
        return spec.with_options(**options)

    def describe(self, spec: EnvSpec) -> EnvDescription:
        """Spaces, from the shapes all tasks share, and everything that shapes an episode."""
        spec = self.check(spec)
        return EnvDescription(
            observation_space=observation_space(spec),
            action_space=action_space(),
            metadata=METADATA,
            provenance=_provenance(spec),
        )

    def footprint(self, spec: EnvSpec) -> Footprint:
        """As measured; a worker that has switched tasks shares nothing."""
        return Footprint(host=110 * 2**20, graphics=180 * 2**20 if spec.cameras else 0)

    def requirements(self) -> Sequence[Requirement]:
        """Meta-World and the one MuJoCo version whose trajectories are Meta-World's."""
        return [Requirement(name, _version(name), _INSTALL) for name in ("metaworld", "mujoco")]

    def preload(self, spec: EnvSpec) -> None:
        """Import Meta-World with all its tasks.

        Raises:
            MissingExtra: Meta-World or MuJoCo is not installed.
        """
        _shorten_the_search_for_glfw()
        try:
            importlib.import_module("metaworld.env_dict")
        except ImportError as error:
            raise MissingExtra(
                f"{spec.name} needs {error.name or 'metaworld'}, which cannot be imported "
                f"({error}). Install it with: {_INSTALL}"
            ) from error

    def make(self, spec: EnvSpec) -> MetaWorldEnv:
        """Build the env; it holds no GL context until `attach_display`."""
        self.preload(spec)
        from polyarm.suites.metaworld_env import MetaWorldEnv

        return MetaWorldEnv(self.check(spec))

    def attach_display(self, env: gymnasium.Env[Any, Any]) -> None:
        """Create the env's GL context if it has cameras; does nothing the second time."""
        env.unwrapped.attach_display()  # type: ignore[attr-defined]


def observation_space(spec: EnvSpec) -> Dict:
    """The flat Dict of every task: ``"state"`` and one ``"pixels/<camera>"`` per camera.

    The state is unbounded although Meta-World clips parts of it: its bounds differ from task to
    task, and tasks share a batch only if their spaces are equal.
    """
    spaces: dict[str, gymnasium.Space[Any]] = {"state": Box(-np.inf, np.inf, (39,), np.float32)}
    for camera in spec.cameras:
        spaces[f"pixels/{camera}"] = Box(0, 255, (*spec.image_size, 3), np.uint8)
    return Dict(spaces)


def action_space() -> Box:
    """Hand displacement x, y, z (1 is a centimetre) and gripper effort (1 closes), (4,)."""
    return Box(-1.0, 1.0, (4,), np.float32)


def _unknown_task(spec: EnvSpec) -> UnknownName:
    known = [f"metaworld/{name}" for name in (*INSTRUCTIONS, *SETS)]
    hint = "Meta-World's tasks end in -v3." if spec.task.endswith(("-v1", "-v2")) else ""
    split = (f"{spec.name}-train", f"{spec.name}-test", f"{spec.name[:-1]}3")
    return UnknownName("task", spec.name, known, hint, [name for name in split if name in known])


def _check_value(option: str, value: Any) -> None:
    choices = _CHOICES.get(option)
    if choices is not None:
        if not any(value is choice or value == choice for choice in choices):
            raise UnknownName(f"value of {option}", str(value), map(str, choices))
        return
    least, most = _LIMITS[option]
    if value is None and _DEFAULTS[option] is None:
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        hint = f"Give an int from {least} {'on' if most is None else f'to {most}'}."
        raise UnknownName(f"value of {option}", str(value), (), hint)


def _provenance(spec: EnvSpec) -> dict[str, Any]:
    cameras: dict[str, str] = dict.fromkeys(spec.cameras, "as in Meta-World")
    if "corner2" in cameras:
        cameras["corner2"] = f"moved to {list(CORNER2_POSITION)}, image turned by 180 degrees"
    return {
        "metaworld": _version("metaworld"),
        "mujoco": _version("mujoco"),
        "task": spec.task,
        "instruction": INSTRUCTIONS[spec.task],
        "cameras": cameras,
        "image_size": list(spec.image_size),
        **spec.options,
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _shorten_the_search_for_glfw() -> None:
    """Name the window library that Gymnasium's MuJoCo envs load but that nobody here calls.

    Left to itself, glfw tries out every candidate in a Python process of its own (20 to 45 ms).
    """
    if os.environ.get("MUJOCO_GL", "").lower() not in ("egl", "osmesa", "disable"):
        return
    package = importlib.util.find_spec("glfw")
    if package is None or package.origin is None:
        return
    library = Path(package.origin).parent / "x11" / "libglfw.so"
    if library.exists():
        os.environ.setdefault("PYGLFW_LIBRARY", str(library))
