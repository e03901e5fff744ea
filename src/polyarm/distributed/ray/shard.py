"""A node's part of a vector env: the local engine in an actor, and how it is started and asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.distributed.ray.node import stand_in
from polyarm.distributed.ray.placement import Node
from polyarm.errors import EnvCallError, SlotError
from polyarm.vector.make import make_vec


@dataclass(frozen=True, slots=True)
class Answer:
    """What a part of the batch has done.

    Attributes:
        obs: Leaves ``(n, …)``.
        rewards: ``(n,)`` or ``(n, K)``.
        terminated: ``(n,)``.
        truncated: ``(n,)``.
        info: As of the part alone.
        episodes: Episode indices of its slots.
    """

    obs: Any
    rewards: NDArray[Any]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    info: dict[str, Any]
    episodes: NDArray[np.int64]


class EnvNode:
    """The actor: owns workers and block of some slots.

    Args:
        arguments: Of `make_vec`.
        first: Its first slot in the whole batch.
        total: Slots of the whole batch.
        folder: The trainer's working directory.
        following: What the first reset plays, where it is not told: the ``episodes`` after those
            that a lost actor has played, or ``seeds``.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        first: int,
        total: int,
        folder: str,
        following: Mapping[str, Any],
    ) -> None:
        stand_in(folder)
        self._following = dict(following)
        self._envs = make_vec(**arguments)
        self._envs.take_part(first, total)

    def describe(self) -> dict[str, Any]:
        """What the whole needs to know about its parts."""
        envs = self._envs
        return {
            "pid": os.getpid(),
            "observation_space": envs.single_observation_space,
            "action_space": envs.single_action_space,
            "metadata": envs.metadata,
            "render_mode": envs.render_mode,
            "spec": envs.spec,
            "tasks": envs.tasks,
            "specs": envs.specs,
            "episodic": envs.episodic,
            "provenance": envs.provenance,
            "worker_pids": envs.worker_pids,
        }

    def reset(self, seed: Any, options: dict[str, Any]) -> Answer:
        """Reset this node's slots."""
        following, self._following = self._following, {}
        if seed is None and not {"episodes", "start"} & options.keys():
            seed = following.pop("seeds", None)
            if "reset_mask" not in options:
                options = {**options, **following}
        obs, info = self._envs.reset(seed=seed, options=options)
        zeros, no = np.zeros(self._envs.num_envs), np.zeros(self._envs.num_envs, np.bool_)
        return Answer(obs, zeros, no, no, info, self._envs.episodes)

    def step(self, actions: Any) -> Answer:
        """Step this node's slots."""
        return Answer(*self._envs.step(actions), self._envs.episodes)

    def step_chunk(self, actions: Any) -> Answer:
        """Step this node's slots by a chunk."""
        return Answer(*self._envs.step_chunk(actions), self._envs.episodes)

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Any other method of the vector env."""
        return getattr(self._envs, name)(*args, **kwargs)

    def close(self) -> None:
        """End all workers."""
        self._envs.close()


@dataclass(slots=True, eq=False)
class Shard:
    """Neighbouring slots that one actor holds.

    Attributes:
        first: The first of them.
        stop: The one after the last.
        node: Where the actor is.
        actor: Ray's handle.
        about: What it says about itself.
        last: Its last answer; None before the first reset.
        lost: Why its actor is gone; "" while it is there.
        losses: How often that happened.
        failures: The same, since its last answer.
        fresh: Whether its actor is another one since, which has not been reset.
        owed: What it has to deliver as its next step: that it was lost between two.
    """

    first: int
    stop: int
    node: Node
    actor: Any
    about: dict[str, Any] = field(default_factory=dict)
    last: Answer | None = None
    lost: str = ""
    losses: int = 0
    failures: int = 0
    fresh: bool = False
    owed: Answer | None = None

    @property
    def count(self) -> int:
        """How many slots."""
        return self.stop - self.first

    def counted(self, error: Exception) -> Exception:
        """Its actor's error, with slots as the whole batch counts them."""
        if isinstance(error, EnvCallError):
            moved = [replace(each, slot=self.first + each.slot) for each in error.failures]
            return EnvCallError(error.name, moved)
        return error

    def failed(self, last: Answer, chunk: int | None) -> Answer:
        """What lost slots deliver: their last observation, no reward, and an error.

        Args:
            last: Their last answer.
            chunk: K of the step that was lost; None for a single step.
        """
        no = np.zeros(self.count, np.bool_)
        errors = np.full(self.count, None, dtype=object)
        for place, task in enumerate(self.about["tasks"]):
            message = f"was lost with node {self.node}: {self.lost}"
            errors[place] = SlotError(
                "died", self.first + place, task, "step", 0, message, pid=self.about["pid"]
            )
        info = {
            "error": errors,
            "_error": ~no,
            "steps": np.zeros(self.count, np.int32),
            "frame_valid": no,
        }
        rewards = np.zeros(self.count if chunk is None else (self.count, chunk))
        return Answer(last.obs, rewards, no, ~no, info, last.episodes)
