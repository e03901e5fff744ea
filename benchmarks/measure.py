"""What the benchmarks share: interleaved rounds, medians, a small table and the closing JSON line.

Contenders take turns inside one run, so that whatever else the machine does hits all of them, and
a ratio is the median over the rounds of the ratios inside each round.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from polyarm.vector.host import machine_facts

LOAD_BEFORE = os.getloadavg()[0]
"""How busy the machine was already; other people's work blurs absolute rates."""

Rounds = dict[str, list[float]]
"""What each contender reached in each round, such as env-steps/s."""


def interleave(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Rounds:
    """Let every contender run once per round, each round in another order."""
    names = list(contenders)
    results: Rounds = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            results[name].append(contenders[name]())
    return results


def rate(step: Callable[[], int], seconds: float) -> float:
    """Steps per second of calling ``step`` (which returns how many it made) for ``seconds``."""
    step()
    made, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        made += step()
    return made / spent


def ratio(results: Rounds, ours: str, theirs: str) -> float:
    """Median over the rounds of ours divided by theirs."""
    pairs = zip(results[ours], results[theirs], strict=True)
    return statistics.median(mine / other for mine, other in pairs)


def medians(results: Rounds) -> dict[str, float]:
    """The median of each contender over the rounds."""
    return {name: statistics.median(values) for name, values in results.items()}


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A small table for people."""
    print(title)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value:>14}")


def print_json(figures: Mapping[str, Any]) -> None:
    """The last line: one JSON object with the figures, the machine and the versions."""
    machine = {**machine_facts(), "load_before": LOAD_BEFORE}
    facts = {"machine": machine, "versions": _versions()}
    print(json.dumps({**_rounded(figures), **facts}), flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _versions() -> dict[str, str]:
    found = {}
    for name in (
        "polyarm",
        "gymnasium",
        "stable-baselines3",
        "metaworld",
        "mujoco",
        "hf-libero",
        "lerobot",
        "torch",
        "numpy",
        "websockets",
        "msgpack",
    ):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
