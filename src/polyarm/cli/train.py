"""``polyarm train``: a line for each update, and what was done in the end.

Exit codes: 0 done; 1 every step failed; 130 interrupted.
"""

from __future__ import annotations

import time
from dataclasses import replace

from polyarm.cli import console, ranks
from polyarm.cli.exits import INTERRUPTED, TOO_MANY_ERRORS
from polyarm.distributed.ranks import Share
from polyarm.training.options import TrainOptions
from polyarm.training.pipeline import Training, Update, train


def run(options: TrainOptions) -> int:
    """Train and show it; returns the exit code."""
    errors = console.console(stderr=True)
    share = Share.current(options)
    ranks.announce(share, options, errors)
    options = replace(options, num_envs=share.num_envs, seed=options.seed + share.before)
    errors.print(
        f"train {options.task}: {options.num_envs} envs, {options.train_updates} updates of"
        f" {options.action_chunk} steps each",
        markup=False,
    )
    mark = f"rank={share.rank.number} " if share.rank.world > 1 else ""
    out = console.console(stderr=False)

    def show(update: Update) -> None:
        line = _line(update, options.train_updates)
        out.print(f"{mark}{line}", markup=False, soft_wrap=True)

    began = time.perf_counter()
    done = train(options, show)
    wall_s = time.perf_counter() - began
    out.print(f"{mark}{_conclusion(done, wall_s)}", markup=False, soft_wrap=True)
    if done.errors:
        said = done.last_error.partition("\n")[0]
        errors.print(f"{mark}the last error: {said}", markup=False, soft_wrap=True)
    if done.interrupted:
        errors.print("polyarm: interrupted; the lines above are what was done until then")
        return INTERRUPTED
    if done.errors and not done.steps:
        errors.print("polyarm: every step failed, so nothing was learnt")
        return TOO_MANY_ERRORS
    return 0


def _line(update: Update, updates: int) -> str:
    text = (
        f"update={update.number}/{updates} loss={update.loss:.4f}"
        f" grad_norm={update.grad_norm:.4f} reward={update.reward:.4f}"
        f" {update.steps_per_s:,.0f} env-steps/s"
    )
    return f"{text} errors={update.errors}" if update.errors else text


def _conclusion(done: Training, wall_s: float) -> str:
    text = f"{len(done.updates)} updates, {done.steps:,} env steps in {wall_s:.1f} s"
    cut_short = f", {done.errors} errors (episodes cut short)" if done.errors else ""
    return f"{text} on {done.device}{cut_short}"
