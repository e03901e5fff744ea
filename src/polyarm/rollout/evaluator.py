"""The evaluator: plays what is missing, puts it into the journal, and sums it up.

An episode counts when its line is in the journal. Whatever ends a run, the same call goes on with
the episodes that are missing, and the results are those of an undisturbed run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import InvalidCall, StoppedEarly
from polyarm.report.encoding import plain
from polyarm.report.html import require_report_extra
from polyarm.report.results import FILE_NAME, Results
from polyarm.rollout.acting import PolicyLike
from polyarm.rollout.dataset import DatasetExport
from polyarm.rollout.journal import Finished, Journal, read_episodes, storage_errors
from polyarm.rollout.live_envs import Need
from polyarm.rollout.options import EvalOptions, seconds
from polyarm.rollout.plan import Group, condensed, group_tasks, planned_ranges
from polyarm.rollout.player import TIMES, Turn, make_player
from polyarm.rollout.runlock import Job
from polyarm.rollout.sharing import (
    Member,
    Sharing,
    await_fresh_start,
    process_began_at,
)
from polyarm.rollout.suite_settings import refuse_own_options
from polyarm.vector.tasks import TaskLike

_MANY_GROUPS = 4
"""More groups of tasks than this are not all kept alive."""
_TIMES = ("total", *TIMES)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an evaluation is.

    Attributes:
        finished: What has been finished of what is planned, by policy and episode.
        planned: Episodes in all.
        running: Episodes under way.
        seconds: Since the evaluation began.
        made: Episodes finished since then.
        last: The episode that was finished last, if one was just now.
    """

    finished: Finished
    planned: int
    running: int
    seconds: float
    made: int
    last: EpisodeResult | None = None


class Evaluator:
    """Envs that stay alive between evaluations; use it as a context manager.

    Args:
        tasks: What to evaluate on.
        options: How; its ``policy`` and ``task`` are not looked at.
        folder: Where results go, or None to keep them in memory only.
        observed_slots: Slots that are recorded; None for all.
        member: Which of the ranks that share the folder this is; None if nobody shares it.
        job: What starts this process again if it ends: an earlier one of the same job that has the
            folder, on another host, is waited for.

    Attributes:
        groups: The tasks, by what shares a vector env.
        planned: The episodes of each policy.
        finished: What has been finished, by policy and episode.
        sums_up: Whether results are this process's to write, after a run: it is the first rank, or
            the first of those that are left, and knows more than has been written.
    """

    def __init__(
        self,
        tasks: Sequence[TaskLike],
        options: EvalOptions,
        folder: Path | None = None,
        *,
        observed_slots: Sequence[int] | None = None,
        member: Member | None = None,
        job: Job = Job(),  # noqa: B008  it cannot be changed
    ) -> None:
        if folder is not None:
            require_report_extra()
        elif member is not None:
            raise InvalidCall("ranks share a run by its folder: give out")
        elif options.recorded != "none" or options.save_trajectories or options.save_dataset:
            raise InvalidCall("videos, trajectories and datasets need a folder: give out")
        if options.ray is not None and member is not None:
            raise InvalidCall("ray deals the episodes to its nodes: run one process, not ranks")
        if options.save_dataset and observed_slots is not None:
            raise InvalidCall("a dataset needs all slots: leave observed_slots out")
        refuse_own_options(options.suite_settings())
        self._options = options
        self._folder = folder
        self._member, self._job = member, job
        self._sharing: Sharing | None = None
        self.groups = group_tasks(tasks, options)
        self._dataset: DatasetExport | None = None
        if folder is not None and options.save_dataset is not None:
            self._dataset = DatasetExport(options, folder, self.groups)
        self._player = make_player(options, folder, observed_slots, self._dataset)
        for group in self.groups:
            self._player.envs.check_recording(group)
        self._protocol = self._player.protocol(self.groups)
        self.planned = [key for group in self.groups for key in group.keys(options)]
        self._policies: dict[str, Any] = {}
        self._wall_before = dict.fromkeys(_TIMES, 0.0)
        self._wall_of_others: list[Mapping[str, float]] = []
        self._total_s = 0.0
        self._opened = False
        # A rank that is slow to start does not retry what the others have just retried.
        self._retried_before = math.inf if member is None else process_began_at()
        self.finished: Finished = {}
        self.sums_up = True

    @property
    def notes(self) -> list[str]:
        """What readers of the results should know."""
        return self._player.notes

    def stop(self) -> None:
        """End the current run: when the policy has answered, or the envs are built."""
        self._player.stopping = True

    def run(
        self,
        policies: Mapping[str, PolicyLike],
        show: Callable[[Progress], None] | None = None,
    ) -> Results:
        """Evaluate policies, by label, one after the other on the same envs.

        Args:
            policies: A single one may have the label "". With a folder, what a label has finished
                is not run again; without, every call starts anew.
            show: Called after every episode, and now and then.
        """
        began, spent_before = time.perf_counter(), self._total_s
        stop_after = seconds(self._options.stop_after)
        self._player.policies.unload()  # a checkpoint may have changed since
        planned = {(label, key) for label in policies for key in self.planned}
        made = 0
        try:
            with self._journal(policies) as journal:
                known = {key: self.finished[key] for key in planned if key in self.finished}
                for result in self._play(policies):
                    last = result
                    if result is not None:
                        self._enter(journal, result)
                        known[result.policy, result.key] = result
                        made += 1
                    elif journal is not None:
                        journal.beat()
                    for other in self._sharing.news() if self._sharing else ():
                        if (other.policy, other.key) in planned:
                            known[other.policy, other.key] = last = other
                            made += 1
                    spent = time.perf_counter() - began
                    if show is not None:
                        running = self._player.running
                        show(Progress(known, len(planned), running, spent, made, last))
                    if stop_after is not None and spent > stop_after:
                        self.stop()
                self._total_s = spent_before + time.perf_counter() - began
                self._conclude(journal, list(policies))
        except BaseException:
            self.close()
            raise
        finally:
            self._total_s = spent_before + time.perf_counter() - began
            self._player.stopping = False
        return self.results(list(policies))

    def results(self, labels: Sequence[str]) -> Results:
        """What is known so far about these policies."""
        keys = [(label, key) for label in labels for key in self.planned]
        spent = self._spent()
        wall = {name: self._wall_before[name] + spent[name] for name in _TIMES}
        if self._player.on_gpu and wall["total"]:
            wall["gpu_busy_share"] = min(1.0, wall["policy"] / wall["total"])
        return Results(
            episodes=tuple(self.finished[key] for key in keys if key in self.finished),
            planned=len(keys),
            provenance=condensed(self._run_file()["protocol"]),
            options=self._options.as_dict(),
            wall=wall,
            notes=tuple(self.notes),
        )

    def close(self) -> None:
        """Close all envs, and the connections of policies that run elsewhere."""
        self._player.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Playing.

    def _play(self, policies: Mapping[str, PolicyLike]) -> Iterator[EpisodeResult | None]:
        """Play what is missing, policy after policy; yields None now and then."""
        needs = {group: self._need(group, policies) for group in self.groups}
        while True:
            for label, policy in policies.items():
                for group in self.groups:
                    missing = self._missing(label, group)
                    if missing and not self._player.stopping:
                        yield None
                        turn = Turn(label, policy, group, missing, needs[group])
                        yield from self._play_turn(turn)
                        if len(self.groups) > _MANY_GROUPS:
                            self._player.envs.close(group)
            if self._sharing is None or self._player.stopping or not self._left(policies):
                return
            self._sharing.wait()  # others play the rest, and may not come to its end
            yield None

    def _play_turn(self, turn: Turn) -> Iterator[EpisodeResult | None]:
        if self._sharing is None or self._member is None:
            yield from self._player.play(turn)
            return
        attempts = self._options.max_attempts
        schedule = self._sharing.schedule(turn.label, turn.missing, max_attempts=attempts)
        first = self._member.first_of(turn.missing)
        if schedule.begin(dict.fromkeys(key.name for key in first)):
            yield from self._player.play(replace(turn, missing=first), schedule)

    def _left(self, policies: Iterable[str]) -> bool:
        """Whether anything is missing, whoever plays it."""
        return any(self._missing(label, group) for label in policies for group in self.groups)

    def _need(self, group: Group, policies: Mapping[str, PolicyLike]) -> Need:
        missing = max(len(self._missing(label, group)) for label in policies)
        if self._sharing is not None:
            missing = self._sharing.fair_share(missing)
        looks = bool(self._options.cameras) and any(
            self._player.policies.looks(policy, self.groups[0]) for policy in policies.values()
        )
        return Need(looks, missing)

    def _missing(self, label: str, group: Group) -> list[EpisodeKey]:
        return [key for key in group.keys(self._options) if self._is_missing(label, key)]

    def _is_missing(self, label: str, key: EpisodeKey) -> bool:
        result = self.finished.get((label, key))
        if result is None or not self._options.retry_errors:
            return result is None
        return result.outcome == "error" and result.finished_at < self._retried_before

    def _enter(self, journal: Journal | None, result: EpisodeResult) -> None:
        if journal is not None:
            journal.append(result)
        if self._sharing is not None:
            self._sharing.entered(result)
        self.finished[result.policy, result.key] = result

    # The folder.

    @contextmanager
    def _journal(self, policies: Mapping[str, PolicyLike]) -> Iterator[Journal | None]:
        for label, policy in policies.items():
            self._policies[label] = plain(self._player.policies.fingerprint(policy, self.groups[0]))
        if self._folder is None:
            self.finished.clear()  # nothing but a journal says what is still true
            self._total_s = 0.0
            self._player.forget()
            yield None
            return
        journal = self._open_journal(self._folder)
        try:
            self.finished = journal.finished
            if self._member is not None:
                self._sharing = Sharing(self._folder, journal, self._member, self._is_missing)
            if self._dataset is not None and self._is_first:
                self._dataset.begin(self.finished, self.planned)
            if not self._opened:
                self._go_on_from(self._folder)
            self._opened = True
            yield journal
        except BaseException:
            self.close()  # while the claims are held: workers may be writing these episodes' files
            raise
        finally:
            if self._sharing is not None:
                self._sharing.close()
                self._sharing = None
            journal.close()

    def _open_journal(self, folder: Path) -> Journal:
        fresh = self._options.fresh and not self._opened
        run = self._run_file()
        waits: dict[str, Any] = {"job": self._job, "waiting": self._heed_stop}
        if self._member is None:
            return Journal(folder, run, fresh=fresh, **waits)
        if fresh and not self._is_first:
            await_fresh_start(folder, self._member.job, lambda: self._player.stopping)
        run["job"], number = self._member.job, self._member.number
        first = fresh and self._is_first
        return Journal(folder, run, rank=number, alone=False, fresh=first, **waits)

    def _heed_stop(self) -> None:
        if self._player.stopping:
            raise StoppedEarly(f"stopped while waiting for {self._folder}; nothing was begun")

    @property
    def _is_first(self) -> bool:
        """Whether this is the one of several ranks that begins and ends for all."""
        return self._member is None or self._member.number == 0

    def _conclude(self, journal: Journal | None, labels: Sequence[str]) -> None:
        """Sum up what all ranks have done, or leave it to the one that does."""
        if self._sharing is not None and self._folder is not None:
            self.sums_up = self._sum_up(self._sharing, self._folder, labels)
        if self._dataset is not None and journal is not None and self.sums_up:
            self._dataset.write(self.finished, self.planned, journal.beat)

    def _sum_up(self, sharing: Sharing, folder: Path, labels: Sequence[str]) -> bool:
        """Gather what the ranks have to say, if nobody before this one does; returns whether."""
        stopped = self._player.stopping
        first_left = sharing.is_first_left(stopped=stopped)
        if first_left:
            said = sharing.let_others_leave(stopped=stopped)
        else:
            sharing.say({"total": self._total_s, **self._player.wall}, self.notes)
        self.finished = read_episodes(folder)  # each once, whoever reads
        if not first_left or self._is_told(folder, labels):
            return False
        self._wall_of_others += [one["wall"] for one in said]
        for one in said:
            self._player.add_notes(one["notes"])
        if not self._is_first:  # those before may have ended since this rank began
            self._wall_before = dict.fromkeys(_TIMES, 0.0)
            self._go_on_from(folder)
        with storage_errors(folder):  # before the lock is given up: one that comes later looks here
            self.results(labels).write(folder)
        return True

    def _is_told(self, folder: Path, labels: Sequence[str]) -> bool:
        """Whether a rank before this one has left results that hold all that is finished."""
        if self._is_first or not (folder / FILE_NAME).exists():
            return False
        told = {(one.policy, one.key): one.outcome for one in Results.read(folder).episodes}
        planned = {(label, key) for label in labels for key in self.planned}
        return all(
            told.get(key) == self.finished[key].outcome for key in planned & set(self.finished)
        )

    def _spent(self) -> dict[str, float]:
        """Seconds by what they were spent on: the mean of ranks, which worked side by side."""
        own = {"total": self._total_s, **self._player.wall}
        everyone = [own, *self._wall_of_others]
        mean = {name: sum(wall[name] for wall in everyone) / len(everyone) for name in own}
        return {**mean, "total": max(wall["total"] for wall in everyone)}

    def _go_on_from(self, folder: Path) -> None:
        """Add to what earlier runs of this folder took and noted."""
        if (folder / FILE_NAME).exists():
            before = Results.read(folder)
            for name in _TIMES:
                self._wall_before[name] += before.wall.get(name, 0.0)
            self._player.add_notes(before.notes)

    def _run_file(self) -> dict[str, Any]:
        return {
            "protocol": {**self._protocol, "policies": dict(self._policies)},
            "options": self._options.as_dict(),
            "planned": planned_ranges(self.groups, self._options),
        }
