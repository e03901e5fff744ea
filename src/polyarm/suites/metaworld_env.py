"""One Meta-World env: episodes by index, frames only where somebody reads them.

Imported by `MetaWorld.make` alone, because it imports the simulator.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv as GymnasiumMujocoEnv
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.types import Task
from numpy.typing import NDArray

from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall
from polyarm.suites.metaworld import (
    CAMERAS,
    CORNER2_POSITION,
    METADATA,
    action_space,
    observation_space,
)
from polyarm.suites.metaworld_step import LeanStep
from polyarm.suites.metaworld_tasks import INSTRUCTIONS
from polyarm.suites.mujoco_env import MujocoEnv, Observation
from polyarm.suites.mujoco_renderer import OffscreenRenderer

# All that Meta-World ever changes in a model; a test compares every field over the 50 tasks.
_EDITED_FIELDS = ("body_pos", "site_pos")

# These tasks put their goal at the height at which the puck has settled.
_GOAL_FOLLOWS_PHYSICS = ("push-v3", "push-back-v3", "push-wall-v3")


class MetaWorldEnv(MujocoEnv):
    """A task as a Gymnasium env; see `MetaWorld` for its options."""

    metadata = METADATA
    _default_camera = "corner2"

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec, INSTRUCTIONS[spec.task], spec.options["max_steps"])
        self.observation_space = observation_space(spec)
        self.action_space = action_space()
        self._sticky_success: bool = spec.options["success"] == "any"
        self._terminate_on_success: bool = spec.options["terminate_on_success"]
        self._sim = _build(spec)
        self._snapshot = _Snapshot(self._sim)
        self._lean_step = LeanStep(self._sim)
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
        episode = self._begin(seed, options)
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
        self._last_obs, reward, truncated, raw_info = self._lean_step(action)
        info: dict[str, Any] = {key: float(value) for key, value in raw_info.items()}
        succeeds = info["success"] > 0.0
        self._has_succeeded |= succeeds
        info["is_success"] = self._has_succeeded if self._sticky_success else succeeds
        terminated = succeeds and self._terminate_on_success
        return self._observe(), float(reward), terminated, truncated, info

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

    def _observe(self) -> Observation:
        state = self._array("state", (39,), np.float32)
        state[:] = self._last_obs
        observation = {"state": state}
        if self.frames_enabled:
            observation.update(self._frames())
        return observation

    def _make_renderer(self) -> OffscreenRenderer:
        return OffscreenRenderer(self._sim.model, self._spec.image_size)

    def _draw(self, renderer: OffscreenRenderer, camera: str, out: NDArray[np.uint8]) -> None:
        half_turn = camera == "corner2"
        renderer.draw(self._sim.data, CAMERAS.index(camera), out, (1, -1) if half_turn else (-1, 1))


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
    obs: NDArray[np.float64] = GymnasiumMujocoEnv.reset(sim)[0]
    obs[18:36] = obs[:18]
    sim._prev_obs = obs[:18].copy()
    return obs
