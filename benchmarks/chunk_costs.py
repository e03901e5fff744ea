"""Where the wall time of a lockstep chunk goes: inside workers, between them, and in the parent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from processes import cpu_seconds, proportional_memory

import polyarm


@dataclass(frozen=True, slots=True)
class Engine:
    """A running vector env of the study, and what it took to start it.

    Attributes:
        envs: The vector env.
        workers: Its worker processes.
        start_s: Until the first observations.
        pids: All its processes.
        gpu_mib: By how much the GPUs' memory in use grew.
    """

    envs: polyarm.VectorEnv
    workers: int
    start_s: float
    pids: tuple[int, ...]
    gpu_mib: int

    def pss_mib(self) -> float:
        """Proportional memory of all its processes now; forked ones own more as time goes by."""
        return proportional_memory(list(self.pids)) / 2**20


@dataclass(frozen=True, slots=True)
class ChunkCosts:
    """Means over the chunks of a run; times in seconds per chunk.

    Attributes:
        workers: Worker processes, no more than there are cores.
        envs: Slots, as many in each worker.
        steps: Env steps of all slots together.
        wall_s: From the call to its return.
        parent_s: CPU time of the parent. Some of it passes while workers still step.
        cpu_s: CPU time of all other processes of the vector env, whatever else the machine does.
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
    cpu_s: float
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

    @property
    def step_cpu_s(self) -> float:
        """CPU time per env step, of all processes together."""
        return (self.parent_s + self.cpu_s) / self.steps

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


def profile(engine: Engine, step: Callable[[], int], seconds: float, calls: int) -> ChunkCosts:
    """Run whole multiples of ``calls`` chunks, for ``seconds`` at least."""
    envs, workers = engine.envs, engine.workers
    others_began = cpu_seconds(engine.pids)
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
        cpu_s=(cpu_seconds(engine.pids) - others_began) / chunks,
        sim_s=sim,
        frames_s=frames,
        obs_s=obs,
        other_s=total - sim - frames - obs,
        slowest_s=slowest / chunks / 1e9,
    )
