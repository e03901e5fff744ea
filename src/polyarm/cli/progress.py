"""How an evaluation is going: a table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from polyarm.contracts import EpisodeResult
    from polyarm.rollout.evaluator import Progress

Show = Callable[["Progress"], None]

_LINE_EVERY_S = 5.0
_MOST_ROWS = 16


@contextmanager
def live_progress(errors: Console, policies: Sequence[str]) -> Iterator[Show]:
    """A function to be called with every `Progress`."""
    if not errors.is_terminal:
        yield _lines(errors)
        return
    with Live(Text("starting …"), console=errors, transient=True, refresh_per_second=4) as live:
        yield lambda now: live.update(_panel(now, policies))


def _lines(errors: Console) -> Show:
    shown_at = 0.0

    def show(now: Progress) -> None:
        nonlocal shown_at
        moment = time.monotonic()
        finished = len(now.finished) >= now.planned and now.last is not None
        if finished or moment - shown_at >= _LINE_EVERY_S:
            shown_at = moment
            errors.print(_status(now), soft_wrap=True, markup=False)

    return show


def _status(now: Progress) -> str:
    results = list(now.finished.values())
    successes = sum(one.outcome == "success" for one in results)
    failed = sum(one.outcome == "error" for one in results)
    counted = len(results) - failed
    rate = f"{successes / counted:.1%}" if counted else "–"
    speed = now.made / now.seconds if now.seconds > 0 else 0.0
    left = _time((now.planned - len(results)) / speed) if speed else "?"
    text = (
        f"{len(results)}/{now.planned} episodes, success {rate}, {speed * 60:.1f}/min, {left} left"
    )
    return f"{text}, {failed} errors" if failed else text


def _panel(now: Progress, policies: Sequence[str]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("task")
    table.add_column("succeeded", justify="right")
    table.add_column()
    table.add_column()
    tasks: dict[str, list[EpisodeResult]] = {}
    for (policy, key), result in now.finished.items():
        name = f"{policy} {key.name}" if len(policies) > 1 else key.name
        tasks.setdefault(name, []).append(result)
    shown = list(tasks.items())[-_MOST_ROWS:]
    for name, results in shown:
        successes = sum(one.outcome == "success" for one in results)
        failed = sum(one.outcome == "error" for one in results)
        counted = len(results) - failed
        share = successes / counted if counted else 0.0
        bar = ProgressBar(total=1.0, completed=share, width=24, complete_style="blue")
        trouble = f"[red]{failed} errors[/]" if failed else ""
        table.add_row(escape(name), f"{successes}/{counted}", bar, trouble)
    hidden = len(tasks) - len(shown)
    more = [Text(f"… and {hidden} tasks before")] if hidden else []
    return Group(*more, table, Text(f"{_status(now)}, {now.running} running"))


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
