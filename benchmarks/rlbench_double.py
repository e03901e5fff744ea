"""Frames on demand where frames are dear: RLBench over its test double.

In RLBench a step with two cameras costs 15 to 50 times a step without. The double is told the
price of both; chunks of K actions with a frame at the end run against a frame at every step, in
turns. The last line is one JSON object.

    python benchmarks/rlbench_double.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from polyarm import make_vec
from polyarm.vector import host

DOUBLE = Path(__file__).parents[1] / "tests" / "rlbench_double"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=5, help="chunks per round")
    parser.add_argument("--step-ms", type=float, default=4.0, help="cost of a simulator step")
    parser.add_argument("--frame-steps", type=float, default=15.0, help="cost of a frame, in steps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        _install_double(Path(cache), options.step_ms / 1e3, options.frame_steps)
        result = _measure(options)
    print(json.dumps({**result, "machine": host.machine_facts()}))


def _install_double(cache: Path, step_s: float, frame_steps: float) -> None:
    sys.path.insert(0, str(DOUBLE))
    os.environ.update(
        COPPELIASIM_ROOT=str(DOUBLE / "coppeliasim"),
        POLYARM_CACHE=str(cache),
        DOUBLE_STEP_S=str(step_s),
        DOUBLE_RENDER_S=str(step_s * frame_steps),
    )


def _measure(options: argparse.Namespace) -> dict[str, object]:
    settings = {"num_envs": options.num_envs, "cameras": ("front",), "image_size": (128, 128)}
    settings |= {"arm_mode": "joint_velocity", "max_steps": 10**6}
    with (
        make_vec("rlbench/reach_target", frames="last", **settings) as on_demand,
        make_vec("rlbench/reach_target", frames="every", **settings) as always,
    ):
        legs = {"on_demand": on_demand, "always": always}
        actions = np.zeros((options.num_envs, options.chunk, 8), np.float32)
        rates: dict[str, list[float]] = {name: [] for name in legs}
        for envs in legs.values():
            envs.reset(seed=0)
            envs.step_chunk(actions)
        for _ in range(options.rounds):
            for name, envs in legs.items():
                began = time.perf_counter()
                for _ in range(options.chunks):
                    envs.step_chunk(actions)
                steps = options.chunks * options.chunk * options.num_envs
                rates[name].append(steps / (time.perf_counter() - began))
                print(f"{name}: {rates[name][-1]:.1f} env-steps/s", file=sys.stderr)
    pairs = zip(rates["on_demand"], rates["always"], strict=True)
    return {
        "ratio_on_demand": statistics.median(left / right for left, right in pairs),
        **{f"steps_per_s_{name}": statistics.median(rate) for name, rate in rates.items()},
        "num_envs": options.num_envs,
        "chunk": options.chunk,
        "frame_steps": options.frame_steps,
    }


if __name__ == "__main__":
    main()
