"""The evaluator: plays what is missing, puts it into the journal, and sums it up.

An episode counts when its line is in the journal. Whatever ends a run, the same call goes on with
the episodes that are missing, and the results are those of an undisturbed run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import InvalidCall
from polyarm.recording.filenames import stale_parts
from polyarm.report.encoding import plain
from polyarm.report.html import require_report_extra
from polyarm.report.results import Results
from polyarm.rollout.acting import PolicyLike
from polyarm.rollout.dataset import DatasetExport
from polyarm.rollout.journal import KEPT_EPISODES, Finished, Journal
from polyarm.rollout.live_envs import Need
from polyarm.rollout.options import EvalOptions, seconds
from polyarm.rollout.plan import Group, condensed, group_tasks, planned_ranges, protocol
from polyarm.rollout.player import TIMES, Player, Turn
from polyarm.rollout.suite_settings import refuse_own_options
from polyarm.vector.make import TaskLike

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

    Attributes:
        groups: The tasks, by what shares a vector env.
        planned: The episodes of each policy.
        finished: What has been finished, by policy and episode.
    """

    def __init__(
        self,
        tasks: Sequence[TaskLike],
        options: EvalOptions,
        folder: Path | None = None,
        *,
        observed_slots: Sequence[int] | None = None,
    ) -> None:
        if folder is not None:
            require_report_extra()
        elif options.recorded != "none" or options.save_trajectories or options.save_dataset:
            raise InvalidCall("videos, trajectories and datasets need a folder: give out")
        if options.save_dataset and observed_slots is not None:
            raise InvalidCall("a dataset needs all slots: leave observed_slots out")
        refuse_own_options(options.suite_settings())
        self._options = options
        self._folder = folder
        self.groups = group_tasks(tasks, options)
        self._dataset: DatasetExport | None = None
        if folder is not None and options.save_dataset is not None:
            self._dataset = DatasetExport(options, folder, self.groups)
        self._player = Player(options, folder, observed_slots, self._dataset)
        for group in self.groups:
            self._player.envs.check_recording(group)
        self._protocol = protocol(self.groups, options)
        self.planned = [key for group in self.groups for key in group.keys(options)]
        self._policies: dict[str, Any] = {}
        self._wall_before = dict.fromkeys(_TIMES, 0.0)
        self._total_s = 0.0
        self._opened = False
        self.finished: Finished = {}

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
        began = time.perf_counter()
        stop_after = seconds(self._options.stop_after)
        self._player.policies.unload()  # a checkpoint may have changed since
        planned = {(label, key) for label in policies for key in self.planned}
        made = 0
        try:
            with self._journal(policies) as journal:
                known = {key: self.finished[key] for key in planned if key in self.finished}
                for result in self._play(policies):
                    if result is not None:
                        self._enter(journal, result)
                        known[result.policy, result.key] = result
                        made += 1
                    elif journal is not None:
                        journal.beat()
                    spent = time.perf_counter() - began
                    if show is not None:
                        running = self._player.running
                        show(Progress(known, len(planned), running, spent, made, result))
                    if stop_after is not None and spent > stop_after:
                        self.stop()
                if self._dataset is not None and journal is not None:
                    self._dataset.write(self.finished, self.planned, journal.beat)
        except BaseException:
            self.close()
            raise
        finally:
            self._total_s += time.perf_counter() - began
            self._player.stopping = False
        return self.results(list(policies))

    def results(self, labels: Sequence[str]) -> Results:
        """What is known so far about these policies."""
        keys = [(label, key) for label in labels for key in self.planned]
        spent = {"total": self._total_s, **self._player.wall}
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
        for label, policy in policies.items():
            for group in self.groups:
                missing = self._missing(label, group)
                if missing and not self._player.stopping:
                    yield None
                    yield from self._player.play(Turn(label, policy, group, missing, needs[group]))
                    if len(self.groups) > _MANY_GROUPS:
                        self._player.envs.close(group)

    def _need(self, group: Group, policies: Mapping[str, PolicyLike]) -> Need:
        missing = max(len(self._missing(label, group)) for label in policies)
        looks = bool(self._options.cameras) and any(
            self._player.policies.looks(policy, self.groups[0]) for policy in policies.values()
        )
        return Need(looks, missing)

    def _missing(self, label: str, group: Group) -> list[EpisodeKey]:
        retried = ("error",) if self._options.retry_errors else ()
        missing = []
        for key in group.keys(self._options):
            result = self.finished.get((label, key))
            if result is None or result.outcome in retried:
                missing.append(key)
        return missing

    def _enter(self, journal: Journal | None, result: EpisodeResult) -> None:
        if journal is not None:
            journal.append(result)
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
        fresh = self._options.fresh and not self._opened
        journal = Journal(self._folder, self._run_file(), fresh=fresh)
        try:
            for name in KEPT_EPISODES:
                for part in stale_parts(self._folder / name):
                    part.unlink(missing_ok=True)
            self.finished = dict(journal.finished)
            if self._dataset is not None:
                self._dataset.begin(self.finished, self.planned)
            if not self._opened:
                self._go_on_from(self._folder)
            self._opened = True
            yield journal
        finally:
            journal.close()

    def _go_on_from(self, folder: Path) -> None:
        """Add to what earlier runs of this folder took and noted."""
        if (folder / "results.json").exists():
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
