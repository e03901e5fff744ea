"""What moving observations costs: an env that does nothing, against the peers' vector envs.

Two 256×256×3 uint8 frames and 39 floats per env and step, one worker per env, all checks on.
Peers: Gymnasium's AsyncVectorEnv (shared memory, its default copy) and Stable-Baselines3's
SubprocVecEnv. Rates are env-steps/s; nobody reads the observations, but each contender's are
checked to be fresh before it counts, and the last ones are held until the next have come, as by any
loop whose policy needs them. Every turn has a process of its own (`apart.py`).

    python benchmarks/transport.py --num-envs 8 --seconds 1 --rounds 7
    python benchmarks/transport.py --drop     nobody holds any: kindest to those who copy
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import apart
import measure
import numpy as np

import polyarm
from polyarm.testing import BindingNullEnv, NullEnv

CHUNK = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="per contender and round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--drop", action="store_true", help="hold no observation")
    options = parser.parse_args()
    peers = [name for name, package in PACKAGES.items() if find_spec(package)]
    makers = {name: partial(contender, name, options) for name in (*peers, *OURS)}
    report(measure.interleave(apart.contenders(makers, options.seconds), options.rounds), options)


def gymnasium_envs(num_envs: int) -> Any:
    from gymnasium.vector import AsyncVectorEnv

    return AsyncVectorEnv([NullEnv] * num_envs, shared_memory=True)


def sb3_envs(num_envs: int) -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv([NullEnv] * num_envs)


PEERS: dict[str, Callable[[int], Any]] = {"async": gymnasium_envs, "sb3": sb3_envs}
PACKAGES = {"async": "gymnasium", "sb3": "stable_baselines3"}
OURS: dict[str, dict[str, Any]] = {
    "step": {"tasks": NullEnv},
    "step_inplace": {"tasks": BindingNullEnv},
    "step_copy": {"tasks": NullEnv, "copy": True},
    "chunk8": {"tasks": NullEnv},
}


@contextmanager
def contender(name: str, options: argparse.Namespace) -> Iterator[Callable[[], int]]:
    """Open a vector env, check that it delivers what it should, and give its stepper."""
    num_envs, steps = options.num_envs, CHUNK if name == "chunk8" else 1
    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (num_envs, steps, 4)).astype(np.float32)
    single = np.ascontiguousarray(actions[:, 0])
    make = PEERS.get(name) or (lambda num_envs: polyarm.make_vec(num_envs=num_envs, **OURS[name]))
    with closing(make(num_envs)) as envs:
        call = partial(envs.step, single) if steps == 1 else partial(envs.step_chunk, actions)
        envs.reset()
        check_fresh(name, call, steps)
        yield stepper(call, num_envs * steps, hold=not options.drop)


def check_fresh(name: str, call: Callable[[], Any], steps: int) -> None:
    """The null env stamps its step's number on every frame: a stale one shows."""
    for number in (1, 2, 3):
        obs = call()[0]
        for key, value in (("pixels/front", (0, 0, 0)), ("pixels/wrist", (0, 0, 0)), ("state", 0)):
            index = (slice(None), *np.atleast_1d(value))
            if not (obs[key][index] == number * steps).all():
                raise SystemExit(f"{name} delivered a stale {key} at step {number}")


def stepper(call: Callable[[], Any], steps: int, *, hold: bool) -> Callable[[], int]:
    held: Any = None

    def step() -> int:
        nonlocal held
        result = call()
        held = result if hold else None
        return steps

    return step


def report(results: measure.Rounds, options: argparse.Namespace) -> None:
    rates = measure.medians(results)
    ratios: dict[str, float | None] = {
        f"ratio_{name}": measure.ratio(results, name, "async")
        for name in ("step", "step_inplace", "step_copy", "chunk8")
    }
    ratios["ratio_sb3"] = measure.ratio(results, "step", "sb3") if "sb3" in results else None
    rows = [(name, f"{value:,.0f} /s") for name, value in rates.items()]
    rows += [(name, "not installed" if x is None else f"{x:.2f}x") for name, x in ratios.items()]
    measure.print_table(f"transport, {options.num_envs} envs: env-steps/s", rows)
    measure.print_json(
        {
            "benchmark": "transport",
            "num_envs": options.num_envs,
            "observations": "dropped" if options.drop else "held",
            "seconds": options.seconds,
            "rounds": options.rounds,
            **ratios,
            "env_steps_per_s": rates,
            "env_steps_per_s_of_each_round": results,
        }
    )


if __name__ == "__main__":
    main()
