"""What it costs to run as several ranks: two of torchrun with 4 envs each against one process of 8.

Meta-World without frames, steady state: the clock starts when all envs of all ranks are there.

- rank_efficiency: `polyarm bench`, random actions in chunks of 8, all ranks together.
- rank_efficiency_eval: `polyarm eval`, episodes of 100 steps from the queue that the ranks share by
  the run's folder, each synced to the disk; while all ranks had episodes to begin.
- ray_overhead and what else `FURTHER` names: of other files, for the same JSON line.

    python benchmarks/ranks.py --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import ray_leg

RANKS = 2
ENVS = 8
CHUNK = 8
HORIZON = 100
TASK = "metaworld/reach-v3"
ALONE = [sys.executable, "-m", "polyarm"]
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
    *(f"--nproc_per_node={RANKS}", "-m", "polyarm"),
]


FURTHER: tuple[Callable[[], dict[str, Any]], ...] = (ray_leg.ray_overhead,)
"""Figures of other benchmarks of this kind, each by name, for the same JSON line."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4000, help="of each env, in each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="polyarm-") as name:
        os.environ["PET_LOG_DIR"] = name  # of torchrun, which leaves its logs where they are
        results = measure.interleave(contenders(options.steps, Path(name)), options.rounds)
    report(results, options)


def contenders(steps: int, folder: Path) -> dict[str, Callable[[], float]]:
    """One function per contender that returns its env-steps/s."""
    return {
        "bench_ranks": lambda: bench(TORCHRUN, steps),
        "bench_alone": lambda: bench(ALONE, steps),
        "eval_ranks": lambda: evaluate(TORCHRUN, steps, folder),
        "eval_alone": lambda: evaluate(ALONE, steps, folder),
    }


def bench(command: list[str], steps: int) -> float:
    words = ["bench", "--task", TASK, "--num-envs-total", str(ENVS), "--max-steps", str(steps)]
    out = run([*command, *words, "--action-chunk", str(CHUNK), "--json"])
    result = json.loads(out.splitlines()[-1])
    assert result["errors"] == 0
    assert result["options"]["num_envs"] == ENVS
    return float(result["env_steps_per_s"])


def evaluate(command: list[str], steps: int, folder: Path) -> float:
    episodes = ENVS * steps // HORIZON
    words = ["eval", "--policy", "random", "--task", TASK, "--num-envs-total", str(ENVS)]
    words += ["--episodes", str(episodes), "--chunk", str(CHUNK), "--out", str(folder), "--fresh"]
    run([*command, *words, "--suite-options", f"max_steps={HORIZON}"])
    return steady_rate(folder, episodes)


def steady_rate(folder: Path, episodes: int) -> float:
    """Env-steps/s while all slots of all ranks played; an episode counts by its part in that."""
    ranks = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.glob("episodes*.jsonl")
    ]
    assert sum(map(len, ranks)) == episodes
    starts = [[one["finished_at"] - one["seconds"] for one in rank] for rank in ranks]
    began, ended = max(map(min, starts)), min(map(max, starts))
    made = 0.0
    for rank in ranks:
        for one in rank:
            first = max(began, one["finished_at"] - one["seconds"])
            overlap = min(ended, one["finished_at"]) - first
            made += one["steps"] * max(0.0, overlap) / one["seconds"]
    return made / (ended - began)


def run(command: list[str]) -> str:
    """What a command writes to stdout; torch must not share out the cores by itself."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def report(results: measure.Rounds, options: argparse.Namespace) -> None:
    rates = measure.medians(results)
    figures = {
        "rank_efficiency": measure.ratio(results, "bench_ranks", "bench_alone"),
        "rank_efficiency_eval": measure.ratio(results, "eval_ranks", "eval_alone"),
    }
    rows = [(name, f"{value:,.0f} env-steps/s") for name, value in rates.items()]
    rows += [(name, f"{value:.3f}") for name, value in figures.items()]
    measure.print_table(f"{RANKS} ranks of {ENVS // RANKS} envs against one of {ENVS}", rows)
    measure.print_json(
        {
            "benchmark": "ranks",
            "rounds": options.rounds,
            **figures,
            **{name: value for further in FURTHER for name, value in further().items()},
            "env_steps_per_s": rates,
            "per_round": results,
        }
    )


if __name__ == "__main__":
    main()
