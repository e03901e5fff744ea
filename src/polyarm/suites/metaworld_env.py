"""One Meta-World env: episodes by index, frames only where somebody reads them.

Imported by `MetaWorld.make` alone, because it imports the simulator.
"""

from __future__ import annotations

import copy
import operator
import os
import pickle
import time
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.types import Task
from numpy.typing import NDArray

from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import DisplayError, InvalidCall
from polyarm.suites.metaworld import (
    CAMERAS,
    CORNER2_POSITION,
    METADATA,
    action_space,
    observation_space,
)
from polyarm.suites.metaworld_tasks import INSTRUCTIONS
from polyarm.suites.mujoco_renderer import OffscreenRenderer

Observation = dict[str, NDArray[Any]]

# All that Meta-World ever changes in a model; a test compares every field over the 50 tasks.
_EDITED_FIELDS = ("body_pos", "site_pos")

# These tasks put their goal at the height at which the puck has settled.
_GOAL_FOLLOWS_PHYSICS = ("push-v3", "push-back-v3", "push-wall-v3")


class MetaWorldEnv(gymnasium.Env[Any, Any]):
    """A task as a Gymnasium env; see `MetaWorld` for its options.

    Attributes:
        frames_enabled: Whether observations carry frames; setting it changes nothing else.
        frame_seconds: Seconds spent rendering since the env was built.
        instruction: What a language-conditioned policy is told.
        max_steps: Horizon in steps.
    """

    metadata = METADATA
    render_mode = "rgb_array"

    def __init__(self, spec: EnvSpec) -> None:
        self.observation_space = observation_space(spec)
        self.action_space = action_space()
        self.instruction = INSTRUCTIONS[spec.task]
        self.max_steps: int = spec.options["max_steps"]
        self.frames_enabled = bool(spec.cameras)
        self.frame_seconds = 0.0
        self._spec = spec
        self._sticky_success: bool = spec.options["success"] == "any"
        self._terminate_on_success: bool = spec.options["terminate_on_success"]
        self._sim = _build(spec)
        self._snapshot = _Snapshot(self._sim)
        self._renderer: OffscreenRenderer | None = None
        self._buffers: Mapping[str, NDArray[Any]] | None = None
        self._next_episode = 0
        self._has_succeeded = False
        self._last_obs: NDArray[np.float64] | None = None
        self._expert: Any = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Starts the stream ``seed`` at its first episode, unless an episode is given.
            options: ``{"episode": index}`` starts exactly that episode. With neither, the episode
                after the last one is started.
        """
        super().reset(seed=seed)
        episode = _episode_index(seed, options)
        if episode is None:
            episode = self._next_episode
        self._next_episode = episode + 1
        self._has_succeeded = False
        self._expert = None
        self._snapshot.restore(self._sim)
        self._last_obs = _start_episode(self._sim, episode, self._spec.task)
        return self._observe(), {"is_success": False}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move for 12.5 ms.

        Args:
            action: Float32 (4,) in [-1, 1]: hand displacement x, y, z and gripper effort.
        """
        # Meta-World computes in the action's own precision, so it shapes the trajectory.
        action = np.asarray(action, dtype=np.float32)
        obs, reward, _, truncated, raw_info = self._sim.step(action)
        self._last_obs = obs
        info: dict[str, Any] = {key: float(value) for key, value in raw_info.items()}
        succeeds = info["success"] > 0.0
        self._has_succeeded |= succeeds
        info["is_success"] = self._has_succeeded if self._sticky_success else succeeds
        terminated = succeeds and self._terminate_on_success
        return self._observe(), float(reward), terminated, bool(truncated), info

    def expert_action(self) -> NDArray[np.float32]:
        """What Meta-World's scripted expert does now, float32 (4,); it always sees the goal."""
        if self._last_obs is None:
            raise InvalidCall("expert_action() needs an episode: call reset() first.")
        if self._expert is None:
            from metaworld.policies import ENV_POLICY_MAP

            # It warns at most steps that its action will be clipped, which is done below.
            warnings.filterwarnings("ignore", r"Constant\(s\) may be too high", UserWarning)
            policies: Mapping[str, Any] = ENV_POLICY_MAP
            self._expert = policies[self._spec.task]()
        obs = self._last_obs.copy()
        if self._spec.options["goal"] == "hidden":
            space = self._sim.goal_space
            obs[36:] = np.clip(self._sim._get_pos_goal(), space.low, space.high)
        action: NDArray[np.float64] = self._expert.get_action(obs)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def terminal_frame(self) -> Observation | None:
        """The frames the last step would have delivered, or None without cameras."""
        return self._frames() if self._spec.cameras else None

    def render(self) -> NDArray[np.uint8]:
        """A frame of the first camera, or of ``corner2``, uint8 (H, W, 3)."""
        frame = np.empty((*self._spec.image_size, 3), dtype=np.uint8)
        self._draw(self._spec.cameras[0] if self._spec.cameras else "corner2", frame)
        return frame

    def bind(self, buffers: Mapping[str, NDArray[Any]] | None) -> None:
        """Write the next observations into ``buffers`` and return those very arrays.

        Args:
            buffers: One array per observation key, or None for new arrays each time.
        """
        self._buffers = buffers

    def attach_display(self) -> None:
        """Create the GL context, once, if there are cameras to render."""
        if self._spec.cameras:
            self._attached_renderer()

    def close(self) -> None:
        """Free the GL context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _observe(self) -> Observation:
        state = self._array("state", (39,), np.float32)
        state[:] = self._last_obs
        observation = {"state": state}
        if self.frames_enabled:
            observation.update(self._frames())
        return observation

    def _frames(self) -> Observation:
        frames = {}
        for camera in self._spec.cameras:
            key = f"pixels/{camera}"
            frames[key] = self._array(key, (*self._spec.image_size, 3), np.uint8)
            self._draw(camera, frames[key])
        return frames

    def _array(self, key: str, shape: tuple[int, ...], dtype: type[Any]) -> NDArray[Any]:
        bound = None if self._buffers is None else self._buffers.get(key)
        return np.empty(shape, dtype) if bound is None else bound

    def _draw(self, camera: str, out: NDArray[np.uint8]) -> None:
        start = time.perf_counter()
        renderer = self._attached_renderer()
        index = CAMERAS.index(camera)
        renderer.draw(self._sim.data, index, out, half_turn=camera == "corner2")
        self.frame_seconds += time.perf_counter() - start

    def _attached_renderer(self) -> OffscreenRenderer:
        if self._renderer is None:
            if not hasattr(mujoco, "GLContext"):
                raise self._display_error("this process was started without a display")
            try:
                self._renderer = OffscreenRenderer(self._sim.model, self._spec.image_size)
            except (ImportError, RuntimeError, mujoco.FatalError) as error:
                raise self._display_error(str(error)) from error
        return self._renderer

    def _display_error(self, reason: str) -> DisplayError:
        backend = os.environ.get("MUJOCO_GL", "")
        return DisplayError(
            f"{self._spec.name} cannot render with MUJOCO_GL={backend!r}: {reason}. "
            "Ask for cameras, or for display='egl' or 'osmesa', when the env is made."
        )


class _Snapshot:
    """A simulator as it was built, to start every episode from.

    Meta-World leaves goals, object positions and past observations in the model and in the env's
    attributes, so that its episodes depend on those before them.
    """

    def __init__(self, sim: Any) -> None:
        self._fields = {name: getattr(sim.model, name).copy() for name in _EDITED_FIELDS}
        self._shared = {id(value): value for value in vars(sim).values() if _is_shared(value)}
        self._attributes = self._copied(vars(sim))

    def restore(self, sim: Any) -> None:
        """Bring ``sim`` back to the moment after its construction."""
        for name, value in self._fields.items():
            getattr(sim.model, name)[:] = value
        vars(sim).clear()
        vars(sim).update(self._copied(self._attributes))
        mujoco.mj_resetData(sim.model, sim.data)
        mujoco.mj_forward(sim.model, sim.data)

    def _copied(self, attributes: dict[str, Any]) -> dict[str, Any]:
        # One deepcopy for all of them: some attributes alias others, and must go on doing so.
        return copy.deepcopy(attributes, dict(self._shared))


def _is_shared(value: Any) -> bool:
    """Whether an attribute stays the same object: the simulator itself, spaces, and live views.

    Some attributes (``init_left_pad``) are views of MuJoCo's memory that move with the arm. Rewards
    depend on it, so they stay views.
    """
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return value.base is not None
    return isinstance(value, gymnasium.Space) or type(value).__module__.startswith(
        ("mujoco", "gymnasium.envs.mujoco")
    )


def _build(spec: EnvSpec) -> Any:
    """Meta-World's own env for the task, without GL."""
    options = spec.options
    height, width = spec.image_size
    cls: Any = ALL_V3_ENVIRONMENTS[spec.task]
    sim = cls(reward_function_version=options["reward_version"], height=height, width=width)
    hidden = options["goal"] == "hidden"
    task = {"env_cls": cls, "rand_vec": None, "partially_observable": hidden}
    sim.set_task(Task(env_name=spec.task, data=pickle.dumps(task)))
    sim.max_path_length = options["max_steps"]
    # Computed on first use and kept; done here so that it is part of the snapshot.
    sim.sawyer_observation_space  # noqa: B018
    model = sim.model
    model.cam_pos[CAMERAS.index("corner2")] = CORNER2_POSITION
    if options["shadow_size"] is not None:
        model.vis.quality.shadowsize = options["shadow_size"]
    if options["msaa"] is not None:
        model.vis.quality.offsamples = options["msaa"]
    return sim


def _episode_index(seed: int | None, options: Mapping[str, Any] | None) -> int | None:
    index = None if options is None else options.get("episode")
    if index is None:
        return None if seed is None else seed * STREAM
    index = operator.index(index)
    if index < 0:
        raise InvalidCall(f"episode {index} does not exist: indices start at 0.")
    return index


def _start_episode(sim: Any, episode: int, task: str) -> NDArray[np.float64]:
    """Draw the episode's goal and reset a freshly restored simulator to it.

    Returns:
        The first observation, float64 (39,).
    """
    sim.np_random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(episode)))
    sim.seeded_rand_vec = True
    # Meta-World's reset runs reset_model twice and keeps of the first run only where it put
    # things. So the first run draws the goal and, except where the goal hangs on physics, skips
    # the 50 steps that bring the hand home: same bits, half the time.
    sim._freeze_rand_vec = False
    if task not in _GOAL_FOLLOWS_PHYSICS:
        sim._reset_hand = lambda steps=0: type(sim)._reset_hand(sim, steps=0)
    sim.reset_model()
    sim.__dict__.pop("_reset_hand", None)
    sim._freeze_rand_vec = True
    obs: NDArray[np.float64] = MujocoEnv.reset(sim)[0]
    obs[18:36] = obs[:18]
    sim._prev_obs = obs[:18].copy()
    return obs
