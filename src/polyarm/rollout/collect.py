"""Groups of repeats of one initial state, as they are completed: what GRPO and RLOO train on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import InvalidCall
from polyarm.policies.loading import as_policy, load_policy
from polyarm.rollout.acting import PolicyLike, check_specs, own_execute
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule
from polyarm.vector.env import VectorEnv
from polyarm.vector.make import make_vec

log = logging.getLogger("polyarm")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode with all that happened in it.

    Attributes:
        result: How it went.
        trajectory: ``actions`` ``(T, …)`` and ``rewards`` ``(T,)``; per decision
            ``decision_steps`` ``(D,)``, ``obs`` and ``extras`` with leaves ``(D, …)``.
    """

    result: EpisodeResult
    trajectory: dict[str, Any]

    @property
    def success(self) -> bool:
        """Whether the episode succeeded."""
        return self.result.outcome == "success"


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """All repeats of one initial state.

    Attributes:
        key: The first repeat's key.
        rollouts: In the order of their repeats.
    """

    key: EpisodeKey
    rollouts: tuple[Rollout, ...]

    @property
    def successes(self) -> int:
        """How many repeats succeeded."""
        return sum(rollout.success for rollout in self.rollouts)


def is_informative(group: RolloutGroup) -> bool:
    """Whether some repeats succeeded and some failed: the others teach nothing to GRPO."""
    return 0 < group.successes < len(group.rollouts)


def collect(  # noqa: PLR0913  the whole public surface, keyword-only
    policy: PolicyLike,
    keys: Iterable[EpisodeKey],
    *,
    group_size: int = 8,
    num_groups: int | None = None,
    accept: Callable[[RolloutGroup], bool] | None = None,
    env: VectorEnv | None = None,
    num_envs: int = 8,
    max_attempts: int = 3,
    execute: int | None = None,
    ordered: bool = False,
    **env_options: Any,
) -> Iterator[RolloutGroup]:
    """Play groups of repeats and yield each one when it is complete.

    Args:
        policy: What acts; it should be noisy, or repeats are all alike.
        keys: Initial states; may have no end if ``num_groups`` is given. A group's repeats count up
            from its key's ``repeat``: give each call another one, and the policy's noise is new.
        group_size: Repeats of each initial state, k.
        num_groups: How many accepted groups to yield; None for all.
        accept: Looks at a complete group and says whether it is worth yielding, such as
            `is_informative`; another one is drawn for a rejected one.
        env: A live vector env with ``autoreset="disabled"`` to play in; one is made, and closed at
            the end, if there is none.
        num_envs: Slots of an env that is made.
        max_attempts: How often an episode whose simulator fails is tried; a group with a member
            that never comes to its end is dropped, with a warning.
        execute: Actions executed before the policy is asked again; by default as many as it says
            itself, or all it returns.
        ordered: Judge and yield groups in the order of ``keys``, so that which ones are accepted
            depends on the keys alone, not on who was faster. A group then waits for those before
            it, and more of what was begun ahead may be given up at the end.
        **env_options: Further arguments of `make_vec` for an env that is made.

    Yields:
        Complete groups, in the order in which they are completed unless ``ordered``.
    """
    if num_groups is not None and num_groups < 1:
        raise InvalidCall(f"num_groups is at least 1, or None for all, found {num_groups}")
    if group_size < 1:
        raise InvalidCall(f"a group has at least one member, found group_size={group_size}")
    source = iter(keys)
    first = next(source, None)
    if first is None:
        return
    owned = env is None
    if env is None:
        env = make_vec(first.name, num_envs=num_envs, autoreset="disabled", **env_options)
    try:
        collector = _Collector(group_size, first, source, ordered=ordered)
        space = env.single_action_space
        acting = load_policy(policy, space) if isinstance(policy, str) else as_policy(policy)
        check_specs(acting, {spec.name: spec for spec in env.specs}.values())
        executed = own_execute(acting) if execute is None else execute
        options = RunnerOptions(episode=EpisodeOptions(executed, None, keep=True))
        # Few groups are begun ahead: a rejected one costs no more than it must.
        schedule = Schedule(collector.members(), lookahead=env.num_envs, max_attempts=max_attempts)
        runner = Runner(env, acting, schedule, options)
        try:
            yield from _accepted(runner, collector, accept, num_groups)
        finally:
            if not owned:
                runner.drain()  # whatever cut it short, the caller's env goes on being usable
    finally:
        if owned:
            env.close()


def _accepted(
    runner: Runner,
    collector: _Collector,
    accept: Callable[[RolloutGroup], bool] | None,
    num_groups: int | None,
) -> Iterator[RolloutGroup]:
    yielded = 0
    for episode in runner.episodes():
        for group in collector.enter(episode) if episode is not None else ():
            if accept is not None and not accept(group):
                continue
            yield group
            yielded += 1
            if yielded == num_groups:
                return


class _Collector:
    """Groups that are not complete yet; each draw of an initial state is a group of its own."""

    def __init__(
        self, size: int, first: EpisodeKey, rest: Iterator[EpisodeKey], *, ordered: bool
    ) -> None:
        self._size = size
        self._ordered = ordered
        self._first = first
        self._rest = rest
        self._drawn: Counter[EpisodeKey] = Counter()
        self._groups: dict[EpisodeKey, dict[int, Rollout]] = {}  # in the order of the draws
        self._heads: dict[EpisodeKey, EpisodeKey] = {}

    def members(self) -> Iterator[EpisodeKey]:
        """The keys of all repeats, group after group."""
        yield from self._repeats(self._first)
        for key in self._rest:
            yield from self._repeats(key)

    def enter(self, episode: RunningEpisode) -> list[RolloutGroup]:
        """Note an episode that has ended; returns the groups that are due by that."""
        assert episode.result is not None
        head = self._heads.pop(episode.key)
        if episode.result.outcome == "error":
            if self._groups.pop(head, None) is not None:
                message = episode.result.error.get("message")
                log.warning("dropping the group of %s: %s", head, message)
        elif head in self._groups:
            self._groups[head][episode.key.repeat] = Rollout(episode.result, episode.trajectory())
        heads = list(self._groups) if self._ordered else [head]
        return [self._take(each) for each in takewhile(self._is_complete, heads)]

    def _is_complete(self, head: EpisodeKey) -> bool:
        return len(self._groups.get(head, ())) == self._size

    def _take(self, head: EpisodeKey) -> RolloutGroup:
        group = self._groups.pop(head)
        return RolloutGroup(head, tuple(group[repeat] for repeat in sorted(group)))

    def _repeats(self, key: EpisodeKey) -> Sequence[EpisodeKey]:
        """New repeats of an initial state, from the key's own on, however often it is drawn."""
        first = key.repeat + self._drawn[key] * self._size
        self._drawn[key] += 1
        members = [replace(key, repeat=first + place) for place in range(self._size)]
        self._groups[members[0]] = {}
        self._heads.update(dict.fromkeys(members, members[0]))
        return members
