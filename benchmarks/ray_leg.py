"""What a cluster costs on one machine: an evaluation on a one-node Ray cluster against local.

Meta-World's experts on ten tasks, state only, 8 envs. The cluster is up and this process is
connected to it; all that a user waits for otherwise is counted on both sides: on Ray's, that a
worker process becomes the node's actor, imports polyarm and is examined; on both, that envs are
built, played and closed.

    python benchmarks/ray_leg.py --rounds 3
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import measure

import polyarm
from polyarm.distributed.ray.cluster import Cluster

TASK = "metaworld/mt10"
ENVS = 8
EPISODES = 150
"""Of each task: about a minute on two cores, as starting is a second or two however long it is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="per task")
    options = parser.parse_args()
    figures = ray_overhead(options.rounds, options.episodes)
    seconds = figures["ray_seconds"]
    rows = [(name, f"{seconds[name]:.2f} s") for name in seconds]
    rows.append(("ray / local", f"{figures['ray_overhead']:.3f}, at most 1.15"))
    measure.print_table(f"{10 * options.episodes} episodes of {TASK}, {ENVS} envs", rows)
    measure.print_json({**figures, "rounds": options.rounds, "episodes": options.episodes})


def ray_overhead(rounds: int = 3, episodes: int = EPISODES) -> dict[str, Any]:
    """How many times as long as locally an evaluation takes on a one-node cluster."""
    scores: dict[str, float] = {}

    def play(name: str, **how: Any) -> float:
        began = time.perf_counter()
        results = polyarm.evaluate(
            "expert", TASK, episodes=episodes, num_envs=ENVS, chunk=16, **how
        )
        seconds = time.perf_counter() - began
        assert results.missing == results.errors == 0
        assert scores.setdefault(name, results.success_rate) == results.success_rate
        return seconds

    cluster = Cluster("local")
    try:
        contenders = {
            "local": lambda: play("local"),
            "ray": lambda: play("ray", ray="auto"),
        }
        results = measure.interleave(contenders, rounds)
    finally:
        cluster.close()
    assert scores["local"] == scores["ray"]
    return {
        "ray_overhead": round(measure.ratio(results, "ray", "local"), 3),
        "ray_seconds": {name: round(value, 2) for name, value in measure.medians(results).items()},
        "ray_success_rate": scores["ray"],
    }


if __name__ == "__main__":
    main()
