"""``polyarm eval``: live progress, a journal that survives anything, results and a report.

Exit codes: 0 all is done; 1 too many episodes ended as errors; 2 something is wrong, said in one
message; 3 stopped before all was done, the same command goes on; 75 stopped by SIGTERM or SIGUSR1,
130 by Ctrl-C, likewise. Of several ranks the first one that is left speaks for all; the others tell
problems only.
"""

from __future__ import annotations

import glob
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.markup import escape

from polyarm.cli import console, ranks
from polyarm.cli.exits import FAILED, STOPPED, TOO_MANY_ERRORS, stopped_by
from polyarm.cli.folders import run_folder
from polyarm.cli.progress import Show, live_progress
from polyarm.cli.signals import signals_stop
from polyarm.distributed.ranks import Rank, Share
from polyarm.errors import InvalidCall, MissingExtra, StoppedEarly, StorageError
from polyarm.rollout.options import EvalOptions, options_from, seconds

if TYPE_CHECKING:
    from polyarm.report.results import Results
    from polyarm.rollout.acting import PolicyLike
    from polyarm.rollout.evaluator import Evaluator

_CALIBRATION_S = 20.0
_ALONE = Rank(0, 1)


@dataclass(frozen=True, slots=True)
class EvalCommand:
    """Options of an evaluation.

    Attributes:
        evaluation: What is evaluated, and how.
        config: A YAML file with any of these options; the command line overrides it.
    """

    evaluation: tyro.conf.OmitArgPrefixes[EvalOptions] = field(default_factory=EvalOptions)
    config: Path | None = None


def parse(
    arguments: Sequence[str], read: Callable[[EvalCommand, list[str]], EvalCommand]
) -> EvalOptions:
    """The options of a command line and of the file it names.

    Args:
        arguments: What follows ``polyarm eval``.
        read: Parses arguments, given defaults.
    """
    words = _with_bare_record(arguments)
    defaults = EvalCommand()
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            defaults = _from_file(Path(words[place + 1]))
        elif word.startswith("--config="):
            defaults = _from_file(Path(word.partition("=")[2]))
    return read(defaults, words).evaluation


def run(options: EvalOptions) -> int:
    """Evaluate as one of the ranks that there are, and report; returns the exit code."""
    share = Share.current(options)
    ranks.announce(share, options, console.console(stderr=True))
    return play(replace(options, num_envs=share.num_envs or None), share.rank)


def play(
    options: EvalOptions,
    rank: Rank = _ALONE,
    *,
    observed_slots: Sequence[int] | None = None,
    resumable: bool = True,
) -> int:
    """Evaluate and report; returns the exit code.

    Args:
        options: What and how.
        rank: Which of the processes that do this together.
        observed_slots: Slots that are recorded; None for all.
        resumable: Whether the same command again would go on.
    """
    from polyarm.distributed.members import member, succession, why_not_fresh
    from polyarm.policies.loading import expand_policies
    from polyarm.rollout.evaluator import Evaluator
    from polyarm.rollout.runlock import Job

    errors = console.console(stderr=True)
    console.log_to(errors, rank.mark)
    if options.report_to is not None:
        from polyarm.report.sinks import require_sink

        require_sink(options.report_to)
    policies: dict[str, PolicyLike] = dict(expand_policies(options.policy))
    if not glob.has_magic(options.policy):
        policies = {"": options.policy}
    if options.dry_run:
        return _dry_run(options, policies, errors) if rank.leads else 0
    folder = output_folder(options)
    seat = member(rank) if resumable else None
    if options.fresh and resumable and (why := why_not_fresh(seat)) is not None:
        raise InvalidCall(why)
    with signals_stop() as signals:
        evaluator = Evaluator(
            options.tasks,
            options,
            folder,
            observed_slots=observed_slots,
            member=seat,
            job=succession(rank) if resumable else Job(),
        )
        signals.stop_by(evaluator.stop)
        if rank.leads:
            errors.print(_announcement(options, evaluator, policies, folder), highlight=False)
        try:
            with evaluator, _progress(errors, list(policies), silent=not rank.leads) as show:
                results = evaluator.run(policies, show)
                # Later signals stop nothing: once a rank has left, its launcher ends the others.
                causes = tuple(signals.caught)
        except StoppedEarly as error:
            errors.print(f"{rank.mark}polyarm: {error}", markup=False, soft_wrap=True)
            return stopped_by(signals.caught)
        except StorageError as error:
            said = f"[red]{rank.mark}polyarm: {escape(str(error))}[/]\n{_how_to_go_on()}"
            errors.print(said, soft_wrap=True)
            return FAILED
        if rank.leads or evaluator.sums_up:
            if results.missing and resumable:
                errors.print(_how_to_go_on(results.missing), soft_wrap=True)
            _conclude(results, folder, options, errors, write=evaluator.sums_up)
        return _exit_code(results, options, causes)


def _progress(
    errors: Console, labels: Sequence[str], *, silent: bool
) -> AbstractContextManager[Show]:
    return nullcontext(lambda _: None) if silent else live_progress(errors, labels)


def output_folder(options: EvalOptions) -> Path:
    """Where results go."""
    return Path(options.out or run_folder(f"{options.policy}-{options.task}"))


def _conclude(
    results: Results, folder: Path, options: EvalOptions, errors: Console, *, write: bool
) -> None:
    from polyarm.cli import report as reporting
    from polyarm.report.html import write_report
    from polyarm.rollout.journal import storage_errors
    from polyarm.rollout.sharing import forget_said

    if write:
        with storage_errors(folder):
            results.write(folder)
            forget_said(folder)
            write_report(results, folder)
    out = console.console(stderr=False)
    reporting.show(results, out)
    out.print(f"\nreport: {folder / 'report.html'}", soft_wrap=True, markup=False)
    if options.save_dataset is not None and Path(options.save_dataset).is_dir():
        out.print(f"dataset: {options.save_dataset}", soft_wrap=True, markup=False)
    if options.report_to is not None and write:
        from polyarm.report.sinks import report_to

        report_to(options.report_to, results, run_name=folder.name, folder=folder)
    if results.errors and not results.missing:
        errors.print(
            f"{results.errors} of {results.planned} episodes ended as errors and are not in the"
            f" score; --retry-errors runs them again"
        )


def _exit_code(results: Results, options: EvalOptions, causes: Sequence[int]) -> int:
    if results.missing:
        return stopped_by(causes) if causes else STOPPED
    allowed = options.max_errors * results.planned
    return TOO_MANY_ERRORS if results.errors > allowed else 0


def _how_to_go_on(missing: int | None = None) -> str:
    what = f"{missing} episodes are missing; go" if missing else "go"
    return escape(f"{what} on where this run stopped with: {console.command_to_go_on()}")


def _announcement(
    options: EvalOptions, evaluator: Evaluator, policies: dict[str, PolicyLike], folder: Path
) -> str:
    tasks = sum(len(group.specs) for group in evaluator.groups)
    many = f"{len(policies)} policies × " if len(policies) > 1 else ""
    return escape(
        f"eval {options.policy} on {options.task}: {many}{tasks} tasks ×"
        f" {len(evaluator.planned) // tasks} episodes → {folder}"
    )


def _with_bare_record(arguments: Sequence[str]) -> list[str]:
    """``--record`` alone means all episodes."""
    words = list(arguments)
    for place in reversed(range(len(words))):
        following = words[place + 1] if place + 1 < len(words) else "--"
        if words[place] == "--record" and following.startswith("--"):
            words.insert(place + 1, "all")
    return words


def _from_file(path: Path) -> EvalCommand:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("--config needs PyYAML: pip install 'polyarm[report]'") from error
    try:
        given = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    if not isinstance(given, dict):
        raise StorageError(f"{path} must hold options by name, found {type(given).__name__}")
    return EvalCommand(EvalOptions(**options_from(given)))


def _dry_run(options: EvalOptions, policies: dict[str, PolicyLike], errors: Console) -> int:
    """Play a few episodes and say what the whole would take."""
    from polyarm.rollout.evaluator import Evaluator
    from polyarm.rollout.plan import group_tasks
    from polyarm.vector import host

    groups = group_tasks(options.tasks, options)
    tasks = sum(len(group.specs) for group in groups)
    each = sum(len(group.keys(options)) for group in groups)
    planned = len(policies) * each
    # About two rounds of all envs, so that they are as busy as they will be.
    trial = math.ceil(2 * (options.num_envs or 2 * host.cores()) / tasks)
    short = replace(
        options,
        episodes=min(trial, each // tasks // options.repeats),
        fresh=False,
        stop_after=f"{_CALIBRATION_S}s",
        dry_run=False,
    )
    with tempfile.TemporaryDirectory(prefix="polyarm-") as name:
        folder = Path(name)
        if short.save_dataset is not None:
            short = replace(short, save_dataset=str(folder / "dataset"))
        with Evaluator(options.tasks, short, folder) as evaluator:
            began = time.perf_counter()
            with live_progress(errors, [""]) as show:
                results = evaluator.run(dict([next(iter(policies.items()))]), show)
            spent = time.perf_counter() - began - results.wall["startup"]
        files = [path.stat() for path in folder.rglob("*") if path.is_file()]
        nbytes = sum({file.st_ino: file.st_size for file in files}.values())  # links count once
    out = console.console(stderr=False)
    made = len(results.episodes)
    out.print(f"{planned} episodes: {each} per policy, {len(policies)} policies")
    if not made:
        out.print(f"no episode ended within {_CALIBRATION_S:g} s; no estimate can be made")
        return 0
    hours = planned * spent / made / 3600 + results.wall["startup"] / 3600
    out.print(
        f"about {hours:.2f} hours and {planned * nbytes / made / 1e9:.2f} GB on this machine,"
    )
    out.print(f"from {made} episodes in {spent:.1f} s; {results.wall['startup']:.1f} s to start")
    if (limit := seconds(options.stop_after)) is not None and hours * 3600 > limit:
        out.print(f"--stop-after {options.stop_after} will cut it into {hours * 3600 / limit:.1f}")
    return 0
