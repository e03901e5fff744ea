"""One episode while it runs: what was decided, executed and earned, and how it ended."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import EpisodeKey, EpisodeResult, Outcome, map_leaves, stack_leaves
from polyarm.errors import PolicyError, SlotError
from polyarm.recording.filenames import episode_file, safe_name
from polyarm.recording.trajectory import save_trajectory
from polyarm.rollout.chunking import ActionQueue
from polyarm.rollout.journal import storage_errors

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """How an episode is run and what is kept of it.

    Attributes:
        execute: Actions executed per decision at most; None for all that the policy returns.
        ensemble: Weight of temporal ensembling, or None.
        keep: Whether observations, actions, rewards and extras are kept.
        keep_actions: Whether actions and rewards are, in any case.
    """

    execute: int | None = None
    ensemble: float | None = None
    keep: bool = False
    keep_actions: bool = False


class RunningEpisode:
    """An episode in a slot.

    Args:
        key: Which episode.
        instruction: What the policy is told.
        attempt: 1 for the first run, 2 for the second …
        options: How it is run.

    Attributes:
        generator: The policy's noise.
        steps: Env steps made so far.
        sent: The actions that were sent last, ``(k, …)``; None if the env's expert acts.
        max_reward: The largest reward so far.
        result: How it went, once it has ended.
    """

    def __init__(
        self, key: EpisodeKey, instruction: str, attempt: int, options: EpisodeOptions
    ) -> None:
        self.key = key
        self.instruction = instruction
        self.attempt = attempt
        self.generator = key.generator()
        self.steps = 0
        self.invalid_actions = 0
        self.sent: Array | None = None
        self.result: EpisodeResult | None = None
        self._queue = ActionQueue(options.execute, options.ensemble)
        self._keep = options.keep
        self._keep_actions = options.keep or options.keep_actions
        self.max_reward = -math.inf
        self._total_reward = 0.0
        self._began = time.perf_counter()
        self._timings = dict.fromkeys(("sim", "frames", "obs", "policy"), 0.0)
        self._hash = hashlib.blake2b(digest_size=16)
        self._decisions: list[tuple[int, Any, dict[str, Array]]] = []
        self._actions: list[Array] = []
        self._rewards: list[Array] = []

    def decided(self, actions: Array, extras: Mapping[str, Array], obs: Any) -> Array:
        """Take a decision; returns the actions to execute now, ``(k, …)``.

        Args:
            actions: ``(K, …)``.
            extras: This decision's extras.
            obs: This episode's row of the observation.
        """
        self._queue.offer(actions)
        self.sent = self._queue.take()
        self.note(obs, extras)
        return self.sent

    def note(self, obs: Any, extras: Mapping[str, Array] | None = None) -> None:
        """Keep an observation, if they are kept."""
        if self._keep:
            owned = {name: np.array(value) for name, value in (extras or {}).items()}
            if self._decisions:
                self._check_extras(owned, self._decisions[0][2])
            self._decisions.append((self.steps, map_leaves(np.array, obs), owned))

    def _check_extras(self, now: Mapping[str, Array], first: Mapping[str, Array]) -> None:
        shapes = {name: value.shape for name, value in now.items()}
        expected = {name: value.shape for name, value in first.items()}
        if shapes != expected:
            raise PolicyError(
                f"extras that are kept must have one shape at all decisions: {expected} at first,"
                f" {shapes} at step {self.steps} of {self.key}; pad them"
            )

    def took(self, what: str, seconds: float) -> None:
        """Add to the time that was spent on this episode: sim, frames, obs or policy."""
        self._timings[what] += seconds

    def stepped(self, actions: Array, rewards: Array) -> None:
        """Enter executed actions ``(k, …)`` and their rewards ``(k,)``."""
        self.steps += len(actions)
        for reward in rewards.tolist():  # one by one: the sum must not depend on the chunks
            self._total_reward += reward
            self.max_reward = max(self.max_reward, reward)
        self._hash.update(np.ascontiguousarray(actions).tobytes())
        if self._keep_actions:
            self._actions.append(np.array(actions))
            self._rewards.append(np.array(rewards))

    def finish(self, outcome: Outcome, files: Sequence[str] = ()) -> None:
        """The episode has ended."""
        seconds = time.perf_counter() - self._began
        spent = sum(self._timings.values())
        self.result = EpisodeResult(
            key=self.key,
            outcome=outcome,
            steps=self.steps,
            total_reward=self._total_reward,
            seconds=seconds,
            timings={**self._timings, "waiting": max(0.0, seconds - spent)},
            action_hash=self._hash.hexdigest(),
            invalid_actions=self.invalid_actions,
            attempts=self.attempt,
            videos=tuple(files),
            finished_at=time.time(),
        )

    def fail(self, error: SlotError) -> None:
        """The episode could not be brought to its end."""
        self.finish("error")
        assert self.result is not None
        about = {
            name: str(getattr(error, name))
            for name in ("kind", "phase", "message", "error_class", "signal", "stack", "stderr")
            if getattr(error, name)
        }
        self.result = replace(self.result, error=about)

    def actions(self) -> Array:
        """All that were executed, ``(T, …)``; only where they are kept."""
        return np.concatenate(self._actions)

    def rewards(self) -> Array:
        """What they earned, ``(T,)``; only where they are kept."""
        return np.concatenate(self._rewards)

    def trajectory(self) -> dict[str, Any]:
        """What happened, as arrays; only with ``keep``.

        Returns:
            ``actions`` ``(T, …)`` and ``rewards`` ``(T,)``; per decision ``decision_steps``
            ``(D,)``, ``obs`` and ``extras`` with leaves ``(D, …)``; and the key's fields.
        """
        assert self.result is not None
        steps, observations, extras = zip(*self._decisions, strict=True)
        return {
            "suite": self.key.suite,
            "task": self.key.task,
            "index": np.int64(self.key.index),
            "repeat": np.int64(self.key.repeat),
            "instruction": self.instruction,
            "success": np.bool_(self.result.outcome == "success"),
            "actions": self.actions(),
            "rewards": self.rewards(),
            "decision_steps": np.array(steps, np.int64),
            "obs": stack_leaves(observations),
            "extras": stack_leaves(extras),
        }

    def save_trajectory(self, folder: Path, label: str) -> str:
        """Save what happened; returns the file, relative to the run's folder.

        Args:
            folder: The run's.
            label: Which of several policies this is, or "".
        """
        below = Path("trajectories", safe_name(label) if label else "")
        name = below / episode_file(self.key, ".npz")
        with storage_errors(folder):
            save_trajectory(folder / name, self.trajectory())
        return str(name)
