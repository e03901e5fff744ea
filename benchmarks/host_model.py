"""What a lockstep chunk costs on a host that was not measured: a sum of three fitted parts.

A chunk lasts as long as a worker is busy, plus the parent, plus the waiting:

    busy    = envs / workers · steps · step_s · (1 + overhead)
    parent  = a + b · workers + c · envs
    waiting = d + e · busy · sqrt(2 ln workers)

``step_s`` is what one env step costs in a bare loop while as many cores are busy: the machine's
share, which is measured, not fitted. The root is how far the largest of so many normal values lies
above their mean, in standard deviations: a lockstep waits for its slowest worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from chunk_costs import ChunkCosts


@dataclass(frozen=True, slots=True)
class HostModel:
    """The fitted parts; times in seconds per chunk.

    Attributes:
        overhead: What a worker adds to a bare env step, as a share of it.
        parent: Fixed, per worker, per env.
        waiting: Fixed, and as a share of busy per standard deviation.
    """

    overhead: float
    parent: tuple[float, float, float]
    waiting: tuple[float, float]

    def chunk_s(self, workers: int, envs: int, step_s: float, steps: float) -> float:
        """How long a chunk takes in which every env makes ``steps``."""
        busy = math.ceil(envs / workers) * steps * step_s * (1 + self.overhead)
        fixed, spread = self.waiting
        return busy + self.parent_s(workers, envs) + fixed + spread * busy * _spread(workers)

    def parent_s(self, workers: int, envs: int) -> float:
        """The parent's own time per chunk."""
        fixed, per_worker, per_env = self.parent
        return fixed + per_worker * workers + per_env * envs

    def rate(self, workers: int, envs: int, step_s: float, steps: float) -> float:
        """Env steps per second."""
        return envs * steps / self.chunk_s(workers, envs, step_s, steps)


def fit(costs: Sequence[ChunkCosts], step_s: Mapping[int, float]) -> HostModel:
    """Fit the parts to measured chunks.

    Args:
        costs: Chunks of several numbers of workers and envs.
        step_s: Seconds per step of a bare loop, by how many run at the same time.
    """
    overheads = [one.busy_s * one.workers / (one.steps * step_s[one.workers]) - 1 for one in costs]
    parent = least_squares(
        [(1.0, one.workers, one.envs) for one in costs], [one.parent_s for one in costs]
    )
    waiting = least_squares(
        [(1.0, one.busy_s * _spread(one.workers)) for one in costs],
        [one.waiting_s for one in costs],
    )
    return HostModel(
        overhead=float(np.median(overheads)),
        parent=(parent[0], parent[1], parent[2]),
        waiting=(waiting[0], waiting[1]),
    )


def _spread(workers: int) -> float:
    return math.sqrt(2 * math.log(workers))


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Factors of at least 0 (a cost cannot be negative), relative errors weighing the same."""
    weights = 1 / np.maximum(np.abs(values), 1e-6)
    matrix, target = np.array(rows) * weights[:, np.newaxis], np.array(values) * weights
    used = list(range(matrix.shape[1]))
    while used:
        found = np.linalg.lstsq(matrix[:, used], target)[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    factors = [0.0] * matrix.shape[1]
    for place, value in zip(used, found if used else (), strict=True):
        factors[place] = float(value)
    return factors
