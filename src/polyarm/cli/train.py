"""``polyarm train``: a line for each update, and what was done in the end.

Exit codes: 0 done; 1 every step failed; 2 something is wrong, said in one message; 3 stopped before
the last update, the same command goes on; 75 likewise, by a signal as clusters send it; 130
interrupted, likewise.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from polyarm.cli import console, ranks
from polyarm.cli.exits import STOPPED, TOO_MANY_ERRORS, stopped_by
from polyarm.cli.folders import run_folder
from polyarm.cli.signals import signals_stop
from polyarm.distributed import slurm
from polyarm.distributed.ranks import Share
from polyarm.errors import RunConflict, StoppedEarly
from polyarm.training.held_out import held_out_settings
from polyarm.training.options import TrainOptions
from polyarm.training.ppo import Update
from polyarm.training.run import Stop, Training, train


def run(options: TrainOptions) -> int:
    """Train and show it; returns the exit code."""
    errors = console.console(stderr=True)
    console.log_to(errors)
    share = Share.current(options)
    ranks.announce(share, options, errors)
    leads = share.rank.leads
    options = replace(options, out=str(output_folder(options)))
    out = console.console(stderr=False)
    began = time.perf_counter()
    stop = Stop()
    with signals_stop() as signals:
        signals.stop_by(stop)
        if leads:
            errors.print(_announcement(options, share), markup=False, soft_wrap=True)
        try:
            done = train(
                options,
                lambda update: out.print(
                    _line(update, options.train_updates), markup=False, soft_wrap=True
                ),
                stop=stop,
                share=share,
            )
        except StoppedEarly as error:
            errors.print(f"{share.rank.mark}polyarm: {error}", markup=False, soft_wrap=True)
            return stopped_by(signals.caught)
        except RunConflict as error:
            if slurm.array_task() is None:
                raise
            raise RunConflict(
                f"{error}. Tasks of an array train each for itself: give each a folder of its own,"
                f" such as --out runs/$SLURM_ARRAY_TASK_ID, or run one after the other (%1)"
            ) from error
        # Later signals stop nothing: once a rank has left, its launcher ends the others.
        causes = tuple(signals.caught)
        if leads:
            for line in _conclusion(done, options, time.perf_counter() - began):
                out.print(line, markup=False, soft_wrap=True, highlight=False)
            _tell_problems(done, share, errors)
        return _exit_code(done, causes)


def _tell_problems(done: Training, share: Share, errors: Console) -> None:
    if done.last_error:
        said = done.last_error.partition("\n")[0]
        errors.print(f"the last error: {said}", markup=False, soft_wrap=True)
    if done.stopped:
        as_before = f", on {share.rank.world} ranks again," if share.rank.world > 1 else ""
        again = f"polyarm: stopped with a checkpoint; go on from there{as_before} with: "
        errors.print(again + console.command_to_go_on(), markup=False, soft_wrap=True)
    elif _in_vain(done):
        errors.print("polyarm: every step failed, so nothing was learnt")


def _exit_code(done: Training, causes: Sequence[int]) -> int:
    if done.stopped:
        return stopped_by(causes) if done.asked or signal.SIGINT in causes else STOPPED
    return TOO_MANY_ERRORS if _in_vain(done) else 0


def _in_vain(done: Training) -> bool:
    return bool(done.errors) and not done.steps


def output_folder(options: TrainOptions) -> Path:
    """Where a training is kept."""
    return Path(options.out or run_folder(f"ppo-{options.task}"))


def _announcement(options: TrainOptions, share: Share) -> str:
    envs = sum(share.envs_per_rank)
    chunk = f" of {options.action_chunk} actions" if options.action_chunk > 1 else ""
    return (
        f"train {options.task}: {envs} envs, {options.train_updates} updates of"
        f" {options.horizon} decisions{chunk} each → {options.out}"
    )


def _line(update: Update, updates: int) -> str:
    parts = [f"update={update.number}/{updates}", f"steps={update.steps:,}"]
    if update.mean_return is not None:
        parts.append(f"return={update.mean_return:.1f}")
    if update.success_rate is not None:
        parts.append(f"success={update.success_rate:.0%}")
    parts += [
        f"reward={update.reward:.4f}",
        f"loss={update.loss:.4f}",
        f"kl={update.kl:.4f}",
        f"entropy={update.entropy:.2f}",
        f"grad_norm={update.grad_norm:.4f}",
        f"{update.steps_per_s:,.0f} env-steps/s",
    ]
    if update.errors:
        parts.append(f"errors={update.errors}")
    if update.eval_return is not None:
        rate = "" if update.eval_success is None else f"success {update.eval_success:.1%}, "
        parts.append(f"| held-out: {rate}return {update.eval_return:.1f}")
    if update.eval_errors:
        parts.append(f"| held-out episodes that failed: {update.eval_errors}")
    return " ".join(parts)


def _conclusion(done: Training, options: TrainOptions, wall_s: float) -> list[str]:
    cut_short = f", {done.errors} errors (episodes cut short)" if done.errors else ""
    if not done.updates:
        had = f"{done.resumed} updates, {done.steps:,} env steps{cut_short}"
        finished = f"this training is finished already: {had}; more --train-updates go on"
        return [finished, _how_to_evaluate(done, options)]
    lines = []
    if done.resumed:
        how = "exactly" if done.exact else "with new episodes"
        lines.append(f"went on from update {done.resumed}, {how}")
    lines.append(
        f"{len(done.updates)} updates, {done.steps:,} env steps in {wall_s:.1f} s"
        f" on {done.device}{cut_short}"
    )
    return [*lines, _how_to_evaluate(done, options)]


def _how_to_evaluate(done: Training, options: TrainOptions) -> str:
    """The command that evaluates what was learnt, in envs of the same kind."""
    words = ["polyarm", "eval", "--policy", f"polyarm.training:load@{options.out}"]
    words += ["--task", options.task]
    if options.cameras:
        words += ["--cameras", *options.cameras]
    if options.image_size is not None:
        words += ["--image-size", *map(str, options.image_size)]
    settings = {**done.policy.meaning, **held_out_settings(options)}
    if settings:
        words += ["--suite-options", *(f"{key}={one}" for key, one in settings.items())]
    return " ".join(shlex.quote(word) for word in words)
