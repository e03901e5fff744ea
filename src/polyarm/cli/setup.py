"""``polyarm setup``: gets what a suite needs beyond what pip installs.

The word after ``setup`` decides which options there are: RLBench and the X server have their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from polyarm.cli import console
from polyarm.cli.exits import FAILED, INCOMPLETE
from polyarm.errors import DisplayError

if TYPE_CHECKING:
    from polyarm.contracts import Requirement
    from polyarm.display.xorg import XorgOptions
    from polyarm.suites.rlbench.options import SetupOptions as RLBenchOptions

Progress = Callable[[str, int, int], None]

_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """Options of the set-up.

    Attributes:
        suite: The suite to set up. rlbench and xorg have options of their own, which
            `polyarm setup rlbench --help` and `polyarm setup xorg --help` list.
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


Parse = Callable[[type[Any], str, Sequence[str]], Any]
"""Reads a dataclass off a command line: its class, the set-up's name or "", the words."""


def dispatch(words: Sequence[str], parse: Parse) -> int:
    """Run the set-up that a word names, first or after options; returns the exit code."""
    place = _place_of_name(words)
    name = "" if place is None else words[place]
    rest = [word for index, word in enumerate(words) if index != place]
    if name == "rlbench":
        from polyarm.suites.rlbench.options import SetupOptions as RLBenchOptions

        return run_rlbench(parse(RLBenchOptions, name, rest))
    if name == "xorg":
        from polyarm.display.xorg import XorgOptions

        return run_xorg(parse(XorgOptions, name, rest))
    return run(parse(SetupOptions, "", rest))


def _place_of_name(words: Sequence[str]) -> int | None:
    """Where ``rlbench`` or ``xorg`` stands, unless it is the value of an option."""
    from polyarm.display.xorg import XorgOptions
    from polyarm.suites.rlbench.options import SetupOptions as RLBenchOptions

    options = [*fields(RLBenchOptions), *fields(XorgOptions), *fields(SetupOptions)]
    valued = {f"--{one.name.replace('_', '-')}" for one in options if one.default is not False}
    for place, word in enumerate(words):
        before = words[place - 1].replace("_", "-") if place else ""
        if word.startswith("-") or before in valued:
            continue
        return place if word in ("rlbench", "xorg") else None  # another suite's name
    return None


def run_rlbench(options: RLBenchOptions) -> int:
    """Set RLBench up, check it, or tell what would be done; returns the exit code."""
    from polyarm.suites.rlbench import licences, setup

    out, errors = console.console(stderr=False), console.console(stderr=True)
    if options.check:
        with shown_progress(errors) as progress:
            needs = setup.requirements(deep=True, progress=progress)
        return _tell("rlbench", needs, out)
    if not (options.dry_run or options.accept_licences or licences.accepted()):
        if sys.stdin.isatty() and not _agrees(licences.TERMS, out):
            out.print("Nothing was installed.")
            return FAILED
        options = replace(options, accept_licences=sys.stdin.isatty())
    with shown_progress(errors) as progress:
        steps = setup.setup(options, progress)
    for step in steps:
        out.print(str(step), markup=False, soft_wrap=True)
    if options.dry_run:
        out.print("Nothing was changed: leave out --dry-run to do this.")
        return 0
    if lacking := [step.name for step in steps if step.state == "missing"]:
        out.print(f"rlbench is not ready yet: {', '.join(lacking)}, see above.", markup=False)
        return INCOMPLETE
    out.print("rlbench is ready: polyarm suites rlbench lists its tasks.")
    return 0


def run_xorg(options: XorgOptions) -> int:
    """Print or write the configuration of an X server; returns the exit code."""
    from polyarm.display import xorg

    out = console.console(stderr=False)

    def say(text: str) -> None:
        out.print(text, markup=False, soft_wrap=True)

    try:
        texts = xorg.files(options)
    except DisplayError:
        if xorg.in_container():  # this is how to get to the host's GPU
            say(f"{xorg.CONTAINER}\n\nOn the host:\n  {xorg.commands(options)[0]}\n")
        raise
    if options.write:
        for line in xorg.write(texts):
            say(line)
    else:
        for file, text in texts.items():
            say(f"# {file}\n{text}")
    if xorg.in_container():
        say(f"{xorg.CONTAINER}\n")
    say("Start the server and try it out:")
    for command in xorg.commands(options):
        say(f"  {command}")
    say(f"Users other than root may start it if {xorg.FOLDER / 'Xwrapper.config'} says:")
    say("".join(f"  {line}\n" for line in xorg.WRAPPER.splitlines()))
    if not options.write:
        say("Nothing was changed: polyarm setup xorg --write writes the file.")
    return 0


def _agrees(terms: dict[str, str], out: Console) -> bool:
    for name, text in terms.items():
        out.print(f"{name}: {text}", markup=False)
    try:
        return input("Do you accept these licences? [yes/no] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def run(options: SetupOptions) -> int:
    """Set the suite up, or check it; returns the exit code."""
    from polyarm import registry

    suite = registry.load(options.suite)
    out, errors = console.console(stderr=False), console.console(stderr=True)
    if options.check:
        with shown_progress(errors) as progress:
            check = getattr(suite, "check_setup", None)
            needs = suite.requirements() if check is None else check(progress)
        return _tell(suite.name, needs, out)
    install = getattr(suite, "setup", None)
    if install is None:
        needs = suite.requirements()
        packages = " && ".join(dict.fromkeys(need.fix for need in needs if need.fix))
        nothing = f"{suite.name} has nothing to set up beyond its packages"
        out.print(f"{nothing}: {packages}" if packages else f"{nothing}.", markup=False)
        return _tell(suite.name, needs, out)
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


def _tell(suite: str, needs: Sequence[Requirement], out: Console) -> int:
    """List what there is and what is missing; returns the exit code."""
    for need in needs:
        found = f"missing. {need.fix}" if need.found is None else need.found
        out.print(f"{need.name}: {found}", markup=False, soft_wrap=True)
    if any(need.found is None for need in needs):
        return INCOMPLETE
    out.print(f"{suite} has all it needs.", markup=False)
    return 0
