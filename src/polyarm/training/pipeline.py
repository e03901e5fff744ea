"""A minimal loop from envs to gradients, for checking that everything between them works.

It is no RL algorithm of record: one chunk of steps, one gradient of their log-probabilities
weighted by rewards to come, and on to the next. Single process, no frames.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from polyarm.errors import InvalidCall
from polyarm.rollout.suite_settings import check_fast, pose_actions, specs, suite_settings
from polyarm.training.options import TrainOptions
from polyarm.training.policy import GaussianPolicy, import_torch
from polyarm.vector.env import VectorEnv
from polyarm.vector.make import make_vec


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the policy.

    Attributes:
        number: From 1 on.
        loss: What was minimised.
        grad_norm: Length of its gradient.
        reward: Mean reward of the steps it was made from.
        steps: Env steps so far, of all envs together; none of those that failed.
        errors: Episodes cut short by a failing env or worker so far.
        steps_per_s: Env steps per second of the whole loop so far.
    """

    number: int
    loss: float
    grad_norm: float
    reward: float
    steps: int
    errors: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class Training:
    """What was done.

    Attributes:
        updates: All of them.
        device: Where the policy computed.
        interrupted: Whether it was stopped early.
        last_error: What cut the last one of the failed episodes short; "" if none has failed.
    """

    updates: tuple[Update, ...]
    device: str
    interrupted: bool
    last_error: str = ""

    @property
    def steps(self) -> int:
        """Env steps of all envs together."""
        return self.updates[-1].steps if self.updates else 0

    @property
    def errors(self) -> int:
        """Episodes cut short by a failing env or worker."""
        return self.updates[-1].errors if self.updates else 0


def train(options: TrainOptions, progress: Callable[[Update], None] = lambda _: None) -> Training:
    """Run the loop.

    Args:
        options: What to run; ``num_envs`` are this process's.
        progress: Called after every update.

    Returns:
        What was done; on Ctrl-C what was done until then, with ``interrupted`` set.

    Raises:
        MissingExtra: PyTorch is not installed.
        UnknownName: A suite, task or option does not exist.
        InvalidCall: The options make no sense, or the envs' spaces are not supported.
    """
    _check(options)
    settings, poses = _settings(options)
    import_torch()
    updates: list[Update] = []
    with make_vec(
        options.tasks,
        num_envs=options.num_envs,
        num_workers=options.num_workers,
        frames="none",
        display=options.display,
        seed=options.seed,
        **settings,
    ) as envs:
        loop = _Loop(envs, options, poses=poses)
        interrupted = False
        try:
            while len(updates) < options.train_updates:
                updates.append(loop.update(len(updates) + 1))
                progress(updates[-1])
        except KeyboardInterrupt:
            interrupted = True
        return Training(tuple(updates), str(loop.policy.device), interrupted, loop.last_error)


class _Loop:
    """Envs, a policy and its optimizer."""

    def __init__(self, envs: VectorEnv, options: TrainOptions, *, poses: bool) -> None:
        actions = _action_box(envs)
        self._envs, self._chunk = envs, options.action_chunk
        self._obs, _ = envs.reset()
        self.policy = GaussianPolicy(
            state_size=_state(self._obs, envs).shape[1],
            actions=actions,
            hidden=options.train_hidden,
            seed=options.seed,
            device=options.device,
            poses=poses,
        )
        adam = import_torch().optim.Adam
        self._optimizer = adam(self.policy.parameters(), lr=options.train_lr)
        self._steps, self._errors, self.last_error = 0, 0, ""
        self._began = time.perf_counter()

    def update(self, number: int) -> Update:
        """Step all envs by a chunk, and the policy along the gradient."""
        policy = self.policy
        distribution = policy.distribution(_state(self._obs, self._envs))
        sampled = policy.sample(distribution, self._chunk)
        self._obs, rewards, _, _, info = self._envs.step_chunk(policy.actions(sampled))
        # An env that was reset, ended early or failed has executed fewer steps, or none.
        ran = np.arange(self._chunk) < np.asarray(info["steps"])[:, None]
        if "_error" in info:
            failed = np.asarray(info["_error"])
            ran &= ~failed[:, None]
            self._errors += int(failed.sum())
            self.last_error = str(info["error"][failed][-1])
        loss = policy.loss(distribution, sampled, _advantages(rewards, ran))
        self._optimizer.zero_grad()
        loss.backward()
        clip = import_torch().nn.utils.clip_grad_norm_
        norm = clip(list(policy.parameters()), math.inf)  # measures, clips nothing
        self._optimizer.step()
        self._steps += int(ran.sum())
        return Update(
            number=number,
            loss=float(loss.detach()),
            grad_norm=float(norm),
            reward=float(np.mean(rewards[ran])) if ran.any() else 0.0,
            steps=self._steps,
            errors=self._errors,
            steps_per_s=self._steps / (time.perf_counter() - self._began),
        )


def _advantages(rewards: NDArray[Any], ran: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Rewards from each step of the chunk to its end, brought to mean 0 and deviation 1."""
    earned = np.where(ran, rewards, 0.0)
    to_come = earned[:, ::-1].cumsum(axis=1)[:, ::-1]
    known = to_come[ran]
    if not len(known):
        return np.zeros(ran.shape, np.float32)
    scaled = (to_come - known.mean()) / (known.std() + 1e-8)
    return np.where(ran, scaled, 0.0).astype(np.float32)


def _state(obs: Any, envs: VectorEnv) -> NDArray[np.float32]:
    """``"state"``, or a Box observation, as float32 ``(N, n)``, owned."""
    space = envs.single_observation_space
    if isinstance(space, Dict) and isinstance(space.spaces.get("state"), Box):
        obs = obs["state"]
    elif not isinstance(space, Box):
        raise InvalidCall(f"train needs a 'state' or a Box to look at, found {space}")
    return np.array(obs, np.float32).reshape(envs.num_envs, -1)


def _action_box(envs: VectorEnv) -> Box:
    space = envs.single_action_space
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise InvalidCall(f"train needs a Box of real numbers as actions, found {space}")
    return space


def _settings(options: TrainOptions) -> tuple[dict[str, Any], bool]:
    """What the suites are told, and whether actions are displacements of a hand.

    Poses become displacements, which a Gaussian can be about.
    """
    settings = suite_settings(options)
    built = specs(options.tasks, settings)
    if options.fast:
        check_fast(built)
    if pose_actions(built) == "absolute":
        if "control" in settings:
            raise InvalidCall("train moves the hand by displacements: control=delta, or none")
        settings["control"] = "delta"
        built = specs(options.tasks, settings)
    return settings, pose_actions(built) == "delta"


def _check(options: TrainOptions) -> None:
    if not options.tasks:
        raise InvalidCall("no task was given; `polyarm suites` lists the suites and their tasks")
    for name in ("train_updates", "train_hidden", "action_chunk"):
        if (found := getattr(options, name)) < 1:
            raise InvalidCall(f"{name} must be at least 1, found {found}")
    if not (math.isfinite(options.train_lr) and options.train_lr > 0):
        raise InvalidCall(f"train_lr must be above 0, found {options.train_lr}")
