"""What bringing observations to a GPU costs: from the pinned block, and the ways people do it.

64 envs with two 256×256×3 uint8 frames and 39 floats each, 25 MB. Contenders for the transfer
alone, each waited for until the tensors are on the device:

- ``to_torch``: frames as they are, and turned into float32 and bfloat16 NCHW on the device
- ``copy``: ``torch.from_numpy(obs.copy()).to("cuda")``
- ``pageable``: ``torch.from_numpy(obs).to("cuda")``, straight from a block that is not pinned

and for whole steps of an env that does nothing, with actions that come from the device. Without a
GPU it says so, and all figures are null.

    python benchmarks/gpu.py --num-envs 64 --seconds 0.5 --rounds 7
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import measure
import torch

import polyarm
from polyarm.testing import BindingNullEnv
from polyarm.vector.host import cores

DEVICE = "cuda"
FIGURES = (
    "transfer_ms",
    "transfer_gb_per_s",
    "ratio_copy",
    "ratio_pageable",
    "ratio_steps_copy",
    "ratio_steps_pageable",
    "milliseconds",
    "env_steps_per_s",
    "gpu",
    "cuda",
)
Contenders = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-workers", type=int, default=cores())
    parser.add_argument("--seconds", type=float, default=0.5, help="per contender and round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    facts = {"benchmark": "gpu", **vars(options)}
    if not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} finds no GPU here: there is nothing to measure")
        measure.print_json({**facts, **dict.fromkeys(FIGURES)})
        return
    with ExitStack() as stack:
        transfers, steps, nbytes = contenders(options, stack)
        moved = measure.interleave(timed(transfers, 1, options.seconds), options.rounds)
        stepped = measure.interleave(
            timed(steps, options.num_envs, options.seconds), options.rounds
        )
    report(facts, moved, stepped, nbytes)


def contenders(options: argparse.Namespace, stack: ExitStack) -> tuple[Contenders, Contenders, int]:
    """What brings an observation to the GPU, what steps and brings it, and its size in bytes."""

    def make() -> polyarm.VectorEnv:
        envs = polyarm.make_vec(
            BindingNullEnv, num_envs=options.num_envs, num_workers=options.num_workers
        )
        return stack.enter_context(envs)

    plain, pinned = make(), make()
    views = {
        "to_torch": pinned.to_torch(DEVICE, dtype="uint8", channels_first=False),
        "to_torch_float32": pinned.to_torch(DEVICE, dtype="float32"),
        "to_torch_bfloat16": pinned.to_torch(DEVICE, dtype="bfloat16"),
    }
    obs, _ = plain.reset()
    pinned.reset()
    actions = torch.zeros((options.num_envs, 4), device=DEVICE)

    def copied(arrays: dict[str, Any]) -> dict[str, Any]:
        return {key: torch.from_numpy(value.copy()).to(DEVICE) for key, value in arrays.items()}

    def pageable(arrays: dict[str, Any]) -> dict[str, Any]:
        return {key: torch.from_numpy(value).to(DEVICE) for key, value in arrays.items()}

    transfers: Contenders = {name: view.observe for name, view in views.items()}
    transfers |= {"copy": lambda: copied(obs), "pageable": lambda: pageable(obs)}
    steps: Contenders = {
        name: (lambda view=view: view.step(actions)[0]) for name, view in views.items()
    }
    steps |= {
        "copy": lambda: copied(plain.step(actions.cpu().numpy())[0]),
        "pageable": lambda: pageable(plain.step(actions.cpu().numpy())[0]),
        "no_transfer": lambda: plain.step(actions.cpu().numpy())[0],
    }
    for name, step in steps.items():
        check_fresh(name, step)
    return transfers, steps, sum(value.nbytes for value in obs.values())


def check_fresh(name: str, step: Callable[[], dict[str, Any]]) -> None:
    """The null env stamps its step's number on every frame: a stale one shows."""
    numbers = []
    for _ in range(4):
        obs = step()
        stamps = {float(obs["state"][slot, 0]) for slot in range(len(obs["state"]))}
        for key in ("pixels/front", "pixels/wrist"):
            corners = torch.as_tensor(obs[key])[:, 0, 0, 0].cpu()
            scale = 255 if corners.is_floating_point() else 1
            stamps |= {round(corner * scale) for corner in corners.tolist()}
        if len(stamps) != 1:
            raise SystemExit(f"{name} delivered frames of the steps {sorted(stamps)} at once")
        numbers.append(stamps.pop())
    if [number - numbers[0] for number in numbers] != [0, 1, 2, 3]:
        raise SystemExit(f"{name} delivered the steps {numbers}")


def timed(calls: Contenders, steps: int, seconds: float) -> dict[str, Callable[[], float]]:
    """Each contender as a rate; a call is over when the GPU has all that it brought."""

    def runner(call: Callable[[], Any]) -> Callable[[], float]:
        def whole() -> int:
            call()
            torch.cuda.synchronize()
            return steps

        return lambda: measure.rate(whole, seconds)

    return {name: runner(call) for name, call in calls.items()}


def report(
    facts: dict[str, Any], moved: measure.Rounds, stepped: measure.Rounds, nbytes: int
) -> None:
    milliseconds = {name: 1000 / rate for name, rate in measure.medians(moved).items()}
    rates = measure.medians(stepped)
    figures = {
        "transfer_ms": milliseconds["to_torch"],
        "transfer_gb_per_s": nbytes / milliseconds["to_torch"] / 1e6,
        "ratio_copy": measure.ratio(moved, "to_torch", "copy"),
        "ratio_pageable": measure.ratio(moved, "to_torch", "pageable"),
        "ratio_steps_copy": measure.ratio(stepped, "to_torch", "copy"),
        "ratio_steps_pageable": measure.ratio(stepped, "to_torch", "pageable"),
        "milliseconds": milliseconds,
        "env_steps_per_s": rates,
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
    }
    rows = [(name, f"{value:.3f} ms") for name, value in milliseconds.items()]
    rows += [(name, f"{figures[name]:.2f}x") for name in ("ratio_copy", "ratio_pageable")]
    measure.print_table(f"{nbytes / 1e6:.1f} MB of observations to {figures['gpu']}", rows)
    rows = [(name, f"{value:,.0f} /s") for name, value in rates.items()]
    measure.print_table("whole steps: env-steps/s", rows)
    measure.print_json({**facts, "nbytes": nbytes, **figures})


if __name__ == "__main__":
    main()
