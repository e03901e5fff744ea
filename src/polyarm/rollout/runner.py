"""The batched loop: slots play episodes from one queue, a policy decides for whoever is ready.

A slot that finishes an episode takes the next one at once, of whatever task. While the policy
decides for some slots, the others go on simulating. Which slot, batch or worker an episode met
changes nothing about it: its key fixes the initial state and the policy's noise, and its rows of
a batch are its own.
"""

from __future__ import annotations

import errno
import math
import operator
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyarm import registry
from polyarm.contracts import Batch, EpisodeKey, ObservedEpisode, Policy, Task, map_leaves
from polyarm.errors import InvalidCall, SlotError, StorageError
from polyarm.rollout.decisions import PolicyCaller
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode
from polyarm.rollout.schedule import Schedule
from polyarm.vector.asynchronous import Ready
from polyarm.vector.env import VectorEnv

SUCCESS = ("is_success", "success")
"""Infos by which an env says whether an episode went well; the first that it has counts."""
_LOOK_UP_S = 0.5
"""How long the loop sleeps at most before it looks at whether it is to stop."""
_QUICK = 0.1
"""A policy that takes less than this share of a simulated chunk is asked for every ready slot."""
_BY_THE_ROW = 0.3
"""A policy's calls cost by the row if the fixed part of a small batch is less than this share."""
_HOPELESS = 3
"""A task whose envs fail to build so often, with nothing finished, is given up."""


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How episodes are run.

    Attributes:
        episode: How each of them is run.
        max_batch: Rows per decision at most; None for as many as there are slots.
        max_wait_s: How long a ready slot may wait for others to join its batch.
        policy_timeout_s: How long a decision may take; None for ever.
        observed: Whether envs have observers that want to know which episode they watch.
        label: Which of several policies this is, for the observers.
        reset_options: What the resets of some episodes are told besides their index.
    """

    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    max_batch: int | None = None
    max_wait_s: float = 0.05
    policy_timeout_s: float | None = 600.0
    observed: bool = False
    label: str = ""
    reset_options: Mapping[EpisodeKey, Mapping[str, Any]] = field(default_factory=dict)


class Runner:
    """Runs the episodes of a schedule in a vector env.

    Args:
        env: Made with ``autoreset="disabled"``, all of its slots idle. After `episodes` has come
            to its end they are idle again; if it was cut short, after `drain`.
        policy: What acts.
        schedule: Which episodes to run.
        options: How.

    Attributes:
        stopping: Set it to end `episodes` within a second; running episodes are given up.
        waiting_s: Seconds spent waiting for envs.
        worker_s: Seconds the workers spent, by what they did.
        silent: Tasks that never said whether an episode succeeded.
        predicted: Actions in a decision of the policy's, at most; 0 if it was never asked.
    """

    def __init__(
        self, env: VectorEnv, policy: Policy, schedule: Schedule, options: RunnerOptions
    ) -> None:
        self._env = env
        self._policy = policy
        self._schedule = schedule
        self._options = options
        self._expert_steps: int = getattr(policy, "expert_steps", 0) or 0
        self._caller = PolicyCaller(
            policy,
            env.single_action_space,
            max_batch=options.max_batch or env.num_envs,
            timeout_s=options.policy_timeout_s,
        )
        self._known = _known_tasks(env.tasks)
        self._idle = set(range(env.num_envs))
        self._episodes: dict[int, RunningEpisode] = {}
        self._deciding: dict[int, float] = {}
        self._build_errors: dict[str, list[SlotError]] = {}
        self._chunk_s = 0.0
        self.stopping = False
        self.waiting_s = 0.0
        self.worker_s = dict.fromkeys(("sim", "frames", "obs"), 0.0)
        self.silent: set[str] = set()
        self.predicted = 0

    @property
    def policy_s(self) -> float:
        """Seconds spent in the policy."""
        return self._caller.seconds

    @property
    def on_gpu(self) -> bool:
        """Whether the policy says that it runs on a GPU."""
        return str(getattr(self._policy, "device", "")).startswith("cuda")

    @property
    def running(self) -> int:
        """Episodes under way."""
        return len(self._episodes)

    def episodes(self) -> Iterator[RunningEpisode | None]:
        """Episodes as they end, until all have, or until ``stopping`` is set.

        Yields None now and then, so that whoever reads can look after other things.
        """
        yield from self._fill()
        looked_at = time.monotonic()
        while self._episodes and not self.stopping:
            if self._must_decide():
                self._decide()
            else:
                yield from self._receive()
                yield from self._fill()
            if time.monotonic() - looked_at > _LOOK_UP_S:
                looked_at = time.monotonic()
                yield None

    def drain(self) -> None:
        """Give up the episodes that run and leave all slots idle; waits for their chunks to end."""
        self.stopping = True
        # What cut it short may have come between a send and our note of it: the env knows better.
        with suppress(InvalidCall):  # nothing is pending any more
            while True:
                self._env.recv(1, observe=False)
        for slot in list(self._episodes):
            self._free(slot)

    # Episodes begin.

    def _fill(self) -> list[RunningEpisode]:
        """Give free slots the next episodes; returns those that there is no hope for."""
        same: list[tuple[int, EpisodeKey]] = []
        given_up: list[RunningEpisode] = []
        held = self._env.tasks if self._idle else ()
        for slot in sorted(self._idle):
            if (key := self._next(held[slot], given_up)) is None:
                break
            self._begin(slot, key)
            switched = key.name != held[slot]
            if switched or key in self._options.reset_options:
                self._send_resets([(slot, key)], task=key.name if switched else None)
            else:
                same.append((slot, key))
        if same:
            self._send_resets(same)
        return given_up

    def _next(self, task: str, given_up: list[RunningEpisode]) -> EpisodeKey | None:
        """The next episode for a slot with a task; those that cannot be built are given up."""
        while not self.stopping and (key := self._schedule.next(task)) is not None:
            if len(self._build_errors.get(key.name, ())) < _HOPELESS:
                return key
            given_up += self._give_up(key)
        return None

    def _begin(self, slot: int, key: EpisodeKey) -> None:
        self._idle.discard(slot)
        task = self._known.get(key.name)
        instruction = task.instruction if task else ""
        attempt = self._schedule.attempts(key)
        self._episodes[slot] = RunningEpisode(key, instruction, attempt, self._options.episode)
        self._caller.begin(key)

    def _send_resets(self, pairs: Sequence[tuple[int, EpisodeKey]], task: Any = None) -> None:
        # One that has options of its own comes alone.
        options: dict[str, Any] = dict(self._options.reset_options.get(pairs[0][1], {}))
        seeds: list[int | None] | None = None
        if self._env.episodic:
            options["episodes"] = [key.index for _, key in pairs]
        else:
            seeds = [None] * self._env.num_envs
            for slot, key in pairs:
                seeds[slot] = key.index
        if self._options.observed:
            options["observed"] = [self._observed(self._episodes[slot]) for slot, _ in pairs]
        self._env.send_reset([slot for slot, _ in pairs], seed=seeds, options=options, task=task)

    def _observed(self, episode: RunningEpisode) -> ObservedEpisode:
        # The env itself knows its horizon best.
        return ObservedEpisode(
            episode.key, episode.instruction, 0, episode.attempt, self._options.label
        )

    def _give_up(self, key: EpisodeKey) -> list[RunningEpisode]:
        """All that waits of a task whose envs cannot be built, as errors."""
        given_up = []
        for each in [key, *self._schedule.drop(key.name)]:
            episode = RunningEpisode(each, "", 1, self._options.episode)
            episode.fail(self._build_errors[key.name][-1])
            given_up.append(episode)
        self._schedule.finished(key)
        return given_up

    # Episodes go on, and end.

    def _receive(self) -> list[RunningEpisode]:
        pending = len(self._episodes) - len(self._deciding)
        wanted = max(1, min(self._batch_target() - len(self._deciding), pending))
        timeout_s = _LOOK_UP_S
        if self._deciding:
            waited_s = time.monotonic() - min(self._deciding.values())
            timeout_s = max(0.0, self._options.max_wait_s - waited_s)
        began = time.perf_counter()
        ready = self._env.recv(wanted, timeout_s, observe=False)
        self.waiting_s += time.perf_counter() - began
        return self._enter(ready) if len(ready.slots) else []

    def _enter(self, ready: Ready) -> list[RunningEpisode]:
        """Note what slots have done; those that go on wait for a decision.

        Returns:
            Episodes that have ended.
        """
        info, timings, now = ready.info, self._env.timings_ns(), time.monotonic()
        errors, files = info.get("error"), info.get("observed_files")
        told, refused = info.get("instruction"), info.get("invalid_actions")
        going: list[int] = []
        ended: list[RunningEpisode] = []
        for place, slot in enumerate(ready.slots.tolist()):
            episode = self._episodes[slot]
            if errors is not None and errors[place] is not None:
                if self._on_error(slot, episode, errors[place]):
                    ended.append(episode)
                continue
            took = self._note_times(episode, timings, slot)
            if told is not None and told[place]:
                episode.instruction = str(told[place])
            if refused is not None:
                episode.invalid_actions = int(refused[place])
            if steps := int(info["steps"][place]):
                self._chunk_s += 0.1 * (took - self._chunk_s) if self._chunk_s else took
                executed = episode.sent
                if executed is None:
                    executed = self._env.executed_actions(slot, steps)
                episode.stepped(executed[:steps], ready.rewards[place, :steps])
            if ready.terminated[place] or ready.truncated[place]:
                success = succeeded(info, place)
                if success is None:
                    self.silent.add(episode.key.name)
                made = files[place] if files is not None else None
                self._free(slot)
                self._schedule.finished(episode.key)
                self._build_errors.pop(episode.key.name, None)
                episode.finish("success" if success else "failure", made or ())
                ended.append(episode)
            else:
                going.append(slot)
        if self._expert_steps and going:
            self._send_experts(going, now)
        else:
            self._deciding.update(dict.fromkeys(going, now))
        return ended

    def _note_times(
        self, episode: RunningEpisode, timings_ns: Mapping[str, Any], slot: int
    ) -> float:
        """Note what the worker has spent; returns the sum."""
        spent = 0.0
        for name in self.worker_s:
            seconds = float(timings_ns[name][slot]) * 1e-9
            self.worker_s[name] += seconds
            episode.took(name, seconds)
            spent += seconds
        return spent

    def _send_experts(self, slots: list[int], now: float) -> None:
        keep = self._options.episode.keep
        obs = self._env.observe(slots) if keep else None
        for row, slot in enumerate(slots):
            if keep:
                self._episodes[slot].note(_row(obs, row))
        self._env.send_expert(self._expert_steps, slots)

    def _free(self, slot: int) -> None:
        episode = self._episodes.pop(slot)
        self._deciding.pop(slot, None)
        self._idle.add(slot)
        self._caller.end(episode.key)

    def _on_error(self, slot: int, episode: RunningEpisode, error: SlotError) -> bool:
        """An episode was cut short; returns whether it has come to its end by that."""
        if os.strerror(errno.ENOSPC) in error.message:
            raise StorageError(errno.ENOSPC, f"{error.message} ({episode.key}); free some space")
        self._free(slot)
        if error.phase == "build" and error.kind == "exception":
            self._build_errors.setdefault(episode.key.name, []).append(error)
        if self._schedule.failed(episode.key, charged=error.kind != "collateral"):
            return False
        self._schedule.finished(episode.key)
        episode.fail(error)
        return True

    # Decisions.

    def _batch_target(self) -> int:
        """How many slots a decision waits for.

        Half of those that play, so that the policy decides for one half while the other simulates.
        A quarter, where small batches cost as little per row as large ones; all, where a large one
        costs hardly more than a small one and simulating takes little; any that are ready, where
        the policy takes next to no time.
        """
        caller, playing = self._caller, len(self._episodes)
        if caller.last_s < _QUICK * self._chunk_s:
            return 1
        parts = 4 if self._costs_by_the_row() else 1 if self._better_together() else 2
        return min(caller.max_batch, math.ceil(playing / parts))

    def _better_together(self) -> bool:
        """Whether a call for all, during which nothing simulates, beats two halves in turn."""
        cost, playing = self._caller.cost, len(self._episodes)
        for_all, for_half = cost.seconds(playing), cost.seconds(math.ceil(playing / 2))
        if for_all is None or for_half is None:
            return False
        # Twice as many envs may take twice as long on few cores.
        return for_all + 2 * self._chunk_s < 2 * for_half

    def _batch_limit(self) -> int:
        """How many rows to ask about at once: all that wait, unless calls cost by the row."""
        limit = self._caller.max_batch
        return min(limit, self._batch_target()) if self._costs_by_the_row() else limit

    def _costs_by_the_row(self) -> bool:
        cost = self._caller.cost
        share = cost.fixed_share(math.ceil(len(self._episodes) / 4))
        # Unknown: small and large batches in turn, until it shows.
        return cost.calls % 2 == 0 if share is None else share < _BY_THE_ROW

    def _must_decide(self) -> bool:
        waiting = len(self._deciding)
        if not waiting:
            return False
        if waiting >= self._batch_target() or waiting == len(self._episodes):
            return True
        return time.monotonic() - min(self._deciding.values()) >= self._options.max_wait_s

    def _decide(self) -> None:
        """Ask the policy about the slots that have waited longest, and send what it says."""
        slots = list(self._deciding)[: self._batch_limit()]
        episodes = [self._episodes[slot] for slot in slots]
        batch = Batch(
            obs=self._env.observe(slots),
            keys=tuple(episode.key for episode in episodes),
            instructions=tuple(episode.instruction for episode in episodes),
            steps=np.array([episode.steps for episode in episodes], np.int64),
            generators=tuple(episode.generator for episode in episodes),
        )
        actions, extras = self._caller.act(batch)
        self.predicted = max(self.predicted, actions.shape[1])
        chunks: dict[int, list[tuple[int, Any]]] = {}
        for row, (slot, episode) in enumerate(zip(slots, episodes, strict=True)):
            own = {name: values[row] for name, values in extras.items()}
            sent = episode.decided(actions[row], own, _row(batch.obs, row))
            episode.took("policy", self._caller.last_s / len(slots))
            chunks.setdefault(len(sent), []).append((slot, sent))
            del self._deciding[slot]
        for group in chunks.values():
            self._env.send(np.stack([sent for _, sent in group]), [slot for slot, _ in group])


def _row(obs: Any, row: int) -> Any:
    return map_leaves(operator.itemgetter(row), obs)


def succeeded(info: Mapping[str, Any], place: int) -> bool | None:
    """What an env says of an episode that has ended; None if it says nothing."""
    for name in SUCCESS:
        values, said = info.get(name), info.get(f"_{name}")
        if values is not None and (said is None or said[place]):
            return bool(np.all(values[place]))
    return None


def _known_tasks(names: Sequence[str]) -> Mapping[str, Task]:
    """What suites say about their tasks, by full name."""
    suites = {name.partition("/")[0] for name in names}
    return {task.name: task for suite in suites for task in registry.load(suite).tasks()}
