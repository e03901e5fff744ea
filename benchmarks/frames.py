"""What rendering on demand saves: Meta-World at 256×256, eight actions per call.

``frames="last"`` renders the observation at the end of a chunk, ``frames="every"`` all eight.

    python benchmarks/frames.py --num-envs 4 --chunks 2 --rounds 3
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack

import measure
import numpy as np
from metaworld_envs import OPTIONS, TASK

import polyarm
from polyarm.display import select

CHUNK = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=2, help="with every frame, per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--camera", default="corner2")
    options = parser.parse_args()
    with ExitStack() as stack:
        runs = {
            # Several times as many chunks, so that both are timed for about as long.
            "last": contender(options, "last", 4 * options.chunks, stack),
            "every": contender(options, "every", options.chunks, stack),
        }
        report(measure.interleave(runs, options.rounds), options)


def contender(
    options: argparse.Namespace, frames: str, chunks: int, stack: ExitStack
) -> Callable[[], float]:
    envs = stack.enter_context(
        polyarm.make_vec(
            f"metaworld/{TASK}",
            num_envs=options.num_envs,
            cameras=(options.camera,),
            frames=frames,  # type: ignore[arg-type]
            seed=0,
            **OPTIONS,
        )
    )
    envs.reset()
    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (options.num_envs, CHUNK, 4)).astype(np.float32)
    envs.step_chunk(actions)

    def rate() -> float:
        made, began = 0, time.perf_counter()
        for _ in range(chunks):
            *_, info = envs.step_chunk(actions)
            made += int(info["steps"].sum())
            assert info["frame_valid"].all(), "a frame is missing"
        return made / (time.perf_counter() - began)

    return rate


def report(results: measure.Rounds, options: argparse.Namespace) -> None:
    rates = measure.medians(results)
    figures = {"ratio_on_demand": measure.ratio(results, "last", "every")}
    rows = [(name, f"{value:,.1f} /s") for name, value in rates.items()]
    rows += [(name, f"{value:.2f}x") for name, value in figures.items()]
    measure.print_table(f"frames, {options.num_envs} envs, 256×256: env-steps/s", rows)
    measure.print_json(
        {
            "benchmark": "frames",
            "num_envs": options.num_envs,
            "chunk": CHUNK,
            "camera": options.camera,
            "rounds": options.rounds,
            **figures,
            "env_steps_per_s": rates,
            "renderer": select("auto", frames=True).description,
        }
    )


if __name__ == "__main__":
    main()
