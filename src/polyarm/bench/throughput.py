"""The throughput benchmark: random actions through the vector env, and what came of them.

Only building actions and calling the env is timed; counting and showing progress is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyarm.bench.options import BenchOptions
from polyarm.bench.plan import Plan, make_plan
from polyarm.bench.profile import CallClock, TimingSplit
from polyarm.bench.tally import Tally
from polyarm.report.encoding import plain
from polyarm.vector import host
from polyarm.vector.env import VectorEnv
from polyarm.vector.fitting import free_graphics_memory, renders_on_gpu
from polyarm.vector.make import make_vec

__all__ = ["BenchOptions", "BenchResult", "Progress", "TimingSplit", "run_bench"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands after a call.

    Attributes:
        call: Number of calls so far.
        steps: Env steps so far, of all envs together.
        total_steps: Env steps at which the run ends.
        exec_s: Seconds the critical worker of this call took.
        ipc_s: The rest of this call.
        done: Episodes finished so far.
        errors: Episodes cut short by a failure so far.
        average_return: Of the finished episodes; None while there are none.
        running_return: What running episodes have gathered, averaged over the envs.
        steps_per_s: Env steps per second so far.
    """

    call: int
    steps: int
    total_steps: int
    exec_s: float
    ipc_s: float
    done: int
    errors: int
    average_return: float | None
    running_return: float
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run measured.

    Attributes:
        options: What was asked for.
        env_steps_per_s: Env steps per second of wall time, all envs together.
        frames_per_s: Frames delivered fresh per second of wall time.
        env_steps: Env steps executed.
        frames: Frames delivered fresh.
        calls: Calls of ``step`` or ``step_chunk``.
        wall_s: Seconds spent building actions and calling the env.
        episodes: Episodes finished.
        success_rate: Of the finished episodes; None where the envs don't say.
        average_return: Of the finished episodes; None if there are none.
        running_return: What episodes still running had gathered, averaged over the envs.
        errors: Episodes cut short by a failing env or worker; never among the finished ones.
        latency_p50_s: Median time of a call.
        latency_p99_s: 99th percentile of the time of a call.
        startup_s: Seconds from the request to the first observation.
        pss_nbytes_per_env: Proportional memory of the workers, divided by the envs.
        vram_nbytes_per_env: GPU memory that went while the envs were made, divided by them; None
            where no GPU renders or none tells.
        num_workers: Worker processes; 0 for a run in this process.
        interrupted: Whether the run was stopped early.
        videos: Files that were filmed; an episode that has not ended has none.
        renderer: What renders the frames.
        machine: The machine that ran it.
        provenance: Versions and settings of the envs, one entry per distinct task.
        profile: Where the time went, if it was asked for.
    """

    options: BenchOptions
    env_steps_per_s: float
    frames_per_s: float
    env_steps: int
    frames: int
    calls: int
    wall_s: float
    episodes: int
    success_rate: float | None
    average_return: float | None
    running_return: float
    errors: int
    latency_p50_s: float
    latency_p99_s: float
    startup_s: float
    pss_nbytes_per_env: int
    vram_nbytes_per_env: int | None
    num_workers: int
    interrupted: bool
    videos: tuple[str, ...]
    renderer: str
    machine: dict[str, str | int | float]
    provenance: tuple[Mapping[str, Any], ...]
    profile: TimingSplit | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, which has no NaN: that is the text ``"nan"``."""
        data: dict[str, Any] = plain(asdict(self))
        return data


def run_bench(
    options: BenchOptions, progress: Callable[[Progress], None] = lambda _: None
) -> BenchResult:
    """Run the benchmark.

    Args:
        options: What to run.
        progress: Called after every call of the env; its time is not counted.

    Returns:
        What was measured; on Ctrl-C what was measured until then, with ``interrupted`` set.

    Raises:
        PolyarmError: Of the engine, such as `UnknownName` for a task that does not exist.
        KeyboardInterrupt: When interrupted before the first observation.
    """
    return run_plan(make_plan(options), progress)


def run_plan(
    plan: Plan,
    progress: Callable[[Progress], None] = lambda _: None,
    ready: Callable[[], object] = lambda: None,
) -> BenchResult:
    """Run a benchmark that has been planned; else as `run_bench`.

    Args:
        plan: What to run.
        progress: As for `run_bench`.
        ready: Called once all envs have delivered an observation; the clock starts afterwards.
    """
    options = plan.options
    free_vram = _free_vram(options)
    began = time.perf_counter()
    with make_vec(plan.tasks, **plan.make_arguments()) as envs:
        obs, _ = envs.reset()
        run = _Run(envs, plan, obs, startup_s=time.perf_counter() - began)
        if (left := _free_vram(options)) is not None and free_vram is not None:
            run.vram_nbytes_per_env = max(0, free_vram - left) // envs.num_envs
        ready()
        try:
            while run.steps_left > 0:
                progress(run.advance())
        except KeyboardInterrupt:
            return run.result(interrupted=True)
        return run.result(interrupted=False)


class _Run:
    """A run from its first observation on."""

    def __init__(self, envs: VectorEnv, plan: Plan, obs: Any, startup_s: float) -> None:
        self._envs = envs
        self._options = options = plan.options
        self._film = plan.film
        self._obs = obs
        self._startup_s = startup_s
        self._actions = plan.actions(envs.single_action_space)
        self._tally = Tally(envs.num_envs, envs.single_observation_space)
        wanted = options.num_workers
        self._num_workers = envs.num_envs if wanted is None else min(wanted, envs.num_envs)
        self._clock = CallClock(envs.num_envs, max(1, self._num_workers))
        self._total_steps = options.num_envs * options.max_steps
        self._latencies: list[int] = []
        self.vram_nbytes_per_env: int | None = None

    @property
    def steps_left(self) -> int:
        return self._total_steps - self._tally.steps

    def advance(self) -> Progress:
        """Make one call; the last ones are shorter, so that a run overshoots by less than N."""
        chunk = None
        if self._options.action_chunk > 1:
            chunk = min(self._options.action_chunk, -(-self.steps_left // self._envs.num_envs))
        began = time.perf_counter_ns()
        actions = self._actions.build(chunk, self._obs)
        built = time.perf_counter_ns()
        step = self._envs.step if chunk is None else self._envs.step_chunk
        self._obs, rewards, terminated, truncated, info = step(actions)
        call_ns = time.perf_counter_ns() - built
        failed = self._tally.add(rewards, terminated, truncated, info)
        exec_ns = self._clock.add(built - began, call_ns, self._envs.timings_ns(), failed)
        self._latencies.append(call_ns)
        tally = self._tally
        return Progress(
            call=len(self._latencies),
            steps=tally.steps,
            total_steps=self._total_steps,
            exec_s=exec_ns / 1e9,
            ipc_s=(call_ns - exec_ns) / 1e9,
            done=len(tally.returns),
            errors=tally.errors,
            average_return=tally.average_return,
            running_return=tally.running_return,
            steps_per_s=tally.steps / (self._clock.wall_ns / 1e9),
        )

    def result(self, *, interrupted: bool) -> BenchResult:
        """Everything measured so far."""
        tally, options = self._tally, self._options
        wall_s = self._clock.wall_ns / 1e9
        latencies = np.array(self._latencies or [0]) / 1e9
        return BenchResult(
            options=options,
            env_steps_per_s=tally.steps / wall_s if wall_s else 0.0,
            frames_per_s=tally.frames / wall_s if wall_s else 0.0,
            env_steps=tally.steps,
            frames=tally.frames,
            calls=len(self._latencies),
            wall_s=wall_s,
            episodes=len(tally.returns),
            success_rate=tally.success_rate,
            average_return=tally.average_return,
            running_return=tally.running_return,
            errors=tally.errors,
            latency_p50_s=float(np.quantile(latencies, 0.5)),
            latency_p99_s=float(np.quantile(latencies, 0.99)),
            startup_s=self._startup_s,
            pss_nbytes_per_env=_memory(self._envs.worker_pids) // self._envs.num_envs,
            vram_nbytes_per_env=self.vram_nbytes_per_env,
            num_workers=self._num_workers,
            interrupted=interrupted,
            videos=self._videos(),
            renderer=self._envs.provenance[0]["renderer"],
            machine=host.machine_facts(),
            provenance=_distinct(self._envs.provenance),
            profile=self._clock.split() if options.profile_timing else None,
        )

    def _videos(self) -> tuple[str, ...]:
        if self._film is None:
            return ()
        return tuple(str(self._film.folder / name) for name in self._tally.files)


def _memory(pids: Sequence[int]) -> int:
    """Proportional memory of the workers, or of this process where it holds the envs itself."""
    return sum(host.proportional_memory(pid) for pid in pids or [os.getpid()])


def _free_vram(options: BenchOptions) -> int | None:
    """Free memory of the GPU that renders, if one does and tells."""
    suites = sorted({name.partition("/")[0] for name in options.tasks if "/" in name})
    rendered = options.renders or options.films
    if not rendered or not renders_on_gpu(options.display, suites):
        return None
    return free_graphics_memory()


def _distinct(provenance: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    seen: list[Mapping[str, Any]] = []
    for entry in map(plain, provenance):  # an array in it could not be compared
        if entry and entry not in seen:
            seen.append(entry)
    return tuple(seen)
