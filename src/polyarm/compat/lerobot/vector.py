"""A vector env as LeRobot's rollouts drive it: built at the first reset, frozen where it has ended.

An env whose episode is over repeats its last transition, with reward 0 and without simulating,
until the next reset. One whose simulator fails is given a new one that plays the same episode up to
where it was, so that a crash changes no score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from polyarm import registry
from polyarm.compat.lerobot.observations import lerobot_observation, lerobot_space
from polyarm.compat.lerobot.plans import RENDER_FPS, EnvPlan
from polyarm.compat.lerobot.seeds import Rollouts
from polyarm.contracts import map_leaves
from polyarm.display import select
from polyarm.errors import (
    DisplayError,
    EnvCallError,
    InvalidAction,
    InvalidCall,
    SlotError,
    WorkerDied,
)
from polyarm.rollout.runner import succeeded
from polyarm.vector.asynchronous import Ready
from polyarm.vector.env import VectorEnv
from polyarm.vector.make import make_vec

Array = NDArray[Any]

NEW_ROLLOUT = "lerobot_new_rollout"
"""What LeRobot's newer rollouts pass to a reset; older ones pass nothing. Both mean the same."""

_MAX_ATTEMPTS = 3
_SPACES = (
    "single_observation_space",
    "single_action_space",
    "observation_space",
    "action_space",
)


class LeRobotVectorEnv(SyncVectorEnv):
    """Envs of one task; made by `make_env`. No simulator runs before the first reset.

    It can be closed and reset again. Not thread-safe: one thread at a time.

    It is a `SyncVectorEnv` by class only: LeRobot up to 0.4 films such envs alone, through
    ``envs[i].render()``, and looks for ``envs[i].task``.

    Args:
        plan: The task.
        num_envs: Envs, N; a single one runs in this process, more run in workers.

    Raises:
        UnknownName: For a task, camera or option that does not exist.
    """

    def __init__(self, plan: EnvPlan, num_envs: int) -> None:
        plan.spec  # noqa: B018  what is wrong with it is said now, not at the first reset
        self._vec: VectorEnv | None = None
        self.plan = plan
        self.num_envs = num_envs
        self.closed = True
        self.render_mode = "rgb_array"
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": RENDER_FPS,
            "autoreset_mode": AutoresetMode.DISABLED,
        }
        self._rollouts = Rollouts(plan.suite, num_envs)
        self._seeding: Mapping[str, Any] = {}
        self._obs: Any = None
        self._rendered: tuple[Array, ...] | None = None

    def _describe(self, obs: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        self.single_observation_space = lerobot_space(obs, self.plan)
        self.single_action_space = action
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(action, self.num_envs)

    def __getattr__(self, name: str) -> Any:
        """Spaces, when they are first asked for; some envs must be built to know them."""
        if name not in _SPACES or self._vec is not None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        description = registry.load(self.plan.suite).describe(self.plan.spec)
        if description is None:
            self._open({})
        else:
            self._describe(description.observation_space, description.action_space)
        return getattr(self, name)

    @property
    def envs(self) -> list[Member]:  # type: ignore[override]
        """The single envs, as far as LeRobot looks at them."""
        return [Member(self, place) for place in range(self.num_envs)]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode in every env.

        Args:
            seed: One per env, or that of the first; see `polyarm.compat.lerobot.seeds`.
            options: ``{"lerobot_new_rollout": True}``, or nothing.

        Raises:
            InvalidCall: Other options, or seeds that no episode stands for.
        """
        if foreign := set(options or {}) - {NEW_ROLLOUT}:
            raise InvalidCall(f"reset() knows the option {NEW_ROLLOUT!r} only, found {foreign}")
        episodes = self._rollouts.begin(seed)
        vec = self._open(episodes.options)
        self._indices = episodes.indices
        if vec.episodic:
            obs, _ = vec.reset(options={"episodes": self._indices})
        else:
            obs, _ = vec.reset(seed=self._indices)
        self._obs = map_leaves(np.array, obs)
        self._rendered = None
        self._played: list[list[tuple[Array, float]]] = [[] for _ in range(self.num_envs)]
        self._terminated = np.zeros(self.num_envs, np.bool_)
        self._truncated = np.zeros(self.num_envs, np.bool_)
        self._success = np.zeros(self.num_envs, np.bool_)
        return lerobot_observation(self._obs, self.plan), self._info()

    def step(
        self, actions: Any
    ) -> tuple[Any, Array, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step the envs whose episodes go on; the others repeat how theirs ended.

        Args:
            actions: ``(N, A)``.

        Raises:
            InvalidAction: Before anything is sent.
            WorkerDied: A simulator failed again and again in one episode.
        """
        if self._vec is None or self._obs is None:
            raise InvalidCall("reset() comes before step()")
        actions = np.array(actions, self.single_action_space.dtype)
        if actions.shape != self.action_space.shape:
            raise InvalidAction(
                f"{self.num_envs} envs need actions {self.action_space.shape}, found "
                f"{actions.shape}"
            )
        rewards = np.zeros(self.num_envs)
        going = np.flatnonzero(~(self._terminated | self._truncated))
        if len(going):
            self._vec.send(actions[going], going)
            self._receive(self._vec.recv(len(going)), actions, rewards)
            for slot in going.tolist():
                self._played[slot].append((actions[slot], float(rewards[slot])))
        self._rendered = None
        obs = lerobot_observation(self._obs, self.plan)
        return obs, rewards, self._terminated.copy(), self._truncated.copy(), self._info()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """A method's answer, or an attribute, of every env.

        Raises:
            AttributeError: The envs have no such thing.
        """
        if name == "render":
            return self.render()
        if name in self.plan.attributes:
            return (self.plan.attributes[name],) * self.num_envs
        try:
            return self._open(self._seeding).call(name, *args, **kwargs)
        except EnvCallError as error:
            if "AttributeError" in str(error):
                raise AttributeError(f"the envs have no {name!r}: {error}") from error
            raise

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env, as `polyarm.VectorEnv.set_attr` does."""
        self._open(self._seeding).set_attr(name, values)

    def render(self) -> tuple[Array, ...]:
        """What a video shows of every env now: its first camera's frame, turned as LeRobot's."""
        if self._vec is None or self._obs is None:
            raise InvalidCall("reset() comes before render()")
        if self._rendered is None:
            self._rendered = self._render(self._vec)
        return self._rendered

    def close(self, **_: Any) -> None:
        """End the simulators; a reset starts them anew, with the first episode."""
        if self._vec is not None:
            self._vec.close()
        self._vec = self._obs = self._rendered = None
        self._rollouts = Rollouts(self.plan.suite, self.num_envs)
        self.closed = True

    def _open(self, seeding: Mapping[str, Any]) -> VectorEnv:
        """The envs; built if there are none, or others if they count seeds otherwise."""
        if self._vec is not None and seeding == self._seeding:
            return self._vec
        if self._vec is not None:
            self._vec.close()
        plan = self.plan
        self._vec = vec = make_vec(
            plan.task,
            num_envs=self.num_envs,
            num_workers=0 if self.num_envs == 1 else None,
            cameras=plan.frames,
            image_size=plan.image_size,
            autoreset="disabled",
            max_restarts=2 * _MAX_ATTEMPTS,  # an episode gives up first; a reset must, some day
            display=_display(plan),
            **{**plan.options, **seeding},
        )
        self._seeding = seeding
        self.closed = False
        if plan.suite == "callable":
            self.metadata = vec.metadata
        if "action_space" not in vars(self):
            self._describe(vec.single_observation_space, vec.single_action_space)
        return vec

    def _receive(self, ready: Ready, actions: Array, rewards: Array) -> None:
        errors = ready.info.get("error")
        failed: list[SlotError] = []
        for place, slot in enumerate(ready.slots.tolist()):
            if errors is not None and errors[place] is not None:
                failed.append(errors[place])
            else:
                rewards[slot] = ready.rewards[place]
                self._enter(ready, place, slot)
        for error in failed:
            rewards[error.slot] = self._play_again(error, actions[error.slot])

    def _enter(self, ready: Ready, place: int, slot: int) -> None:
        _put(self._obs, slot, ready.obs, place)
        self._terminated[slot] = ready.terminated[place]
        self._truncated[slot] = ready.truncated[place]
        self._success[slot] = bool(succeeded(ready.info, place))

    def _play_again(self, error: SlotError, action: Array) -> float:
        """Play an episode that was cut short up to where it was; returns its last reward."""
        slot, before = error.slot, self._played[error.slot]
        actions = np.stack([*(done for done, _ in before), action])
        for _ in range(_MAX_ATTEMPTS):
            ready = self._replayed(slot, actions)
            if (again := _error(ready)) is not None:
                error = again
                continue
            earned = ready.rewards[0, : int(ready.info["steps"][0])].tolist()
            if len(earned) != len(actions) or earned[:-1] != [reward for _, reward in before]:
                break  # it has gone another way: no outcome is better than a wrong one
            self._enter(ready, 0, slot)
            return float(earned[-1])
        raise WorkerDied(
            f"episode {self._indices[slot]} was cut short at step {len(actions)} and could not be "
            f"brought there again as it was, so it has no outcome: {error}"
        )

    def _replayed(self, slot: int, actions: Array) -> Ready:
        vec, index = self._vec, self._indices[slot]
        assert vec is not None
        if vec.episodic:
            vec.send_reset([slot], options={"episodes": [index]})
        else:
            seeds = [index if place == slot else None for place in range(self.num_envs)]
            vec.send_reset([slot], seed=seeds)
        ready = vec.recv(1)
        if _error(ready) is None:
            vec.send(actions[None], [slot])
            ready = vec.recv(1)
        return ready

    def _info(self) -> dict[str, Any]:
        over = self._terminated | self._truncated
        everyone = np.ones(self.num_envs, np.bool_)
        info: dict[str, Any] = {"is_success": self._success.copy(), "_is_success": everyone}
        if over.any():
            final = {"is_success": self._success & over, "_is_success": over}
            info |= {"final_info": final, "_final_info": over}
        return info

    def _render(self, vec: VectorEnv) -> tuple[Array, ...]:
        plan = self.plan
        if not plan.frames:
            return tuple(np.asarray(frame) for frame in vec.render() or ())
        frames = np.array(self._obs[f"pixels/{plan.frames[0]}"])
        return tuple(frames[:, ::-1, ::-1] if plan.suite == "libero" else frames)


class Member:
    """One env of a `LeRobotVectorEnv`, to be looked at and filmed.

    Args:
        env: The vector env.
        place: Which of its envs.
    """

    def __init__(self, env: LeRobotVectorEnv, place: int) -> None:
        self._env = env
        self._place = place

    def render(self) -> Array:
        """What a video shows of it now."""
        return self._env.render()[self._place]

    def __getattr__(self, name: str) -> Any:
        return self._env.get_attr(name)[self._place]


def _display(plan: EnvPlan) -> str:
    """Where no frame is observed, LeRobot may still film: a display, if this machine has one."""
    if plan.obs_type != "state":
        return "auto"
    try:
        return select("auto", frames=True).name
    except DisplayError:
        return "none"


def _error(ready: Ready) -> SlotError | None:
    """What went wrong in the one slot that was waited for."""
    error: SlotError | None = ready.info.get("error", [None])[0]
    return error


def _put(target: Any, row: int, source: Any, place: int) -> None:
    """Copy one row of an observation into another one of the same structure."""
    if isinstance(target, Mapping):
        for key in target:
            _put(target[key], row, source[key], place)
    else:
        target[row] = source[place]
