"""A vector env whose slots are on many machines: one batch for a trainer, one engine per node.

Nodes step side by side, each its own slots; what they return is put together in the order of the
slots. Episodes and seeds are those of a vector env of the same size on one machine. The slots of
a lost node deliver an error and are built again, on that node if it is still there, else on one
that is left. Where a call between two steps finds them lost, it raises, and the next step delivers
the error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from polyarm.distributed.ray.attributes import Attributes
from polyarm.distributed.ray.builder import Builder
from polyarm.distributed.ray.cluster import Cluster, last_line, why
from polyarm.distributed.ray.shard import Answer, Shard
from polyarm.distributed.ray.trees import concatenated, merged_infos, rows
from polyarm.errors import BuildError, ClosedEnv, InvalidCall, WorkerDied, WorkerError
from polyarm.vector.actions import ActionCheck
from polyarm.vector.episodes import Episodes
from polyarm.vector.layout import leaves
from polyarm.vector.ledger import refuse_ended

Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]

_CLOSE_S = 5.0


class RayVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Slots on the nodes of a Ray cluster; made by ``make_vec(…, hosts="ray")``.

    It has the lockstep half of `VectorEnv`: observations are arrays of their own.

    Args:
        where: Which cluster, as for `Cluster`.
        arguments: Of `make_vec`.

    Raises:
        BuildError: A node cannot build its envs.
        HostLimit: The nodes have not enough memory.
        InvalidCall: There is no such cluster, or something cannot be had on one.
        UnknownName: For a suite, task, camera or option that does not exist.
    """

    def __init__(self, where: str, arguments: dict[str, Any]) -> None:
        if arguments["observer"]:
            raise InvalidCall("observers write files where their envs are: not with hosts='ray'")
        if arguments["frames"] == "every":
            raise InvalidCall("frames='every' stays on one machine: use 'last' with hosts='ray'")
        self.closed = True
        self.num_envs = arguments["num_envs"]
        self._arguments = arguments
        self._autoreset = arguments["autoreset"]
        self._attributes = Attributes()
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._builder = Builder(where, arguments)
        self._shards = self._builder.shards
        self._cluster = self._builder.cluster
        self._ray = self._cluster.ray
        self._finalizer = weakref.finalize(self, _close, self._cluster, self._shards)
        self.closed = False
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    @cached_property
    def observation_space(self) -> gymnasium.Space[Any]:  # type: ignore[override]
        """That of all slots; made when it is asked for, as its bounds are four times the batch."""
        return batch_space(self.single_observation_space, self.num_envs)

    # Lockstep.

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all slots, or those in ``options["reset_mask"]``; as `VectorEnv.reset`."""
        self._revive()
        options = dict(options or {})
        mask = self._masked(options.pop("reset_mask", None))
        chosen = np.flatnonzero(mask)
        self._plan.check(chosen, seed, options)
        episodes = options.pop("episodes", None)
        each = None if episodes is None else np.broadcast_to(np.asarray(episodes), chosen.shape)

        def start(shard: Shard) -> Any:
            own = dict(options)
            part = mask[shard.first : shard.stop]
            if not part.all():
                own["reset_mask"] = part
            if each is not None:
                own["episodes"] = each[(chosen >= shard.first) & (chosen < shard.stop)]
            seeds = seed if seed is None or np.ndim(seed) == 0 else _slice(seed, shard)
            return shard.actor.reset.remote(seeds, own)

        touched = [shard for shard in self._shards if mask[shard.first : shard.stop].any()]
        while touched:
            self._gather(touched, start)
            touched = [shard for shard in touched if shard.lost]
            self._revive()  # a reset that fails is tried again with new envs
        self._ended[mask] = False
        answers = [self._untouched(shard, mask) for shard in self._shards]
        obs, _, _, _, info = self._joined(answers)
        return obs, info

    def step(self, actions: Any) -> Step:
        """Step all slots once; as `VectorEnv.step`."""
        return self._lockstep("step", actions, chunked=False)

    def step_chunk(self, actions: Any) -> Step:
        """Run up to K steps in every slot; as `VectorEnv.step_chunk`."""
        return self._lockstep("step_chunk", actions, chunked=True)

    def _lockstep(self, method: str, actions: Any, *, chunked: bool) -> Step:
        self._require_open()
        everyone = np.arange(self.num_envs, dtype=np.intp)
        checked, chunk = self._check(actions, everyone, chunked=chunked)
        if any(shard.last is None for shard in self._shards):
            raise InvalidCall("call reset() first")
        if len(checked) == 1 and not isinstance(actions, dict | tuple):
            actions = checked[0] if chunked else checked[0][:, 0]
        asked = [shard for shard in self._shards if shard.owed is None]
        ended = [shard for shard in asked if shard.lost or shard.fresh]
        if self._autoreset == "disabled":
            self._require_none_ended(ended)
        self._revive()

        def start(shard: Shard) -> Any:
            if shard in ended:  # the step of an ended slot is a reset
                return shard.actor.reset.remote(None, {})
            part = rows(actions, shard.first, shard.stop)
            return getattr(shard.actor, method).remote(part)

        self._gather(asked, start)
        answers = []
        for shard in self._shards:
            if shard.owed is not None:
                shard.last, shard.owed = shard.owed, None
            assert shard.last is not None
            if shard.lost:
                shard.last = shard.failed(shard.last, chunk)
            answer = shard.last
            if chunk is not None and answer.rewards.ndim == 1:
                answer = replace(answer, rewards=np.zeros((shard.count, chunk)))
            answers.append(answer)
        obs, rewards, terminated, truncated, info = self._joined(answers)
        self._ended = terminated | truncated
        return obs, rewards, terminated, truncated, info

    def _require_none_ended(self, lost: Sequence[Shard]) -> None:
        """Refuse a step before any node has made one."""
        ended = self._ended.copy()
        for shard in lost:
            ended[shard.first : shard.stop] = True
        refuse_ended(np.flatnonzero(ended))

    # Reaching into the envs.

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; one value per slot.

        Raises:
            WorkerError: Slots are lost; the next call builds them again.
        """
        return self._everyone("call", name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute on every env: one value for all, or a list or tuple with one each.

        Envs that are built again get it again.

        Raises:
            EnvCallError: An env refuses its value; the others have theirs, also when built again.
            WorkerError: Slots are lost, which are built again without it; the others have it.
        """
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise InvalidCall(f"set_attr needs {self.num_envs} values, found {len(each)}")
        self._revive()
        outcomes = self._ask(
            self._shards, lambda shard: self._set(shard, name, each[shard.first : shard.stop])
        )
        for shard, outcome in zip(self._shards, outcomes, strict=True):
            self._attributes.note(shard, name, each, outcome)
        self._answers(self._shards, outcomes)

    def _set(self, shard: Shard, name: str, values: Sequence[Any]) -> Any:
        return shard.actor.ask.remote("set_attr", name, list(values))

    def render(self) -> tuple[Any, ...] | None:
        """What every env's ``render()`` returns."""
        return self._everyone("render")

    def _everyone(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        self._revive()
        parts = self._get(self._shards, lambda shard: shard.actor.ask.remote(name, *args, **kwargs))
        return tuple(value for part in parts for value in part)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Full task name of every slot."""
        return tuple(task for shard in self._shards for task in shard.about["tasks"])

    @property
    def episodes(self) -> NDArray[np.int64]:
        """Episode index of every slot; meaningful for suites."""
        parts = [
            np.full(shard.count, -1, np.int64) if shard.last is None else shard.last.episodes
            for shard in self._shards
        ]
        return np.concatenate(parts)

    @property
    def episodic(self) -> bool:
        """Whether ``options["episodes"]`` chooses episodes; else seeds do."""
        return bool(self._shards[0].about["episodic"])

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Where slots are: a node, and how many it has."""
        return [(str(shard.node), shard.count) for shard in self._shards]

    def close(self, **_: Any) -> None:
        """End all actors and their workers, and the connection."""
        if not self.closed:
            self.closed = True
            self._finalizer()

    def __enter__(self) -> RayVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Building, and building again.

    def _build(self) -> None:
        self._builder.build()
        first_about = self._shards[0].about
        self.single_action_space = first_about["action_space"]
        self.single_observation_space = first_about["observation_space"]
        for shard in self._shards:
            for name in ("observation_space", "action_space"):
                if shard.about[name] != first_about[name]:
                    raise BuildError(
                        f"slots 0 and {shard.first} cannot share a batch: {first_about[name]} and"
                        f" {shard.about[name]}"
                    )
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = first_about["metadata"]
        self.render_mode = first_about["render_mode"]
        self.spec = first_about["spec"]
        self.provenance = [each for shard in self._shards for each in shard.about["provenance"]]
        action_leaves = list(leaves(self.single_action_space, "action"))
        episodic = bool(first_about["episodic"])
        self._plan = Episodes(self.num_envs, episodic=episodic, seed=None, scatter=False)
        clip = self._arguments["clip_actions"]
        self._check = ActionCheck(self.single_action_space, action_leaves, clip=clip)

    def _revive(self) -> None:
        """Build lost slots again."""
        self._require_open()
        for shard in self._shards:
            if shard.lost:
                self._builder.build_again(shard)
                for name, values in self._attributes.of(shard).items():
                    outcomes = self._ask([shard], partial(self._set, name=name, values=values))
                    if not self._attributes.was_refused(name, outcomes[0]):
                        self._answers([shard], outcomes)
                shard.lost, shard.fresh = "", True

    # Answers.

    def _gather(self, shards: Sequence[Shard], start: Callable[[Shard], Any]) -> None:
        """Have nodes work side by side; each shard's ``last`` is its answer, unless it is lost."""
        errors = self._ray.exceptions
        calls = [(shard, start(shard)) for shard in shards]
        failure: BaseException | None = None
        for shard, call in calls:
            try:
                shard.last = self._ray.get(call)
                shard.failures, shard.fresh, shard.owed = 0, False, None
            except errors.RayTaskError as error:
                failure = failure or why(error)
            except errors.RayError as error:
                self._lose(shard, error)
        if failure is not None:
            raise failure

    def _get(self, shards: Sequence[Shard], ask: Callable[[Shard], Any]) -> list[Any]:
        """What nodes answer between steps; a loss is raised, and delivered by the next step."""
        return self._answers(shards, self._ask(shards, ask))

    def _ask(self, shards: Sequence[Shard], ask: Callable[[Shard], Any]) -> list[Any]:
        """What each node answers between steps, or the error that it ended with."""
        errors = self._ray.exceptions
        calls = [(shard, ask(shard)) for shard in shards]
        outcomes: list[Any] = []
        for shard, call in calls:
            try:
                outcomes.append(self._ray.get(call))
            except errors.RayTaskError as error:
                outcomes.append(shard.counted(why(error)))
            except errors.RayError as error:
                last = None if shard.lost or shard.fresh else shard.last
                self._lose(shard, error)
                outcomes.append(error)
                if last is not None:
                    shard.owed = shard.failed(last, None)
        return outcomes

    def _answers(self, shards: Sequence[Shard], outcomes: Sequence[Any]) -> list[Any]:
        """Answers; raises if one is an error, a loss first."""
        lost = [
            shard
            for shard, outcome in zip(shards, outcomes, strict=True)
            if isinstance(outcome, self._ray.exceptions.RayError)
        ]
        if lost:
            each = [
                f"slots {list(range(shard.first, shard.stop))} were lost with node {shard.node}:"
                f" {shard.lost}"
                for shard in lost
            ]
            raise WorkerError(f"{'; '.join(each)}; the next call builds them again")
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return list(outcomes)

    def _lose(self, shard: Shard, error: Exception) -> None:
        """A shard's actor is gone.

        Raises:
            WorkerDied: Once too often.
        """
        shard.lost = last_line(error)
        shard.losses += 1
        shard.failures += 1
        if shard.failures > self._arguments["max_restarts"]:
            raise WorkerDied(
                f"slots {shard.first} to {shard.stop - 1} were lost {shard.failures} times in a"
                f" row, last with node {shard.node}: {shard.lost}"
            ) from error

    def _untouched(self, shard: Shard, mask: NDArray[np.bool_]) -> Answer:
        """A shard's answer to a reset; one that was not reset has nothing new to say."""
        assert shard.last is not None
        if mask[shard.first : shard.stop].any():
            return shard.last
        info = {"frame_valid": shard.last.info["frame_valid"]}
        return replace(shard.last, rewards=np.zeros(shard.count), info=info)

    def _joined(self, answers: Sequence[Answer]) -> Step:
        counts = [shard.count for shard in self._shards]
        for shard, answer in zip(self._shards, answers, strict=True):
            for place, error in enumerate(answer.info.get("error", ())):
                if error is not None:
                    answer.info["error"][place] = replace(error, slot=shard.first + place)
        info = merged_infos([answer.info for answer in answers], counts)
        return (
            concatenated([answer.obs for answer in answers]),
            np.concatenate([answer.rewards for answer in answers]),
            np.concatenate([answer.terminated for answer in answers]),
            np.concatenate([answer.truncated for answer in answers]),
            info,
        )

    def _masked(self, given: Any) -> NDArray[np.bool_]:
        mask = np.ones(self.num_envs, np.bool_) if given is None else np.asarray(given)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise InvalidCall(
                f"reset_mask must be a bool array of shape ({self.num_envs},) with at least one"
                f" True, found {mask.dtype} {mask.shape}"
            )
        if any(shard.last is None for shard in self._shards) and not mask.all():
            raise InvalidCall("call reset() without a reset_mask first")
        return mask

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnv("this vector env has been closed")


def _slice(seed: Any, shard: Shard) -> list[int | None]:
    return list(seed)[shard.first : shard.stop]


def _close(cluster: Cluster, shards: list[Shard]) -> None:
    """End actors, giving envs a moment to close."""
    ray = cluster.ray
    if ray.is_initialized():
        leaving = [shard.actor.close.remote() for shard in shards if not shard.lost]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_CLOSE_S)
        for shard in shards:
            ray.kill(shard.actor)
    for shard in shards:  # what they have said stays
        shard.actor = None
    cluster.close()
