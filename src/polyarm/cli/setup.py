"""``polyarm setup``: gets what a suite needs beyond what pip installs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from polyarm.cli import console
from polyarm.cli.exits import INCOMPLETE

if TYPE_CHECKING:
    from polyarm.contracts import Requirement, Suite

Progress = Callable[[str, int, int], None]

_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """Options of the set-up.

    Attributes:
        suite: The suite to set up.
        assets: A folder or an archive (.tar.xz, .tar.gz, .zip …) with the simulator's assets.
            Without it they are taken from an installation that is found here, or downloaded.
        force: Install the assets even if they are there.
        check: Install nothing; verify everything, each file of the assets included. Exit code 1 if
            something is missing or damaged.
    """

    suite: Annotated[str, tyro.conf.Positional]
    assets: Path | None = None
    force: bool = False
    check: bool = False


def run(options: SetupOptions) -> int:
    """Set the suite up, or check it; returns the exit code."""
    from polyarm import registry

    suite = registry.load(registry.locate(options.suite))
    out, errors = console.console(stderr=False), console.console(stderr=True)
    if options.check:
        with shown_progress(errors) as progress:
            check = getattr(suite, "check_setup", None)
            needs = suite.requirements() if check is None else check(progress)
        return _tell(suite, needs, out)
    install = getattr(suite, "setup", None)
    if install is None:
        needs = suite.requirements()
        packages = " && ".join(dict.fromkeys(need.fix for need in needs if need.fix))
        nothing = f"{suite.name} has nothing to set up beyond its packages"
        out.print(f"{nothing}: {packages}" if packages else f"{nothing}.", markup=False)
        return _tell(suite, needs, out)
    with shown_progress(errors) as progress:
        lines = install(options.assets, progress, force=options.force)
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"{suite.name} is ready: polyarm suites {suite.name} lists its tasks.", markup=False)
    return 0


@contextmanager
def shown_progress(errors: Console) -> Iterator[Progress]:
    """A function that shows a bar on a terminal, and a line now and then elsewhere."""
    if not errors.is_terminal:
        yield _lines(errors)
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Bars(*columns, console=errors, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(doing: str, done: int, total: int) -> None:
            bars.update(task, description=doing, completed=done, total=total or None)

        yield show


def _lines(errors: Console) -> Progress:
    last, shown_at = "", 0.0

    def show(doing: str, done: int, total: int) -> None:
        nonlocal last, shown_at
        now = time.monotonic()
        if doing == last and now - shown_at < _LINE_EVERY_S:
            return
        if doing == last and not total:
            return
        share = f" {done / total:.0%}" if total and doing == last else ""
        last, shown_at = doing, now
        errors.print(f"{doing}{share} …", markup=False, soft_wrap=True)

    return show


def _tell(suite: Suite, needs: Sequence[Requirement], out: Console) -> int:
    """List what there is and what is missing; returns the exit code."""
    for need in needs:
        found = f"missing. {need.fix}" if need.found is None else need.found
        out.print(f"{need.name}: {found}", markup=False, soft_wrap=True)
    if any(need.found is None for need in needs):
        return INCOMPLETE
    out.print(f"{suite.name} has all it needs.", markup=False)
    return 0
