"""``polyarm compare``: two runs against each other, or one against a published score."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from polyarm.cli import console
from polyarm.errors import InvalidCall

if TYPE_CHECKING:
    from polyarm.report.compare import Comparison, PairedOutcome
    from polyarm.report.published import PublishedComparison
    from polyarm.report.stats import Rate


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of the comparison.

    Attributes:
        a: The folder of a run.
        b: The folder of the run to compare it with, episode by episode.
        published: A published score to compare run A with, such as openvla-oft/libero_spatial; a
            name that does not exist shows those that do.
        json: Print the comparison as one JSON object, and nothing else.
    """

    a: Annotated[str, tyro.conf.Positional]
    b: Annotated[str | None, tyro.conf.Positional] = None
    published: str | None = None
    json: bool = False


def run(options: CompareOptions) -> int:
    """Compare and show it; returns the exit code."""
    if (options.b is None) == (options.published is None):
        raise InvalidCall(
            "compare run A with one thing: a second run (polyarm compare A B) or a published score"
            " (polyarm compare A --published openvla-oft/libero_spatial)"
        )
    found = _compare(options)
    if options.json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        show(found, console.console(stderr=False))
    return 0


def show(comparison: Comparison | PublishedComparison, out: Console) -> None:
    """Print the tasks, the verdict and what to know before believing it."""
    from polyarm.report.published import PublishedComparison

    if isinstance(comparison, PublishedComparison):
        out.print(str(comparison), markup=False, soft_wrap=True)
        return
    table = console.table("task", "A", "B", "B − A", "95% interval", "p", "episodes")
    for column in table.columns[1:]:
        column.justify = "right"
    for task in comparison.tasks:
        table.add_row(*_row(task))
    if len(comparison.tasks) > 1:
        table.add_row(*_row(comparison.overall), style="bold")
    out.print(table)
    if len(comparison.tasks) > 1:
        out.print("p of a task is adjusted for the number of tasks (Holm).", style="dim")
    out.print()
    out.print(comparison.verdict, style="bold", markup=False)
    for warning in comparison.warnings:
        out.print(f"note: {warning}", markup=False)
    for path, before, after in comparison.changed:
        out.print(f"  {path}: {before} → {after}", markup=False)


def _compare(options: CompareOptions) -> Comparison | PublishedComparison:
    from polyarm.report.compare import compare
    from polyarm.report.published import find_published, judge_published
    from polyarm.report.results import Results

    if options.published is not None:
        find_published(options.published)  # A wrong name is told before anything is read.
        return judge_published(Results.read(Path(options.a)), options.published)
    return compare(Results.read(Path(options.a)), Results.read(Path(options.b or "")))


def _row(outcome: PairedOutcome) -> tuple[str, ...]:
    from polyarm.report.compare import p_text, signed_points

    difference = outcome.difference
    interval = f"{signed_points(difference.low)} to {signed_points(difference.high)}"
    return (
        escape(outcome.name),
        _percent(outcome.a),
        _percent(outcome.b),
        signed_points(difference.estimate),
        interval,
        p_text(outcome.p).removeprefix("p ").removeprefix("= "),
        f"{outcome.a.episodes:,}",
    )


def _percent(rate: Rate) -> str:
    return "–" if rate.rate is None else f"{rate.rate:.1%}"
