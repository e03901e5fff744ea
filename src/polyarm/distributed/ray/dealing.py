"""Which node plays which episode: dealt as nodes finish, and again if a node is lost. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from polyarm.contracts import EpisodeKey
from polyarm.rollout.schedule import Schedule

_AHEAD_S = 2.0
"""For how long a node should have episodes besides those that it plays.

Much more than an answer takes to come: a slot that finds none of its own task takes another's,
which costs a new env, and then lacks that slot's.
"""
_RECENT_S = 1.0


class Pace:
    """How fast a node finishes episodes, of late."""

    def __init__(self) -> None:
        self._per_s = 0.0
        self._at = 0.0

    def finished(self, episodes: int, now: float) -> None:
        """So many have ended since the last call; ``now`` is in seconds, of any clock."""
        self._per_s *= math.exp((self._at - now) / _RECENT_S)
        self._per_s += episodes / _RECENT_S
        self._at = now

    def ahead(self, slots: int, tasks: int) -> int:
        """How many episodes a node should have besides those that its slots play.

        Args:
            slots: How many play at once.
            tasks: Of how many tasks the episodes are.
        """
        return (slots if tasks > 1 else 1) + round(_AHEAD_S * self._per_s)


class Deal:
    """Episodes of one turn, at nodes or waiting for one.

    An episode is at one node at most. Its result is taken from that node only, so nothing counts
    twice, whatever a node that was given up still says.

    Args:
        keys: The episodes.
        max_attempts: As for `Schedule`: lost nodes cost an episode nothing, within reason.
    """

    def __init__(self, keys: Sequence[EpisodeKey], max_attempts: int) -> None:
        self._schedule = Schedule(keys, max_attempts=max_attempts)
        self._held: dict[str, dict[EpisodeKey, None]] = {}
        self._tasks: dict[str, Counter[str]] = {}
        """Of each node: how many of its slots hold which task, as far as we know."""

    @property
    def waiting(self) -> int:
        """Episodes that are at no node."""
        return self._schedule.waiting

    @property
    def open(self) -> int:
        """Episodes that nobody has finished."""
        return self.waiting + sum(map(len, self._held.values()))

    def held(self, node: str) -> int:
        """How many episodes a node has."""
        return len(self._held.get(node, ()))

    def deal(self, node: str, slots: int, ahead: int, nodes: int) -> list[EpisodeKey]:
        """Give a node more episodes, but no more than its share of what waits.

        A slot that has played an episode gets another of the same task, because another task costs
        a new env; only when there is none left does the node go over to another task.

        Args:
            node: Which.
            slots: How many episodes it plays at once.
            ahead: How many more it should have, so that no slot has to wait for one.
            nodes: How many nodes there are to share with.
        """
        held = self._held.setdefault(node, {})
        tasks = self._tasks.setdefault(node, Counter())
        count = min(slots + ahead - len(held), math.ceil(self.waiting / max(1, nodes)))
        have = Counter(key.name for key in held)
        dealt = []
        for _ in range(count):
            familiar = ""
            if tasks.total() >= slots:
                familiar = min(tasks, key=lambda task: have[task] / tasks[task])
            key = self._schedule.next(familiar)
            if key is None:
                break
            if key.name != familiar:
                tasks[key.name] += 1
                tasks[familiar] -= 1
                tasks = self._tasks[node] = +tasks
            have[key.name] += 1
            held[key] = None
            dealt.append(key)
        return dealt

    def finish(self, node: str, key: EpisodeKey) -> int | None:
        """A node has finished an episode.

        Returns:
            How often it was lost before that; None if it is not this node's.
        """
        if key not in self._held.get(node, {}):
            return None
        del self._held[node][key]
        lost = self._schedule.attempts(key) - 1
        self._schedule.finished(key)
        return lost

    def lose(self, node: str) -> list[EpisodeKey]:
        """A node is gone: its episodes wait again.

        Returns:
            Those that have been lost too often to be tried again.
        """
        hopeless = []
        self._tasks.pop(node, None)
        for key in reversed(self._held.pop(node, {})):
            if not self._schedule.failed(key, charged=False):
                self._schedule.finished(key)
                hopeless.append(key)
        return hopeless
