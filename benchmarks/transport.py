"""What moving observations costs: an env that does nothing, against the peers' vector envs.

Two 256×256×3 uint8 frames and 39 floats per env and step, one worker per env, all checks on.
Peers: Gymnasium's AsyncVectorEnv (shared memory, its default copy) and Stable-Baselines3's
SubprocVecEnv. Rates are env-steps/s; nobody reads the observations, but each contender's are
checked to be fresh before it counts.

    python benchmarks/transport.py --num-envs 8 --seconds 1 --rounds 7
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import measure
import numpy as np
from gymnasium.vector import AsyncVectorEnv

import polyarm
from polyarm.testing import BindingNullEnv, NullEnv

CHUNK = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="per contender and round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with ExitStack() as stack:
        steppers = contenders(options.num_envs, stack)
        runs = {
            name: (lambda step=step: measure.rate(step, options.seconds))
            for name, step in steppers.items()
        }
        report(measure.interleave(runs, options.rounds), options)


def contenders(num_envs: int, stack: ExitStack) -> dict[str, Callable[[], int]]:
    """One function per contender that steps all its envs and says how many steps that were."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Peers first: theirs are forked from this process, which should hold nothing of ours yet.
    gymnasium_envs = AsyncVectorEnv([NullEnv] * num_envs, shared_memory=True)
    stack.callback(gymnasium_envs.close)
    sb3_envs = SubprocVecEnv([NullEnv] * num_envs)
    stack.callback(sb3_envs.close)
    ours = stack.enter_context(polyarm.make_vec(NullEnv, num_envs=num_envs))
    inplace = stack.enter_context(polyarm.make_vec(BindingNullEnv, num_envs=num_envs))
    copying = stack.enter_context(polyarm.make_vec(NullEnv, num_envs=num_envs, copy=True))
    chunking = stack.enter_context(polyarm.make_vec(NullEnv, num_envs=num_envs))

    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (num_envs, 4)).astype(np.float32)
    chunk = random.uniform(-1, 1, (num_envs, CHUNK, 4)).astype(np.float32)
    calls: dict[str, tuple[Any, Callable[[], Any], int]] = {
        "async": (gymnasium_envs, lambda: gymnasium_envs.step(actions), 1),
        "sb3": (sb3_envs, lambda: sb3_envs.step(actions), 1),
        "step": (ours, lambda: ours.step(actions), 1),
        "step_inplace": (inplace, lambda: inplace.step(actions), 1),
        "step_copy": (copying, lambda: copying.step(actions), 1),
        "chunk8": (chunking, lambda: chunking.step_chunk(chunk), CHUNK),
    }
    for name, (envs, call, steps) in calls.items():
        envs.reset()
        check_fresh(name, call, steps)
    return {name: stepper(call, num_envs * steps) for name, (_, call, steps) in calls.items()}


def check_fresh(name: str, call: Callable[[], Any], steps: int) -> None:
    """The null env stamps its step's number on every frame: a stale one shows."""
    for number in (1, 2, 3):
        obs = call()[0]
        for key, value in (("pixels/front", (0, 0, 0)), ("pixels/wrist", (0, 0, 0)), ("state", 0)):
            index = (slice(None), *np.atleast_1d(value))
            if not (obs[key][index] == number * steps).all():
                raise SystemExit(f"{name} delivered a stale {key} at step {number}")


def stepper(call: Callable[[], Any], steps: int) -> Callable[[], int]:
    def step() -> int:
        call()
        return steps

    return step


def report(results: measure.Rounds, options: argparse.Namespace) -> None:
    rates = measure.medians(results)
    ratios = {
        f"ratio_{name}": measure.ratio(results, name, "async")
        for name in ("step", "step_inplace", "step_copy", "chunk8")
    }
    ratios["ratio_sb3"] = measure.ratio(results, "step", "sb3")
    rows = [(name, f"{value:,.0f} /s") for name, value in rates.items()]
    rows += [(name, f"{value:.2f}x") for name, value in ratios.items()]
    measure.print_table(f"transport, {options.num_envs} envs: env-steps/s", rows)
    measure.print_json(
        {
            "benchmark": "transport",
            "num_envs": options.num_envs,
            "seconds": options.seconds,
            "rounds": options.rounds,
            **ratios,
            "env_steps_per_s": rates,
        }
    )


if __name__ == "__main__":
    main()
