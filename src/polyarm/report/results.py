"""The results of a run: its episodes, what they add up to, and the file that keeps them.

Errored episodes never count in a rate or a mean; they are counted beside it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeResult
from polyarm.errors import InvalidCall, MissingExtra
from polyarm.report import stats
from polyarm.report.encoding import decode_episode, encode_episode, plain, write_atomically
from polyarm.report.stats import Rate

__all__ = [
    "Results",
    "SuiteSummary",
    "TaskSummary",
    "decode_episode",
    "encode_episode",
    "policy_step",
]

SCHEMA = 1
FILE_NAME = "results.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """What the episodes of a task, or of anything else, add up to.

    Attributes:
        name: The task's full name.
        rate: Success rate, errors excluded.
        errors: Episodes that ended in an error.
        mean_return: Of the episodes without error, like the other means; None if there are none.
        mean_steps: Env steps per episode.
        mean_seconds: Wall time per episode.
    """

    name: str
    rate: Rate
    errors: int
    mean_return: float | None
    mean_steps: float | None
    mean_seconds: float | None


@dataclass(frozen=True, slots=True)
class SuiteSummary:
    """What the tasks of a suite add up to.

    Attributes:
        name: The suite's name.
        micro: Success rate over all its episodes.
        macro: Mean of its tasks' success rates.
        errors: Episodes that ended in an error.
        tasks: Its tasks.
    """

    name: str
    micro: Rate
    macro: Rate
    errors: int
    tasks: tuple[TaskSummary, ...]


@dataclass(frozen=True)
class Results:
    """All finished episodes of a run, and what is known about how they came about.

    Attributes:
        episodes: At most one per policy and key.
        planned: How many episodes the run should have, over all policies.
        provenance: What tells this run from others: versions, hardware, protocol …, as JSON.
        options: What was asked for, as JSON.
        wall: Seconds by what the run's wall time was spent on: ``total``, ``sim``, ``frames``,
            ``policy``, ``waiting``, ``startup``; and ``gpu_busy_share``, 0 to 1, where known.
        notes: Sentences for whoever reads the report.
    """

    episodes: tuple[EpisodeResult, ...]
    planned: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    wall: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def tasks(self) -> tuple[TaskSummary, ...]:
        """The tasks, in the order in which they first appear, over all policies."""
        by_task: dict[str, list[EpisodeResult]] = {}
        for episode in self.episodes:
            by_task.setdefault(episode.key.name, []).append(episode)
        return tuple(_summary(name, episodes) for name, episodes in by_task.items())

    @cached_property
    def suites(self) -> tuple[SuiteSummary, ...]:
        """The suites, in the order in which they first appear."""
        suite_of = {episode.key.name: episode.key.suite for episode in self.episodes}
        by_suite: dict[str, list[TaskSummary]] = {}
        for task in self.tasks:
            by_suite.setdefault(suite_of[task.name], []).append(task)
        return tuple(_suite(name, tasks) for name, tasks in by_suite.items())

    @cached_property
    def micro(self) -> Rate:
        """Success rate over all episodes, every episode counting the same."""
        return _micro(self.tasks)

    @cached_property
    def macro(self) -> Rate:
        """Mean of the tasks' success rates, every task counting the same."""
        return stats.macro_rate(task.rate for task in self.tasks)

    @property
    def errors(self) -> int:
        """Episodes that ended in an error."""
        return sum(episode.outcome == "error" for episode in self.episodes)

    @property
    def missing(self) -> int:
        """Planned episodes that have not been run to an end."""
        return max(0, self.planned - len(self.episodes))

    @property
    def success_rate(self) -> float | None:
        """Successes over episodes without error, 0 to 1; None if there are none."""
        counted = [episode for episode in self.episodes if episode.outcome != "error"]
        if not counted:
            return None
        return sum(episode.outcome == "success" for episode in counted) / len(counted)

    def by_policy(self) -> dict[str, Results]:
        """The results of each policy, by training step and then in order of appearance.

        Wall time cannot be told apart by policy and is left out; ``planned`` is shared out
        equally.
        """
        found: dict[str, list[EpisodeResult]] = {}
        for episode in self.episodes:
            found.setdefault(episode.policy, []).append(episode)
        if len(found) <= 1:
            return dict.fromkeys(found, self)
        share = self.planned // len(found)
        return {
            name: replace(self, episodes=tuple(found[name]), planned=share, wall={})
            for name in sorted(found, key=lambda name: _unknown_last(policy_step(name)))
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values, with a ``summary`` for readers without polyarm."""
        return {
            "schema": SCHEMA,
            "planned": self.planned,
            "summary": self._summary_json(),
            "notes": list(self.notes),
            "options": plain(self.options),
            "provenance": plain(self.provenance),
            "wall": plain(self.wall),
            "episodes": [encode_episode(episode) for episode in self.episodes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Results:
        """What `to_json` gave; keys that are not known are ignored.

        Raises:
            InvalidCall: If the data is of another schema or damaged.
        """
        if data.get("schema") != SCHEMA:
            raise InvalidCall(
                f"results of schema {data.get('schema')!r} cannot be read; this version of polyarm"
                f" reads schema {SCHEMA}"
            )
        return cls(
            episodes=tuple(decode_episode(one) for one in data.get("episodes", ())),
            planned=int(data.get("planned", 0)),
            provenance=data.get("provenance", {}),
            options=data.get("options", {}),
            wall={name: float(value) for name, value in data.get("wall", {}).items()},
            notes=tuple(data.get("notes", ())),
        )

    def write(self, folder: Path) -> Path:
        """Write ``results.json`` into the folder, whole or not at all; returns its path."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        return write_atomically(Path(folder) / FILE_NAME, text + "\n")

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read ``results.json`` from a run's folder.

        Raises:
            InvalidCall: If there is none, or it cannot be read.
        """
        path = Path(folder) / FILE_NAME
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InvalidCall(
                f"there is no {FILE_NAME} in {folder}; give the folder of a run, and if the run was"
                f" cut short, write it first: polyarm report {folder}"
            ) from error
        except ValueError as error:
            raise InvalidCall(
                f"{path} is not JSON ({error}); write it anew: polyarm report {folder}"
            ) from error
        return cls.from_json(data)

    def _summary_json(self) -> dict[str, Any] | None:
        try:
            micro, macro = self.micro, self.macro
        except MissingExtra as error:
            # The episodes are what must not be lost; the summary can be had later.
            _log.warning("%s holds no summary: %s", FILE_NAME, error)
            return None
        return {
            "micro": _rate_json(micro),
            "macro": _rate_json(macro),
            "errors": self.errors,
            "missing": self.missing,
            "tasks": [_task_json(task) for task in self.tasks],
        }


def policy_step(policy: str) -> int | None:
    """The training step in a policy's name: its last integer, None if there is none."""
    numbers = re.findall(r"\d+", policy)
    return int(numbers[-1]) if numbers else None


def _summary(name: str, episodes: Iterable[EpisodeResult]) -> TaskSummary:
    episodes = tuple(episodes)
    counted = [episode for episode in episodes if episode.outcome != "error"]
    successes = sum(episode.outcome == "success" for episode in counted)
    return TaskSummary(
        name=name,
        rate=stats.success_rate(successes, len(counted)),
        errors=len(episodes) - len(counted),
        mean_return=_mean(episode.total_reward for episode in counted),
        mean_steps=_mean(episode.steps for episode in counted),
        mean_seconds=_mean(episode.seconds for episode in counted),
    )


def _suite(name: str, tasks: Iterable[TaskSummary]) -> SuiteSummary:
    tasks = tuple(tasks)
    macro = stats.macro_rate(task.rate for task in tasks)
    return SuiteSummary(name, _micro(tasks), macro, sum(task.errors for task in tasks), tasks)


def _micro(tasks: Iterable[TaskSummary]) -> Rate:
    rates = [task.rate for task in tasks]
    return stats.success_rate(
        sum(rate.successes for rate in rates), sum(rate.episodes for rate in rates)
    )


def _mean(values: Iterable[float]) -> float | None:
    values = tuple(values)
    # Not fsum: it refuses to add infinities of both signs, which a reward may well be.
    return sum(values) / len(values) if values else None


def _unknown_last(step: int | None) -> tuple[bool, int]:
    return step is None, step or 0


def _task_json(task: TaskSummary) -> dict[str, Any]:
    return {
        "name": task.name,
        **_rate_json(task.rate),
        "errors": task.errors,
        "mean_return": plain(task.mean_return),
        "mean_steps": plain(task.mean_steps),
        "mean_seconds": plain(task.mean_seconds),
    }


def _rate_json(rate: Rate) -> dict[str, Any]:
    return {
        "successes": rate.successes,
        "episodes": rate.episodes,
        "rate": rate.rate,
        "low": rate.low,
        "high": rate.high,
    }
