"""Scores that papers report, with their sources and protocols, to hold a run against.

The table is ``published.json``. A published score is one number measured by other people in
another set-up; agreeing with it is no proof of sameness, and differing from it none of a fault.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from polyarm.errors import InvalidCall, UnknownName
from polyarm.report import stats
from polyarm.report.compare import p_text, signed_points
from polyarm.report.encoding import plain
from polyarm.report.results import Results
from polyarm.report.stats import Rate


@dataclass(frozen=True, slots=True)
class PublishedScore:
    """One number of one paper; None where the source does not say.

    Attributes:
        name: ``"<policy>/<suite>"``, such as ``"openvla-oft/libero_spatial"``.
        rate: Success rate, 0 to 1.
        source: Paper, arXiv id and table.
        tasks: How many tasks the suite has.
        episodes_per_task: How often each task was run, per seed.
        seeds: How many training or evaluation seeds were averaged.
        max_steps: The horizon.
        remarks: What else is known about the protocol.
        matches: What the full name of each task contains, any of these.
    """

    name: str
    rate: float
    source: str
    tasks: int
    episodes_per_task: int | None
    seeds: int | None
    max_steps: int | None
    remarks: str
    matches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A run against a published score.

    Attributes:
        score: The published score.
        ours: The run's success rate.
        p: Of the exact binomial test that our true rate is the published one.
        inside: Whether the published rate lies inside our 95% interval.
        verdict: The same in plain words.
        warnings: Where the protocols differ or cannot be compared, in sentences.
    """

    score: PublishedScore
    ours: Rate
    p: float
    inside: bool
    verdict: str
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        source = f"Published: {self.score.source}. Protocol: {self.score.remarks}."
        return "\n".join([self.verdict, source, *(f"Note: {one}" for one in self.warnings)])

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        data: dict[str, Any] = plain(asdict(self))
        return {"schema": 1, **data}


def published_scores() -> dict[str, PublishedScore]:
    """All published scores by name."""
    return dict(_table())


def find_published(name: str) -> PublishedScore:
    """The published score of this name.

    Raises:
        UnknownName: With the closest names.
    """
    if name not in _table():
        raise UnknownName("published score", name, _table())
    return _table()[name]


def judge_published(results: Results, name: str) -> PublishedComparison:
    """Hold a run against a published score.

    Raises:
        UnknownName: If there is no such score.
        InvalidCall: If the run has no episode that counts, or several policies.
    """
    score = find_published(name)
    policies = results.by_policy()
    if len(policies) > 1:
        raise InvalidCall(
            f"the run holds {len(policies)} policies ({', '.join(policies)}); a published score is"
            " of one: compare results.by_policy()[name]"
        )
    ours = results.micro
    if ours.rate is None or ours.low is None or ours.high is None:
        raise InvalidCall(
            f"nothing to compare with {name}: no episode of the run ended well or ill"
        )
    p = stats.exact_binomial(ours.successes, ours.episodes, score.rate)
    inside = ours.low <= score.rate <= ours.high
    return PublishedComparison(
        score, ours, p, inside, _verdict(score, ours, p, inside=inside),
        tuple(_warnings(results, score)),
    )  # fmt: skip


def compare_published(results: Results, name: str) -> str:
    """Hold a run against a published score, told in plain words; see `judge_published`."""
    return str(judge_published(results, name))


@cache
def _table() -> dict[str, PublishedScore]:
    text = resources.files("polyarm.report").joinpath("published.json").read_text("utf-8")
    data = json.loads(text)
    return {
        f"{policy}/{suite}": _score(f"{policy}/{suite}", percent, paper, data["suites"][suite])
        for paper in data["papers"]
        for policy, scores in paper["policies"].items()
        for suite, percent in scores.items()
    }


def _score(
    name: str, percent: float, paper: dict[str, Any], suite: dict[str, Any]
) -> PublishedScore:
    protocol = paper["protocol"]
    return PublishedScore(
        name=name,
        rate=percent / 100,
        source=paper["source"],
        tasks=suite["tasks"],
        episodes_per_task=protocol["episodes_per_task"],
        seeds=protocol["seeds"],
        max_steps=protocol["max_steps"].get(name.rpartition("/")[2]),
        remarks=protocol["remarks"],
        matches=tuple(suite["matches"]),
    )


def _verdict(score: PublishedScore, ours: Rate, p: float, *, inside: bool) -> str:
    rate, low, high = ours.rate or 0.0, ours.low or 0.0, ours.high or 0.0
    numbers = (
        f"{rate:.1%} here (95% interval {low:.1%} to {high:.1%}, {ours.episodes:,} episodes)"
        f" against {score.rate:.1%} published for {score.name}, {p_text(p)}"
    )
    if inside:
        return f"Agrees with the published score: {numbers}"
    where = "Above" if rate > score.rate else "Below"
    return f"{where} the published score by {signed_points(rate - score.rate)} points: {numbers}"


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _warnings(results: Results, score: PublishedScore) -> Iterable[str]:
    names = [task.name for task in results.tasks]
    strangers = [name for name in names if not any(part in name for part in score.matches)]
    if strangers:
        suite = score.name.rpartition("/")[2]
        yield (
            f"{len(strangers)} of {len(names)} tasks do not look like {suite}"
            f" (such as {strangers[0]})."
        )
    if len(names) != score.tasks:
        yield f"{_tasks(len(names))} here, {score.tasks} published."
    counts = Counter(episode.key.name for episode in results.episodes)
    ours = sorted(set(counts.values()))
    theirs = score.episodes_per_task
    if theirs is None:
        yield "The source does not say how many episodes it ran per task."
    elif ours != [theirs]:
        here = str(ours[0]) if len(ours) == 1 else f"{ours[0]} to {ours[-1]}"
        yield f"{here} episodes per task here, {theirs} published."
    if score.seeds is not None and score.seeds > 1:
        yield f"The published score is a mean over {score.seeds} seeds, this run is one."
    yield from _horizon(results, score)
    if results.errors:
        yield f"{results.errors:,} episodes ended in an error and do not count here."
    if results.missing:
        yield f"The run is not complete: {results.missing:,} episodes are missing."


def _asked_horizon(results: Results) -> int | None:
    """The horizon in the protocol, if all suites of the run agree on one."""
    suites = results.provenance.get("suites", {})
    found = {suite.get("max_steps") for suite in suites.values() if isinstance(suite, Mapping)}
    return found.pop() if len(found) == 1 else None


def _horizon(results: Results, score: PublishedScore) -> Iterable[str]:
    longest = max(episode.steps for episode in results.episodes)
    asked = _asked_horizon(results)
    if score.max_steps is None:
        yield "The source does not give its horizon."
    elif isinstance(asked, int) and asked != score.max_steps:
        yield f"Episodes may take {asked} steps here, {score.max_steps} in the published protocol."
    elif longest > score.max_steps:
        yield (
            f"Episodes took up to {longest} steps here; the published protocol stops at"
            f" {score.max_steps}."
        )
