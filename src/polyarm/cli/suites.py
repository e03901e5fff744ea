"""``polyarm suites``: what there is, what it needs, and what one suite holds."""

from __future__ import annotations

import inspect

from rich.console import Console
from rich.markup import escape

from polyarm import display as displays
from polyarm import registry
from polyarm.cli import console
from polyarm.contracts import Requirement, Suite, Task
from polyarm.errors import DisplayError, PolyarmError


def run(name: str | None) -> int:
    """Print the listing; returns the exit code."""
    out = console.console(stderr=False)
    if name is None:
        _print_suites(out)
    else:
        _print_tasks(registry.load(name), out)
    return 0


def _print_suites(out: Console) -> None:
    table = console.table("suite", "tasks", "needs", "to get it")
    table.columns[1].justify = "right"
    for name in registry.suite_names():
        try:
            rows = _rows(registry.load(name))
        except Exception as error:  # noqa: BLE001  a plug-in's fault; the other suites are listed
            kind = "" if isinstance(error, PolyarmError) else f"{type(error).__name__}: "
            rows = [("–", "[red]cannot be used[/red]", escape(f"{kind}{error}"))]
        for place, row in enumerate(rows):
            table.add_row(name if place == 0 else "", *row)
    table.add_row("", "", *_need(_display()))
    out.print(table)
    out.print("\npolyarm suites <suite> lists its tasks and options.", markup=False)


def _rows(suite: Suite) -> list[tuple[str, str, str]]:
    """How many tasks there are, and what they need."""
    tasks, needs = str(len(suite.tasks())), suite.requirements()
    if not needs:
        return [(tasks, "nothing", "")]
    return [(tasks if place == 0 else "", *_need(need)) for place, need in enumerate(needs)]


def _display() -> Requirement:
    """What frames need, and whether it works."""
    try:
        found = displays.select("auto", frames=True).description
    except DisplayError as error:
        return Requirement("a display, for frames", None, str(error))
    return Requirement("a display, for frames", found, "")


def _need(need: Requirement) -> tuple[str, str]:
    if need.found is None:
        return f"[red]{escape(need.name)}: missing[/red]", escape(need.fix)
    return f"{escape(need.name)}: [green]{escape(need.found)}[/green]", ""


def _print_tasks(suite: Suite, out: Console) -> None:
    memberships: dict[str, list[str]] = {}
    for name, members in suite.sets().items():
        for member in members:
            memberships.setdefault(f"{suite.name}/{member}", []).append(name)
    table = console.table("task", "steps", "instruction", "sets")
    table.columns[1].justify = "right"
    for task in suite.tasks():
        table.add_row(*_task(task), " ".join(memberships.get(task.name, [])))
    out.print(table)
    if sets := suite.sets():
        out.print()
        listing = console.table("set", "tasks")
        listing.columns[1].justify = "right"
        for name, members in sets.items():
            listing.add_row(f"{suite.name}/{name}", str(len(members)))
        out.print(listing)
    if said := inspect.getdoc(type(suite)):
        out.print(f"\n{said.replace('``', '')}", markup=False, soft_wrap=True)
        out.print("\nOptions are given as --suite-options NAME=VALUE, or to make_vec by name.")
    for need in suite.requirements():
        if need.found is None:
            text = f"\n[red]{escape(need.name)}: missing[/red]  {escape(need.fix)}"
            out.print(text, soft_wrap=True)


def _task(task: Task) -> tuple[str, str, str]:
    steps = "–" if task.max_steps is None else str(task.max_steps)
    return escape(task.name), steps, escape(task.instruction)
