"""``polyarm train``: a line for each update, and what was done in the end."""

from __future__ import annotations

import time
from dataclasses import replace

from polyarm.bench.plan import suite_settings
from polyarm.bench.ranks import Rank, of_this_rank
from polyarm.cli import console
from polyarm.cli.bench import announce_rank
from polyarm.cli.exits import INTERRUPTED
from polyarm.training.options import TrainOptions
from polyarm.training.pipeline import Training, Update, train


def run(options: TrainOptions) -> int:
    """Train and show it; returns the exit code."""
    errors = console.console(stderr=True)
    announce_rank(options, errors)
    rank = Rank.current()
    options, before = of_this_rank(options)
    options = replace(options, seed=options.seed + before)
    suite_settings(options)  # an option that a suite lacks is told before anything starts
    errors.print(
        f"train {options.task}: {options.num_envs} envs, {options.train_updates} updates of"
        f" {options.action_chunk} steps each",
        markup=False,
    )
    mark = f"rank={rank.number} " if rank.world > 1 else ""
    out = console.console(stderr=False)

    def show(update: Update) -> None:
        line = _line(update, options.train_updates)
        out.print(f"{mark}{line}", markup=False, soft_wrap=True)

    began = time.perf_counter()
    done = train(options, show)
    out.print(f"{mark}{_conclusion(done, time.perf_counter() - began)}", markup=False)
    if done.interrupted:
        errors.print("polyarm: interrupted; the lines above are what was done until then")
    return INTERRUPTED if done.interrupted else 0


def _line(update: Update, updates: int) -> str:
    return (
        f"update={update.number}/{updates} loss={update.loss:.4f}"
        f" grad_norm={update.grad_norm:.4f} reward={update.reward:.4f}"
        f" {update.steps_per_s:,.0f} env-steps/s"
    )


def _conclusion(done: Training, wall_s: float) -> str:
    steps = done.updates[-1].steps if done.updates else 0
    return f"{len(done.updates)} updates, {steps:,} env steps in {wall_s:.1f} s on {done.device}"
