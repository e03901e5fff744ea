"""``polyarm bench``: live progress, a closing table and, if asked for, a line of JSON.

Of several ranks the first one speaks for all; the others tell problems only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as Live
from rich.progress import SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from polyarm.bench.merge import merge, merged_dict
from polyarm.bench.plan import Plan, make_plan
from polyarm.bench.throughput import BenchOptions, BenchResult, Progress, TimingSplit, run_plan
from polyarm.cli import console, ranks
from polyarm.cli.exits import INTERRUPTED
from polyarm.distributed.ranks import mark
from polyarm.distributed.torchrun import process_group

_LINE_EVERY_S = 0.5


def run(options: BenchOptions) -> int:
    """Run the benchmark and show it; returns the exit code."""
    errors = console.console(stderr=True)
    console.log_to(errors, mark())
    plan = make_plan(options)
    ranks.announce(plan.share, plan.options, errors)
    with process_group(plan.share.rank) as group:
        if group.leads:
            errors.print(_announcement(plan))
        with _shown(errors, silent=not group.leads) as show:
            own = run_plan(plan, show, lambda: group.gather(None))  # all start at once
        results = group.gather(own)
    if group.leads:
        _conclude(results, errors, json_too=options.json)
    return INTERRUPTED if own.interrupted else 0


def _conclude(results: Sequence[BenchResult], errors: Console, *, json_too: bool) -> None:
    together = merge(results)
    out = errors if json_too else console.console(stderr=False)
    report(together, out)
    if len(results) > 1:
        out.print()
        out.print(_ranks(results))
    if together.interrupted:
        errors.print("polyarm: interrupted; the figures cover what ran until then")
    if json_too:
        print(json.dumps(merged_dict(results)))


def report(result: BenchResult, out: Console) -> None:
    """Print the closing table, and the split if there is one."""
    table = console.table("measured", "value", "")
    table.columns[1].justify = "right"
    for name, value, remark in _rows(result):
        table.add_row(name, value, escape(remark), style="red" if name == "errors" else None)
    out.print()
    out.print(table)
    if result.profile is not None:
        out.print()
        _print_split(result.profile, out)


def _shown(errors: Console, *, silent: bool) -> AbstractContextManager[Callable[[Progress], None]]:
    """What is called after every call of the env."""
    if silent:
        return nullcontext(lambda _: None)
    redrawn = errors.is_terminal and not errors.is_dumb_terminal
    return _line(errors) if redrawn else _lines(errors)


@contextmanager
def _line(errors: Console) -> Iterator[Callable[[Progress], None]]:
    """One line on a terminal, redrawn in place."""
    columns = (
        SpinnerColumn(table_column=Column(min_width=1)),
        TextColumn("{task.percentage:>3.0f}%", table_column=Column(min_width=4)),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5)),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
    )
    with Live(*columns, console=errors, transient=True) as live:
        task = live.add_task("starting …", total=None)

        def show(now: Progress) -> None:
            live.update(task, total=now.total_steps, completed=now.steps, description=_status(now))

        yield show


@contextmanager
def _lines(errors: Console) -> Iterator[Callable[[Progress], None]]:
    """Plain lines for files and pipes, as many as a person can read."""
    shown_at = 0.0

    def show(now: Progress) -> None:
        nonlocal shown_at
        moment = time.monotonic()
        if moment - shown_at >= _LINE_EVERY_S or now.steps >= now.total_steps:
            shown_at = moment
            errors.print(f"steps={now.steps}/{now.total_steps} {_status(now)}", soft_wrap=True)

    yield show


def _ranks(results: Sequence[BenchResult]) -> Table:
    """A line for each rank, and how far apart they are."""
    table = console.table("rank", "envs", "env-steps/s", "wall", "errors", "start-up")
    for column in table.columns:
        column.justify = "right"
    for number, one in enumerate(results):
        table.add_row(
            str(number),
            str(one.options.num_envs),
            f"{one.env_steps_per_s:,.0f}",
            f"{one.wall_s:.2f} s",
            str(one.errors),
            f"{one.startup_s:.2f} s",
        )
    rates = sorted(one.env_steps_per_s for one in results)
    table.caption = f"slowest {rates[0]:,.0f}, fastest {rates[-1]:,.0f} env-steps/s"
    table.caption_justify = "left"
    return table


def _announcement(plan: Plan) -> str:
    options, world = plan.options, plan.share.rank.world
    ranks = f"{world} ranks, {sum(plan.share.envs_per_rank)} envs" if world > 1 else ""
    envs = ranks or f"{options.num_envs} envs"
    played = sum(plan.share.envs_per_rank)
    if played < plan.all_tasks:
        envs += f" (so {played} of its {plan.all_tasks} tasks)"
    frames = "no frames"
    if options.renders:
        height, width = options.image_size
        frames = f"{', '.join(options.cameras)} at {height}×{width}"
    if options.films:
        frames += ", every env filmed" if options.video_all else ", the first env filmed"
    elif options.record or options.output_dir is not None:
        frames += ", nothing filmed (--no-video, --no-rgb or --fast)"
    return (
        f"bench {escape(options.task)}: {envs}, {options.max_steps} steps each,"
        f" {options.action_chunk} per call, {frames}"
    )


def _status(now: Progress) -> str:
    text = (
        f"chunk={now.call} exec_s={now.exec_s:.4f} ipc_s={now.ipc_s:.4f} done={now.done}"
        f" return={_return(now.average_return, now.running_return)} {now.steps_per_s:,.0f} steps/s"
    )
    return f"{text} errors={now.errors}" if now.errors else text


def _return(average: float | None, running: float) -> str:
    """With a tilde where no episode has finished: what the running ones have so far."""
    return f"{average:.2f}" if average is not None else f"~{running:.2f}"


def _rows(result: BenchResult) -> list[tuple[str, str, str]]:
    options = result.options
    ended = "of the finished episodes" if result.episodes else "none has finished yet"
    workers = f"{result.num_workers} workers" if result.num_workers else "in this process"
    rows = [
        ("env-steps/s", f"{result.env_steps_per_s:,.0f}", f"{result.env_steps:,} steps"),
        ("frames/s", f"{result.frames_per_s:,.1f}", f"{result.frames:,} frames, {result.renderer}"),
        ("episodes", f"{result.episodes:,}", "finished"),
        ("success rate", _percent(result.success_rate), ended),
        ("average return", _return(result.average_return, result.running_return), ended),
        ("latency p50", f"{result.latency_p50_s * 1e3:.2f} ms", f"{result.calls:,} calls"),
        (
            "latency p99",
            f"{result.latency_p99_s * 1e3:.2f} ms",
            f"of up to {options.action_chunk} steps",
        ),
        ("start-up", f"{result.startup_s:.2f} s", "to the first observation"),
        ("PSS per env", f"{result.pss_nbytes_per_env / 2**20:.1f} MiB", workers),
    ]
    if result.vram_nbytes_per_env is not None:
        rows.append(("VRAM per env", f"{result.vram_nbytes_per_env / 2**20:.1f} MiB", "on the GPU"))
    if options.films:
        rows.append(("videos", str(len(result.videos)), _filmed(result)))
    if result.errors:
        rows.append(("errors", str(result.errors), "episodes cut short, not counted above"))
    return rows


def _filmed(result: BenchResult) -> str:
    if not result.videos and result.errors:
        return "no filmed episode has ended well; the errors say why"
    if not result.videos:
        return "no filmed episode has ended; give more --max-steps"
    return str(Path(os.path.commonpath([Path(name).parent for name in result.videos])))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _print_split(split: TimingSplit, out: Console) -> None:
    wall_s = split.build + split.env_call
    table = console.table("where", "part", "seconds", "share", title="timing")
    for column in table.columns[2:]:
        column.justify = "right"
    where = {"build": "main", "env_call": "main", "ipc": "between"}
    for name in split.__slots__:
        seconds = getattr(split, name)
        place = where.get(name, "critical worker")
        share = seconds / wall_s if wall_s else 0.0
        table.add_row(place, name, f"{seconds:.4f}", f"{share:.1%}")
    table.add_row("wall", "build + env_call", f"{wall_s:.4f}", "100.0%", style="bold")
    out.print(table)
    out.print("env_call is the sum of the critical worker's parts and ipc.")
