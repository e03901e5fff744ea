"""How long until the first observation, and how much memory then: 16 Meta-World envs.

Against AsyncVectorEnv with spawned and with forked workers. Every measurement is a fresh trainer
(first_observation.py). Memory is the proportional set size of all processes but the trainer.

    python benchmarks/startup.py --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    memory: measure.Rounds = {"polyarm": [], "spawn": [], "fork": []}

    def seconds(who: str) -> float:
        found = first_observation(who, options.num_envs)
        memory[who].append(found["pss_nbytes"])
        return found["seconds"]

    contenders = {who: (lambda who=who: seconds(who)) for who in memory}
    report(measure.interleave(contenders, options.rounds), memory, options)


def first_observation(who: str, num_envs: int) -> dict[str, float]:
    script = Path(__file__).with_name("first_observation.py")
    command = [sys.executable, "-W", "ignore", str(script), who, str(num_envs)]
    environment = {**os.environ, "MUJOCO_GL": "disable"}  # nobody renders: no window library
    child = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=True
    )
    found: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    return found


def report(times: measure.Rounds, memory: measure.Rounds, options: argparse.Namespace) -> None:
    seconds, nbytes = measure.medians(times), measure.medians(memory)
    figures = {
        "ratio_time_spawn": measure.ratio(times, "spawn", "polyarm"),
        "ratio_time_fork": measure.ratio(times, "fork", "polyarm"),
        "pss_share_spawn": measure.ratio(memory, "polyarm", "spawn"),
        "pss_share_fork": measure.ratio(memory, "polyarm", "fork"),
    }
    rows = [(who, f"{seconds[who]:.2f} s {nbytes[who] / 2**20:6.0f} MiB") for who in seconds]
    rows += [(name, f"{value:.2f}") for name, value in figures.items()]
    measure.print_table(f"startup, {options.num_envs} Meta-World envs", rows)
    measure.print_json(
        {
            "benchmark": "startup",
            "num_envs": options.num_envs,
            "rounds": options.rounds,
            **figures,
            "seconds": seconds,
            "pss_mib": {who: value / 2**20 for who, value in nbytes.items()},
        }
    )


if __name__ == "__main__":
    main()
