"""``polyarm report``: writes results.json and report.html of a run anew from its journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from polyarm.cli import console

if TYPE_CHECKING:
    from polyarm.report.results import Results
    from polyarm.report.stats import Rate


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of the report.

    Attributes:
        folder: The folder of a run, finished or not; its report is written from what is there.
    """

    folder: Annotated[str, tyro.conf.Positional]


def run(options: ReportOptions, load: Callable[[Path], Results]) -> int:
    """Write the report and show its summary; returns the exit code.

    Args:
        options: Which run.
        load: Reads a run's journal and description.
    """
    from polyarm.report.html import write_report

    folder = Path(options.folder)
    results = load(folder)
    results.write(folder)
    path = write_report(results, folder)
    out = console.console(stderr=False)
    show(results, out)
    out.print(f"\n{escape(str(path))}", soft_wrap=True)
    return 0


def show(results: Results, out: Console) -> None:
    """Print every policy's success rates, by task and as a whole; policies are never pooled."""
    by_policy = results.by_policy()
    for policy, part in by_policy.items():
        _print_rates(part, out, title=policy if len(by_policy) > 1 else None)
    for note in results.notes:
        out.print(f"note: {escape(note)}")
    if results.missing:
        out.print(f"incomplete: {results.missing:,} of {results.planned:,} episodes are missing")
    if results.errors:
        first = next(one for one in results.episodes if one.outcome == "error")
        out.print(f"errors: {results.errors:,} episodes are in no rate; the report says why")
        out.print(f"  {first.key}: {first.error.get('message', '')}", markup=False)


def _print_rates(results: Results, out: Console, *, title: str | None) -> None:
    hopeless = not results.micro.rate  # then returns tell more
    headings = ["task", "success", "95% interval", "episodes", "errors", "steps"]
    headings += ["return"] if hopeless else []
    table = console.table(*headings, title=None if title is None else escape(title))
    for column in table.columns[1:]:
        column.justify = "right"
    for task in results.tasks:
        steps = "–" if task.mean_steps is None else f"{task.mean_steps:,.0f}"
        row = [escape(task.name), *_rate(task.rate), _errors(task.errors), steps]
        if hopeless:
            row.append("–" if task.mean_return is None else f"{task.mean_return:,.1f}")
        table.add_row(*row)
    if len(results.tasks) > 1:
        table.add_row("mean of tasks", *_rate(results.macro)[:2], "", "", "", style="dim")
        table.add_row("all", *_rate(results.micro), _errors(results.errors), "", style="bold")
    out.print(table)


def _rate(rate: Rate) -> tuple[str, str, str]:
    if rate.rate is None or rate.low is None or rate.high is None:
        return "–", "–", "0"
    return f"{rate.rate:.1%}", f"{rate.low:.1%} to {rate.high:.1%}", f"{rate.episodes:,}"


def _errors(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "–"
