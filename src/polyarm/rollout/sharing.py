"""A run's folder as the queue of several ranks: who plays which episode, and when all is done.

A rank claims an episode, plays it, enters it into its journal and then gives the claim up, in this
order. Whoever gets a claim reads the journals once more before playing: so an episode that is in
one of them is not played again, and one whose claim is left behind by a rank that is gone is taken
over. All this is files in the folder, so ranks may be started by anything and come and go.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import RunConflict, StoppedEarly
from polyarm.report.encoding import write_atomically
from polyarm.rollout.journal import CLAIM, SPENT, Journal, storage_errors, was_begun_by
from polyarm.rollout.runlock import start_of
from polyarm.rollout.schedule import Schedule

POLL_S = 0.5
"""How often a rank that waits looks at what the others have finished."""
_LEAVING_S = 10.0
_FRESH_S = 900.0


@dataclass(frozen=True, slots=True)
class Member:
    """One of the ranks that share a run.

    Attributes:
        number: Which one; no other that is alive has the same.
        world: How many there are meant to be.
        job: What they were started by, the same for all of them.
        together: Whether they were started at the same time, and do not come and go.
    """

    number: int
    world: int
    job: str
    together: bool = True

    def first_of(self, keys: Sequence[EpisodeKey]) -> list[EpisodeKey]:
        """Those whose tasks this rank begins with: other ones than its neighbours, if it can be."""
        tasks = list(dict.fromkeys(key.name for key in keys))
        mine = set(tasks[self.number % max(1, len(tasks)) :: self.world])
        return [key for key in keys if key.name in mine]


class SharedSchedule(Schedule):
    """Episodes that are claimed when a slot is free, and not before.

    Args:
        keys: Episodes that nobody has finished, as far as is known.
        take: Claims one; returns whether it is to be played here.
        max_attempts: As for `Schedule`.
    """

    def __init__(
        self, keys: Iterable[EpisodeKey], take: Callable[[EpisodeKey], bool], *, max_attempts: int
    ) -> None:
        super().__init__((), max_attempts=max_attempts)
        self._take = take
        self._open: dict[str, deque[EpisodeKey]] = {}
        for key in keys:
            self._open.setdefault(key.name, deque()).append(key)

    def begin(self, tasks: Iterable[str]) -> bool:
        """Claim a first episode, of these tasks if it can be; returns whether there was one."""
        return any(map(self._claim, tasks)) or self._claim_any()

    def next(self, task: str) -> EpisodeKey | None:
        """The episode for a slot that holds ``task``; None when all are taken."""
        if not self.waits(task) and not self._claim(task) and not self.waiting:
            self._claim_any()
        return super().next(task)

    def drop(self, task: str) -> list[EpisodeKey]:
        """Give up what nobody plays of a task, and return it."""
        left = self._open.pop(task, ())
        return [*super().drop(task), *filter(self._take, left)]

    def _claim_any(self) -> bool:
        while self._open:
            furthest_behind = max(
                self._open, key=lambda task: len(self._open[task]) / (1 + self.running(task))
            )
            if self._claim(furthest_behind):
                return True
        return False

    def _claim(self, task: str) -> bool:
        """Claim the next episode of a task that is to be had."""
        left = self._open.get(task, deque())
        while left:
            if self._take(key := left.popleft()):
                self.add([key])
                return True
        self._open.pop(task, None)
        return False


class Sharing:
    """This rank's part in a run; to be closed before its journal is.

    Args:
        folder: The run's.
        journal: This rank's.
        member: Which rank this is.
        is_missing: Whether an episode of a policy has to be played, by what the journal knows.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        member: Member,
        is_missing: Callable[[str, EpisodeKey], bool],
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._member = member
        self._is_missing = is_missing
        self._held: set[Path] = set()
        self._news: list[EpisodeResult] = []
        self._read_at = 0.0

    def schedule(
        self, label: str, keys: Iterable[EpisodeKey], *, max_attempts: int
    ) -> SharedSchedule:
        """What is to be played here of a policy's episodes."""
        return SharedSchedule(keys, lambda key: self._take(label, key), max_attempts=max_attempts)

    def entered(self, result: EpisodeResult) -> None:
        """An episode is in the journal: its claim is given up."""
        self._give_up(self._claim(result.policy, result.key))

    def news(self) -> list[EpisodeResult]:
        """What others have finished since the last time."""
        if time.monotonic() - self._read_at > POLL_S:
            self._read_others()
        news, self._news = self._news, []
        return news

    def wait(self) -> None:
        """Let the others go on for a moment."""
        time.sleep(POLL_S)
        self._read_others()

    def fair_share(self, episodes: int) -> int:
        """How many of so many episodes a rank plays, if all are as fast as one another."""
        ranks = self._member.world if self._member.together else 1 + len(self._journal.others())
        return -(-episodes // ranks)

    def is_first_left(self, *, stopped: bool) -> bool:
        """Whether no rank before this one is there, so that it is the one to sum up.

        Args:
            stopped: Whether it was told to stop; else it waits a little for one before it, which
                may have been slower to start.
        """
        patient = self._member.together and not stopped
        deadline = time.monotonic() + (_LEAVING_S if patient else 0.0)
        while self._member.number > 0 and not self._one_before_is_alive():
            if time.monotonic() >= deadline:
                return True
            self._journal.beat()
            time.sleep(POLL_S / 5)
        return self._member.number == 0

    def _one_before_is_alive(self) -> bool:
        return any(other.get("rank", 0) < self._member.number for other in self._journal.others())

    def let_others_leave(self, *, stopped: bool) -> list[Mapping[str, Any]]:
        """Wait until the others have left, if they do soon; returns what they said then.

        Args:
            stopped: Whether this rank was told to stop; the others may not have been.
        """
        deadline = time.monotonic() + (_LEAVING_S / 2 if stopped else _LEAVING_S)
        while self._journal.others() and time.monotonic() < deadline:
            self._journal.beat()
            time.sleep(POLL_S / 5)
        said = []
        for path in self._folder.glob(SPENT.format("*")):
            with contextlib.suppress(OSError, ValueError):
                said.append(json.loads(path.read_text()))
                path.unlink()
        return said

    def say(self, wall: Mapping[str, float], notes: Sequence[str]) -> None:
        """Leave what this rank has spent and noted for the one that sums up."""
        text = json.dumps({"wall": dict(wall), "notes": list(notes)})
        with storage_errors(self._folder):
            write_atomically(self._folder / SPENT.format(self._member.number), text)

    def close(self) -> None:
        """Give up all claims."""
        for path in list(self._held):
            self._give_up(path)

    def _take(self, label: str, key: EpisodeKey) -> bool:
        path = self._claim(label, key)
        with storage_errors(self._folder):
            if not self._is_missing(label, key) or not self._journal.lock.claim(path):
                return False
        self._held.add(path)
        self._read_others()  # it may have been finished by whoever had the claim before
        if self._is_missing(label, key):
            return True
        self._give_up(path)
        return False

    def _read_others(self) -> None:
        self._read_at = time.monotonic()
        self._news += self._journal.read_others()

    def _give_up(self, path: Path) -> None:
        if path in self._held:
            self._held.remove(path)
            path.unlink(missing_ok=True)

    def _claim(self, label: str, key: EpisodeKey) -> Path:
        # In the folder itself: making one there renews what NFS knows about the journals in it.
        name = hashlib.sha256(repr((label, key)).encode(errors="backslashreplace")).hexdigest()
        return self._folder / f"{CLAIM}{name[:24]}"


def forget_said(folder: Path) -> None:
    """Remove what ranks have said: it is in the results, and the next to sum up would add it."""
    for path in folder.glob(SPENT.format("*")):
        path.unlink(missing_ok=True)


def await_fresh_start(folder: Path, job: str, stopping: Callable[[], bool]) -> None:
    """Wait until the first rank of a job has cleared the folder.

    Args:
        folder: The run's.
        job: The first rank's, and ours.
        stopping: Whether to wait no longer.

    Raises:
        RunConflict: It has not for a long time.
        StoppedEarly: It has not until now.
    """
    deadline = time.monotonic() + _FRESH_S
    while not was_begun_by(folder, job):
        if stopping():
            raise StoppedEarly(f"stopped before the first rank has cleared {folder} for --fresh")
        if time.monotonic() > deadline:
            raise RunConflict(
                f"the first rank has not cleared {folder} for --fresh within {_FRESH_S:.0f} s;"
                " clear it with a single process, or leave --fresh out"
            )
        time.sleep(POLL_S / 5)


def process_began_at() -> float:
    """When this process was started, by the clock on the wall; before its slow imports."""
    ticks = float(start_of(os.getpid()) or 0)
    ran_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - ran_s
