"""``polyarm doctor``: what this machine has, what it lacks and the exact fix, on one screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyarm import signatures
from polyarm.cli import console
from polyarm.cli.exits import INCOMPLETE, INTERRUPTED
from polyarm.errors import InvalidCall, StorageError

if TYPE_CHECKING:
    from polyarm.doctor import Case, Finding, Report
    from polyarm.doctor.ramp import Ramp, Rung

_COLOURS = {
    "ok": "green",
    "hint": "cyan",
    "warning": "yellow",
    "missing": "bold red",
    "broken": "bold red",
}
_STATUS_WIDTH, _NAME_WIDTH = 8, 18


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Options of the doctor.

    Attributes:
        suite: Only what concerns this suite; what it needs decides the exit code.
        num_envs: Workers that are planned, for memory, cores and limits. By default one per core.
        json: Print one JSON object instead.
        log: Explain a worker's stderr from this file ("-": from stdin), and check nothing. Exit
            code 0 if something in it is known, 1 if nothing is, 2 if it cannot be read.
        ramp: Start 1, 2, 4, 8 … workers to find how many this host bears, and check nothing else.
        task: With --ramp: the task; by default a plain one of the suite.
        max_workers: With --ramp: its last step; by default 4 per core, at least 8.
    """

    suite: str | None = None
    num_envs: int | None = None
    json: bool = False
    log: Path | None = None
    ramp: bool = False
    task: str | None = None
    max_workers: int | None = None


def run(options: DoctorOptions) -> int:
    """Examine, explain or climb; returns the exit code."""
    asked = {"--task": options.task, "--max-workers": options.max_workers}
    for flag, value in asked.items():
        if value is not None and not options.ramp:
            raise InvalidCall(f"{flag} is of the ramp alone: add --ramp, or leave out {flag}")
    if options.log is not None:
        return _explain_log(options.log, as_json=options.json)
    from polyarm.doctor import Case

    case = Case(options.suite, options.num_envs)
    if options.ramp:
        return _climb(case, options)
    return _examine(case, as_json=options.json)


def _examine(case: Case, *, as_json: bool) -> int:
    from polyarm.doctor import examine

    out, errors = console.console(stderr=False), console.console(stderr=True)
    shown: set[str] = set()

    def show(section: str, finding: Finding) -> None:
        if as_json:
            return
        if section not in shown:
            out.print(("\n" if shown else "") + section, style="bold")
            shown.add(section)
        _print_finding(finding, out)

    # On the terminal that findings are printed to, or else a spinner is left between them.
    with _shown_doing(out if out.is_terminal else errors) as doing:
        report = examine(case, lambda name: doing(f"checking {name}"), show)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _print_verdict(report, out)
    return 0 if report.healthy else INCOMPLETE


def _print_finding(finding: Finding, out: Console) -> None:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=_STATUS_WIDTH)
    row.add_column(width=_NAME_WIDTH)
    row.add_column(overflow="fold")
    status = Text(finding.status, style=_COLOURS[finding.status])
    row.add_row(status, Text(finding.name), Text(finding.text))
    out.print(row)
    if finding.fix:
        # Left to the terminal to wrap, so that a command can be copied in one piece.
        text = Text(" " * (_STATUS_WIDTH + 1)).append("fix: ", "dim").append(finding.fix)
        out.print(text, soft_wrap=True)


def _print_verdict(report: Report, out: Console) -> None:
    failing = [finding for finding in report.findings if finding.fails]
    what = "polyarm" if report.suite is None else report.suite
    took = f"({report.seconds:.1f} s)"
    out.print()
    if not failing:
        out.print(Text(f"{what} has all it needs here ", "green").append(took, "dim"))
        return
    names = ", ".join(dict.fromkeys(finding.name for finding in failing))
    text = f"{what} is held up by {len(failing)}: {names} "
    out.print(Text(text, "bold red").append(took, "dim"), soft_wrap=True)


@contextmanager
def _shown_doing(terminal: Console) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal; a pipe or file gets nothing but the findings."""
    if not terminal.is_terminal:
        yield lambda _: None
        return
    with terminal.status("starting …") as status:
        yield lambda doing: status.update(Text(f"{doing} …"))


def _explain_log(file: Path, *, as_json: bool) -> int:
    """Explain what is known in a worker's stderr."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(errors="replace")
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}") from error
    found = list(dict.fromkeys(signatures.explanations(text)))
    if as_json:
        print(json.dumps({"explanations": found}))
        return 0 if found else INCOMPLETE
    out = console.console(stderr=False)
    for place, explanation in enumerate(found):
        if place == 1:
            out.print("\nalso in it:", style="bold")
        out.print(explanation, markup=False)
    if not found:
        last = [line for line in text.splitlines() if line.strip()][-1:]
        said = f" Its last line: {last[0].strip()}" if last else " It is empty."
        out.print(f"Nothing in it is a failure that polyarm knows.{said}", markup=False)
    return 0 if found else INCOMPLETE


def _climb(case: Case, options: DoctorOptions) -> int:
    from polyarm.doctor import ramp

    planned = ramp.plan(case, options.task, options.max_workers)
    out, errors = console.console(stderr=False), console.console(stderr=True)
    rungs: list[Rung] = []
    interrupted = False
    with _shown_doing(out if out.is_terminal else errors) as doing:
        try:
            doing(f"starting 1 worker of {planned.task}")
            for rung in ramp.climb(planned):
                rungs.append(rung)
                doing(f"{rung.workers} done, starting more workers of {planned.task}")
        except KeyboardInterrupt:
            interrupted = True
    good = [rung.workers for rung in rungs if not rung.error]
    verdict = _verdict(planned, rungs, good, interrupted=interrupted)
    if options.json:
        facts = {"task": planned.task, "cameras": planned.cameras, "workers": max(good, default=0)}
        ended = {"verdict": verdict, "interrupted": interrupted}
        print(json.dumps({**facts, **ended, "rungs": [asdict(rung) for rung in rungs]}))
    else:
        if good:
            _print_rungs(planned, rungs, out)
        out.print(verdict, markup=False, soft_wrap=True)
    if interrupted:
        return INTERRUPTED
    return 0 if good else INCOMPLETE


def _print_rungs(planned: Ramp, rungs: list[Rung], out: Console) -> None:
    cameras = f", {', '.join(planned.cameras)}" if planned.cameras else ""
    headings = ("workers", "first obs", "steps/s", "per worker")
    table = console.table(*headings, title=f"{planned.task}{cameras}")
    for column in table.columns:
        column.justify = "right"
    for rung in rungs:
        if not rung.error:
            table.add_row(
                str(rung.workers),
                f"{rung.first_obs_s:.2f} s",
                f"{rung.steps_per_s:,.0f}",
                f"{rung.nbytes_per_worker / 2**20:.0f} MiB",
            )
    out.print(table)
    out.print()


def _verdict(planned: Ramp, rungs: list[Rung], good: list[int], *, interrupted: bool) -> str:
    """Where the host's limit is, as far as that was found."""
    so_far = f"{_counted(good[-1])} fine" if good else "no worker ran"
    if interrupted:
        return f"interrupted: {so_far}; more were not tried."
    if rungs and (error := rungs[-1].error):
        failed = f"with {rungs[-1].workers}" if good else planned.task
        message = error.partition("\n--- ")[0]
        return f"{so_far}; {failed}: {message}"
    return f"{so_far}, as many as were asked for (--max-workers {planned.max_workers})."


def _counted(workers: int) -> str:
    return "1 worker runs" if workers == 1 else f"{workers} workers run"
