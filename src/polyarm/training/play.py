"""The envs that a policy learns in: their ring is the rollout buffer.

A rollout is ``horizon`` decisions of every env. The ring has one row more: the last observation is
carried into row 0, where the next rollout starts. Episodes go on from one rollout to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM
from polyarm.distributed.ranks import Share
from polyarm.errors import InvalidCall, PolicyError
from polyarm.rollout.runner import SUCCESS, succeeded
from polyarm.rollout.suite_settings import check_fast, pose_actions, specs, suite_settings
from polyarm.training.options import TrainOptions
from polyarm.training.spaces import Acts, Leaves, Sight
from polyarm.vector.make import make_vec
from polyarm.vector.tasks import TaskLike, expand_tasks
from polyarm.vector.tensors import import_torch

Array = NDArray[Any]

_EPISODES_PER_RANK = 2**22
"""Ranks share a stream of episodes; so many of it are each one's."""
_GO_ON = "terminate_on_success"


@dataclass(frozen=True, slots=True)
class Steps:
    """What came of a rollout: T decisions of N envs, up to K steps each.

    Attributes:
        leaves: What was seen, tensors ``(T + 1, N, …)``, views of the block.
        rewards: Of every step, ``(T, N, K)``; 0 for those that were not made.
        steps: How many were made, ``(T, N)``; 0 where an env was reset or failed.
        terminated: Whether the episode ended then, by itself, ``(T, N)``.
        truncated: Whether it was cut off then, ``(T, N)``.
        usable: Whether the decision is data, ``(T, N)``.
    """

    leaves: Leaves
    rewards: Array
    steps: Array
    terminated: Array
    truncated: Array
    usable: NDArray[np.bool_]


@dataclass(slots=True)
class Tally:
    """Episodes that ended in a rollout, and what went wrong.

    Attributes:
        episodes: How many ended.
        returns: Sum of their undiscounted returns.
        lengths: Sum of their env steps.
        successes: How many were a success; meaningless without ``judged``.
        judged: How many said whether they were one.
        errors: Episodes cut short by a failing env or worker.
    """

    episodes: int = 0
    returns: float = 0.0
    lengths: int = 0
    successes: int = 0
    judged: int = 0
    errors: int = 0


class Play:
    """Envs in the middle of their episodes; use it as a context manager.

    Args:
        options: What is trained.
        share: This rank's part of the envs.

    Attributes:
        tally: What ended in the current rollout.
        last_error: What cut the last failed episode short; "" if none has failed.
        judges: Whether envs say which episodes are a success.
    """

    def __init__(self, options: TrainOptions, share: Share) -> None:
        settings, poses = training_settings(options)
        self._options, self._share = options, share
        self.envs = make_vec(
            share.deal(all_tasks(options, share)),
            num_envs=share.num_envs,
            num_workers=options.num_workers,
            cameras=options.cameras,
            image_size=options.image_size,
            ring=options.horizon + 1,
            display=options.display,
            **settings,
        )
        try:
            self.sight = Sight.of(self.envs.single_observation_space)
            self.acts = Acts.of(self.envs.single_action_space, poses=poses)
        except BaseException:
            self.envs.close()
            raise
        count, horizon = share.num_envs, options.horizon
        self._actions: list[Array] = []
        self._since: list[Array] = [np.empty(0)] * count
        self._returns, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._frames_valid = np.ones((horizon, count), np.bool_)
        self._failed = np.zeros(count, np.bool_)
        self._begun_in_vain = 0
        self.tally, self.last_error, self.judges = Tally(), "", False

    def begin(self, after: dict[str, Any] | None = None, *, update: int = 0) -> None:
        """Start this rank's stream of episodes, or go on behind those of an earlier state.

        Args:
            after: That state.
            update: The one after which it goes on; envs without episode indices get its seed.
        """
        rank, seed = self._share.rank.number, self._options.seed
        first = rank * _EPISODES_PER_RANK
        if self.envs.episodic:
            played = 0 if after is None else int(max(after["episodes"])) + 1
            start = max(first, played - seed * STREAM)
            self._reset(seed, {"start": start})
        else:
            words = np.random.SeedSequence([seed, rank, update]).generate_state(1)
            self._reset(int(words[0]), {})
        self._since = [np.empty(0)] * self.envs.num_envs
        self._returns[:], self._lengths[:] = 0.0, 0

    def _reset(self, seed: int, options: dict[str, Any]) -> None:
        """Reset all envs; one that cannot begin its episode goes on with the next, as any does."""
        self.envs.send_reset(seed=seed, options=options)
        ready = self.envs.recv(self.envs.num_envs)
        self._failed[:] = False
        if "_error" in ready.info:
            failed = ready.info["_error"]
            self._failed[ready.slots[failed]] = True
            self._begun_in_vain = int(failed.sum())
            self.last_error = str(ready.info["error"][failed][-1])

    def begin_rollout(self) -> Leaves:
        """Carry the newest observation to row 0; gives the ring as tensors ``(T + 1, N, …)``."""
        self.envs.rewind()
        self._actions, self.tally = [], Tally(errors=self._begun_in_vain)
        self._begun_in_vain = 0
        torch = import_torch()
        seen = self.sight.leaves(self.envs.history()["obs"], leading=2)
        return {key: torch.from_numpy(value) for key, value in seen.items()}

    def step(self, actions: Array) -> None:
        """Execute ``(N, K, …)`` actions; what comes of them is in the next row of the ring."""
        row = len(self._actions)
        self._actions.append(actions)
        if actions.shape[1] == 1:
            _, rewards, terminated, truncated, info = self.envs.step(actions[:, 0])
        else:
            _, rewards, terminated, truncated, info = self.envs.step_chunk(actions)
            rewards = rewards.sum(axis=1)
        if self.sight.pictures:
            self._frames_valid[row] = info["frame_valid"]
        self.judges |= any(name in info for name in SUCCESS)
        self._returns += rewards
        self._lengths += info["steps"]
        self._failed[:] = info.get("_error", False)
        if terminated.any() or truncated.any():
            self._count(terminated | truncated, info)

    def _count(self, ended: NDArray[np.bool_], info: dict[str, Any]) -> None:
        tally = self.tally
        if "_error" in info:
            failed = self._failed
            tally.errors += int(failed.sum())
            self.last_error = str(info["error"][failed][-1])
            self._returns[failed], self._lengths[failed] = 0.0, 0
            ended = ended & ~failed
        tally.episodes += int(ended.sum())
        tally.returns += float(self._returns[ended].sum())
        tally.lengths += int(self._lengths[ended].sum())
        said = [succeeded(info, slot) for slot in np.flatnonzero(ended).tolist()]
        tally.judged += sum(one is not None for one in said)
        tally.successes += sum(one is True for one in said)
        self._returns[ended], self._lengths[ended] = 0.0, 0

    def end_rollout(self, leaves: Leaves) -> Steps:
        """What came of it.

        Raises:
            PolicyError: An env gave a reward or an observation that is no number.
        """
        ring, horizon = self.envs.history(), self._options.horizon
        rewards = ring["rewards"][1:].reshape(horizon, self.envs.num_envs, -1)
        steps, terminated, truncated = (
            ring[name][1:] for name in ("steps", "terminated", "truncated")
        )
        self._require_numbers(rewards, "a reward")
        if "state" in leaves:
            self._require_numbers(leaves["state"].numpy(), "a state")
        # A failing env and one that was reset have made no step. A value is worth nothing where
        # it would come from a frame that could not be drawn.
        usable = (steps > 0) & (self._frames_valid | terminated)
        if self.envs.episodic:
            self._remember(steps)
        return Steps(leaves, rewards, steps, terminated, truncated, usable)

    def _require_numbers(self, found: Array, what: str) -> None:
        if not np.isfinite(found).all():
            _, slot, *_ = np.argwhere(~np.isfinite(found))[0]
            raise PolicyError(
                f"env {slot} ({self.envs.tasks[slot]}) gave {what} that is no finite number;"
                f" nothing was learnt from it, and the last checkpoint is as it was"
            )

    # Going on exactly where a checkpoint was.

    def _remember(self, steps: Array) -> None:
        """Keep the decisions of each episode under way: with its index, they are its state."""
        made = np.stack(self._actions)
        for slot in range(self.envs.num_envs):
            idle = np.flatnonzero(steps[:, slot] == 0)
            own = made[:, slot]
            if len(idle):
                self._since[slot] = own[idle[-1] + 1 :]
            elif len(self._since[slot]):
                self._since[slot] = np.concatenate([self._since[slot], own])
            else:
                self._since[slot] = own.copy()

    def state_dict(self) -> dict[str, Any]:
        """Where the episodes are."""
        newest = self.sight.leaves(self.envs.observe(np.arange(self.envs.num_envs)))
        return {
            "episodes": self.envs.episodes,
            "decisions": [np.array(one) for one in self._since],
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "failed": self._failed.copy(),
            "newest": {key: np.array(value) for key, value in newest.items()},
        }

    def load_state_dict(self, state: dict[str, Any], *, update: int) -> bool:
        """Play the episodes up to where they were after this update.

        Returns:
            Whether every env is, to the bit, where it was. If not, all of them begin episodes that
            have not been played: envs without episode indices, that do not repeat themselves, or of
            which one failed last. Its next call was to be a reset, which no decisions lead to.
        """
        failed = np.any(np.asarray(state.get("failed", False)))
        if not self.envs.episodic or failed or not self._replay(state):
            self.begin(after=state, update=update)
            return False
        self._since = [np.asarray(one) for one in state["decisions"]]
        self._returns[:] = np.asarray(state["returns"])
        self._lengths[:] = np.asarray(state["lengths"])
        return True

    def _replay(self, state: dict[str, Any]) -> bool:
        envs, decisions = self.envs, [np.asarray(one) for one in state["decisions"]]
        envs.reset(options={"episodes": np.asarray(state["episodes"])})
        for number in range(max(map(len, decisions))):
            slots = [slot for slot, made in enumerate(decisions) if number < len(made)]
            actions = np.stack([decisions[slot][number] for slot in slots])
            envs.send(actions if actions.shape[1] > 1 else actions[:, 0], slots)
            if "_error" in envs.recv(min_slots=len(slots)).info:
                return False
        found = self.sight.leaves(envs.observe(np.arange(envs.num_envs)))
        return all(
            np.array_equal(found[key], np.asarray(value)) for key, value in state["newest"].items()
        )

    def close(self) -> None:
        """Close the envs."""
        self.envs.close()

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def all_tasks(options: TrainOptions, share: Share) -> list[TaskLike]:
    """What the envs of all ranks play.

    Raises:
        UnknownName: A suite or task does not exist.
        InvalidCall: There are more tasks than envs, so some would never be played.
    """
    tasks, num_envs = expand_tasks(options.tasks), sum(share.envs_per_rank)
    if len(tasks) > num_envs:
        raise InvalidCall(
            f"{options.task} has {len(tasks)} tasks, and {num_envs} envs can play {num_envs} of"
            f" them: give --num-envs or --num-envs-total so that there are {len(tasks)} or more, or"
            f" name fewer tasks"
        )
    return tasks


def training_settings(options: TrainOptions) -> tuple[dict[str, Any], bool]:
    """What the suites are told, and whether actions are displacements of a hand.

    Poses become displacements, which a Gaussian can be about. Where rewards are dense, an episode
    that ends at its first success is worth less than one that hovers beside the goal for ever, so
    episodes go on after a success.
    """
    settings = suite_settings(options)
    built = specs(options.tasks, settings)
    if options.fast:
        check_fast(built)
    if _GO_ON not in settings and all(_GO_ON in spec.options for spec in built):
        settings[_GO_ON] = False
    if pose_actions(built) == "absolute":
        if "control" in settings:
            raise InvalidCall("train moves the hand by displacements: control=delta, or none")
        settings["control"] = "delta"
        built = specs(options.tasks, settings)
    return settings, pose_actions(built) == "delta"
