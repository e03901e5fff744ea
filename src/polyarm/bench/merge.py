"""What the ranks of a benchmark have measured, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyarm.bench.throughput import BenchResult


def merge(results: Sequence[BenchResult]) -> BenchResult:
    """All ranks as one run, which began for all at once and ended with the last.

    Rates are what was done over the longest wall time: ranks that were done before rested.
    Latencies, start-up and the profile are those of the slowest rank.

    Args:
        results: Of every rank, in their order.
    """
    if len(results) == 1:
        return results[0]
    slowest = max(results, key=lambda one: one.wall_s)
    wall_s = slowest.wall_s
    steps, frames = (sum(getattr(one, name) for one in results) for name in ("env_steps", "frames"))
    envs = [one.options.num_envs for one in results]
    episodes = [one.episodes for one in results]
    return replace(
        slowest,
        options=replace(results[0].options, num_envs=sum(envs)),
        env_steps_per_s=steps / wall_s if wall_s else 0.0,
        frames_per_s=frames / wall_s if wall_s else 0.0,
        env_steps=steps,
        frames=frames,
        calls=sum(one.calls for one in results),
        episodes=sum(episodes),
        success_rate=_mean([one.success_rate for one in results], episodes),
        average_return=_mean([one.average_return for one in results], episodes),
        running_return=_mean([one.running_return for one in results], envs) or 0.0,
        errors=sum(one.errors for one in results),
        latency_p50_s=max(one.latency_p50_s for one in results),
        latency_p99_s=max(one.latency_p99_s for one in results),
        startup_s=max(one.startup_s for one in results),
        pss_nbytes_per_env=int(_mean([one.pss_nbytes_per_env for one in results], envs) or 0),
        vram_nbytes_per_env=_whole(_mean([one.vram_nbytes_per_env for one in results], envs)),
        num_workers=sum(one.num_workers for one in results),
        interrupted=any(one.interrupted for one in results),
        videos=tuple(video for one in results for video in one.videos),
        renderer=", ".join(dict.fromkeys(one.renderer for one in results)),
        machine=results[0].machine,
        provenance=_distinct(results),
    )


def merged_dict(results: Sequence[BenchResult]) -> dict[str, Any]:
    """All ranks together, ready for JSON; each of them under ``ranks`` if there are several."""
    together = merge(results).to_dict()
    if len(results) == 1:
        return together
    return {
        **together,
        "envs_per_rank": [one.options.num_envs for one in results],
        "ranks": [one.to_dict() for one in results],
    }


def _mean(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    """Weighted mean of those that are known; None where none counts."""
    known = [
        (value, weight) for value, weight in zip(values, weights, strict=True) if value is not None
    ]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _distinct(results: Sequence[BenchResult]) -> tuple[Mapping[str, Any], ...]:
    found: list[Mapping[str, Any]] = []
    for one in results:
        found += [entry for entry in one.provenance if entry not in found]
    return tuple(found)
