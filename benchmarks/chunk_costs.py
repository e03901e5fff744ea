"""Where the wall time of a lockstep chunk goes: inside workers, between them, and in the parent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import polyarm


@dataclass(frozen=True, slots=True)
class ChunkCosts:
    """Means over the chunks of a run; times in seconds per chunk.

    Attributes:
        workers: Worker processes, no more than there are cores.
        envs: Slots, as many in each worker.
        steps: Env steps of all slots together.
        wall_s: From the call to its return.
        parent_s: CPU time of the parent. Some of it passes while workers still step.
        sim_s: Inside the env's own step and reset, mean over workers, sum over a worker's slots.
        frames_s: Rendering, likewise.
        obs_s: Writing observations into the block, likewise.
        other_s: The rest of a worker's time with its commands, likewise.
        slowest_s: The busiest worker of each chunk; the mean worker has the sum of those four.
    """

    workers: int
    envs: int
    steps: float
    wall_s: float
    parent_s: float
    sim_s: float
    frames_s: float
    obs_s: float
    other_s: float
    slowest_s: float

    @property
    def busy_s(self) -> float:
        """What the mean worker works."""
        return self.sim_s + self.frames_s + self.obs_s + self.other_s

    @property
    def waiting_s(self) -> float:
        """What the mean worker waits for the slowest, and everybody for wake-ups."""
        return self.wall_s - self.busy_s - self.parent_s

    def shares(self) -> dict[str, float]:
        """Shares of the wall time; wake-up is below 0 where the parent works beside workers."""
        parts = {
            "simulation": self.sim_s,
            "frames": self.frames_s,
            "observation": self.obs_s,
            "worker_other": self.other_s,
            "slowest_worker": self.slowest_s - self.busy_s,
            "parent": self.parent_s,
            "wake_up": self.wall_s - self.slowest_s - self.parent_s,
        }
        return {name: value / self.wall_s for name, value in parts.items()}


def profile(
    envs: polyarm.VectorEnv, step: Callable[[], int], workers: int, seconds: float, calls: int
) -> ChunkCosts:
    """Run whole multiples of ``calls`` chunks, for ``seconds`` at least."""
    made, wall, cpu, slowest = 0, 0.0, 0.0, 0.0
    chunks, parts = 0, np.zeros(4)
    while wall < seconds or chunks % calls:
        began, cpu_began = time.perf_counter(), time.process_time()
        made += step()
        wall += time.perf_counter() - began
        cpu += time.process_time() - cpu_began
        chunks += 1
        spent = envs.timings_ns()  # groups of slots are neighbours, all of one size
        per_worker = {name: ns.reshape(workers, -1).sum(1) for name, ns in spent.items()}
        slowest += float(per_worker["total"].max())
        parts += [per_worker[name].mean() for name in ("total", "sim", "frames", "obs")]
    total, sim, frames, obs = (parts / chunks / 1e9).tolist()
    return ChunkCosts(
        workers=workers,
        envs=envs.num_envs,
        steps=made / chunks,
        wall_s=wall / chunks,
        parent_s=cpu / chunks,
        sim_s=sim,
        frames_s=frames,
        obs_s=obs,
        other_s=total - sim - frames - obs,
        slowest_s=slowest / chunks / 1e9,
    )
