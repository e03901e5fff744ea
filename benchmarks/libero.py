"""LIBERO against LIBERO's own vector env and LeRobot's evaluation loop.

Two 256 x 256 cameras, software GL on the calling thread for everybody. Contenders live in processes
of their own (libero_leg.py) and take turns.

    python benchmarks/libero.py                 # all of it, some 40 minutes on two cores
    python benchmarks/libero.py --episodes 4    # a shorter loop of episodes
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import measure

ENVIRONMENT = {
    "LP_NUM_THREADS": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MUJOCO_GL": "egl",
    "PYOPENGL_PLATFORM": "egl",
}
EPISODE_STEPS = 120


class Leg:
    """A process that does what it is told and says how long it took."""

    def __init__(self, *arguments: str) -> None:
        script = Path(__file__).with_name("libero_leg.py")
        self._child = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), *arguments],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._answer()

    def seconds(self, job: str, count: int) -> float:
        assert self._child.stdin is not None
        print(json.dumps([job, count]), file=self._child.stdin, flush=True)
        return self._answer()["seconds"]

    def _answer(self) -> dict[str, float]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            sys.exit(f"a contender ended with code {self._child.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def __enter__(self) -> Leg:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._child.kill()
        self._child.communicate()


def steps_and_resets(rounds: int, steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Ratios and medians, in milliseconds per env-step or per episode start."""
    with Leg("libero") as peer, Leg("polyarm") as ours:
        contenders = {
            "libero every": lambda: peer.seconds("every", steps) / steps,
            "polyarm every": lambda: ours.seconds("every", steps) / steps,
            "polyarm chunk8": lambda: ours.seconds("chunks", 2 * steps) / (2 * steps),
            "libero reset": lambda: peer.seconds("episode", 1),
            "polyarm reset": lambda: ours.seconds("episode", 1),
        }
        times = measure.interleave(contenders, rounds)
    with Leg("libero_bare") as peer, Leg("polyarm_bare") as ours:
        bare = {
            "libero noframes": lambda: peer.seconds("every", 100) / 100,
            "polyarm noframes": lambda: ours.seconds("every", 100) / 100,
        }
        times |= measure.interleave(bare, rounds)
    figures = {
        "ratio_every": measure.ratio(times, "libero every", "polyarm every"),
        "ratio_chunk8": measure.ratio(times, "libero every", "polyarm chunk8"),
        "ratio_reset": measure.ratio(times, "libero reset", "polyarm reset"),
        "ratio_step_noframes": measure.ratio(times, "libero noframes", "polyarm noframes"),
    }
    return figures, {name: 1000 * value for name, value in measure.medians(times).items()}


def starts(rounds: int, num_envs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Ratios, and the seconds and MiB behind them."""
    memory: measure.Rounds = {"spawn": [], "polyarm": []}

    def start(who: str) -> float:
        with Leg("startup", who, str(num_envs)) as leg:
            memory[who].append(leg.first["pss_nbytes"])
            return leg.first["seconds"]

    contenders = {who: (lambda who=who: start(who)) for who in memory}
    times = measure.interleave(contenders, rounds)
    figures = {
        "startup_ratio": measure.ratio(times, "spawn", "polyarm"),
        "pss_ratio": measure.ratio(memory, "polyarm", "spawn"),
    }
    found = {f"{who} startup s": value for who, value in measure.medians(times).items()}
    found |= {f"{who} MiB": value / 2**20 for who, value in measure.medians(memory).items()}
    return figures, found


def episodes(count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Whole evaluations, from the first import to the last episode."""

    def play(who: str) -> float:
        with Leg("episodes", who, str(count), str(EPISODE_STEPS)) as leg:
            return leg.first["seconds"]

    seconds = {who: play(who) for who in ("polyarm", "lerobot", "lerobot_soft")}
    figures = {
        "ratio_episode": seconds["lerobot"] / seconds["polyarm"],
        "ratio_episode_soft": seconds["lerobot_soft"] / seconds["polyarm"],
    }
    return figures, {f"{who} episodes s": value for who, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="env steps per env and round")
    parser.add_argument("--num-envs", type=int, default=8, help="envs that are started at once")
    parser.add_argument("--episodes", type=int, default=20)
    options = parser.parse_args()
    figures: dict[str, float] = {}
    found: dict[str, float] = {}
    for ratios, medians in (
        steps_and_resets(options.rounds, options.steps),
        starts(max(1, options.rounds // 2), options.num_envs),
        episodes(options.episodes),
    ):
        figures |= ratios
        found |= medians
    rows = [(name, f"{value:.1f}") for name, value in found.items()]
    rows += [(name, f"{value:.2f}") for name, value in figures.items()]
    measure.print_table("LIBERO (ms per step of 2 envs or per episode start, s, MiB)", rows)
    measure.print_json({"benchmark": "libero", **vars(options), **figures, "medians": found})


if __name__ == "__main__":
    main()
