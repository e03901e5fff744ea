"""Which episode runs next, and where: one queue over all tasks. Pure bookkeeping, no processes.

A slot that is free takes an episode of the task it holds, because another task costs a new env;
only when its task has none left does it take over from the task that is furthest behind.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from polyarm.contracts import EpisodeKey

_PATIENCE = 10
"""Neighbours that never stop crashing end an episode after so many times its own attempts."""


class Schedule:
    """Episodes that wait, run, and are run again.

    Args:
        keys: Episodes to run; taken from as slots become free, so it may have no end.
        lookahead: How many to know of in advance.
        max_attempts: How often an episode may fail for reasons of its own.
    """

    def __init__(
        self, keys: Iterable[EpisodeKey], *, lookahead: int = 1 << 62, max_attempts: int = 3
    ) -> None:
        self._source: Iterator[EpisodeKey] = iter(keys)
        self._lookahead = lookahead
        self._max_attempts = max_attempts
        self._waiting: dict[str, deque[EpisodeKey]] = {}
        self._number = 0
        self._running: Counter[str] = Counter()
        self._charged: Counter[EpisodeKey] = Counter()
        self._attempts: Counter[EpisodeKey] = Counter()
        self._draw()

    @property
    def waiting(self) -> int:
        """Known episodes that nobody runs yet."""
        return self._number

    def waits(self, task: str) -> bool:
        """Whether a known episode of a task waits."""
        return bool(self._waiting.get(task))

    def running(self, task: str) -> int:
        """Episodes of a task that are under way."""
        return self._running[task]

    def add(self, keys: Iterable[EpisodeKey]) -> None:
        """Put more episodes at the end of the queue."""
        for key in keys:
            self._waiting.setdefault(key.name, deque()).append(key)
            self._number += 1

    def next(self, task: str) -> EpisodeKey | None:
        """The episode for a slot that holds ``task``; None when nothing waits."""
        self._draw()
        if not self._number:
            return None
        if not self.waits(task):
            task = max(self._waiting, key=self._urgency)
        key = self._waiting[task].popleft()
        if not self._waiting[task]:
            del self._waiting[task]
        self._number -= 1
        self._running[task] += 1
        self._attempts[key] += 1
        return key

    def attempts(self, key: EpisodeKey) -> int:
        """How often an episode has been started."""
        return self._attempts[key]

    def finished(self, key: EpisodeKey) -> None:
        """An episode is over."""
        self._running[key.name] -= 1
        self._charged.pop(key, None)
        self._attempts.pop(key, None)

    def failed(self, key: EpisodeKey, *, charged: bool = True) -> bool:
        """An episode was cut short; returns whether it will run again.

        Args:
            key: The episode.
            charged: Whether it is its own fault; a neighbour's crash costs it nothing.
        """
        self._charged[key] += charged
        enough = self._attempts[key] >= _PATIENCE * self._max_attempts
        if self._charged[key] >= self._max_attempts or enough:
            return False
        self._running[key.name] -= 1
        self._waiting.setdefault(key.name, deque()).appendleft(key)
        self._number += 1
        return True

    def drop(self, task: str) -> list[EpisodeKey]:
        """Give up what waits of a task, and return it."""
        dropped = list(self._waiting.pop(task, ()))
        self._number -= len(dropped)
        return dropped

    def _urgency(self, task: str) -> float:
        return len(self._waiting[task]) / (1 + self.running(task))

    def _draw(self) -> None:
        while self._number < self._lookahead:
            key = next(self._source, None)
            if key is None:
                return
            self.add([key])
