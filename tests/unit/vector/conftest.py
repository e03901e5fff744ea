"""One vector env per test and engine: in process, in workers of one slot, in workers of several.

Envs that a test defines must be local to a function: workers cannot import a test module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from polyarm import VectorEnv, make_vec

ENGINES = {"serial": 0, "mixed": 3, "single": None, "shared": 2}
"""Values of ``num_workers`` for four slots: in process; workers of one, one and two slots, which is
both kinds for the price of one start; one worker per slot; two slots per worker."""

Make = Callable[..., VectorEnv]


@pytest.fixture(params=["serial", "single", "shared"])
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of `make_vec` that choose the engine; every way there is."""
    return {"num_workers": ENGINES[request.param]}


@pytest.fixture
def make_any() -> Iterator[Make]:
    """`make_vec` with four slots, in process unless told otherwise; closed after the test."""
    with ExitStack() as stack:

        def make(tasks: Any, **options: Any) -> VectorEnv:
            options = {"num_envs": 4, "num_workers": 0, **options}
            return stack.enter_context(make_vec(tasks, **options))

        yield make


@pytest.fixture(params=["serial", "mixed"])
def make(make_any: Make, request: pytest.FixtureRequest) -> Make:
    """`make_vec` with four slots, in process and in workers; closed after the test."""
    return _fixed(make_any, ENGINES[request.param])


@pytest.fixture
def make_everywhere(make_any: Make, engine: dict[str, Any]) -> Make:
    """`make_vec` with four slots over every engine there is; closed after the test."""
    return _fixed(make_any, engine["num_workers"])


def _fixed(make_any: Make, num_workers: int | None) -> Make:
    def make(tasks: Any, **options: Any) -> VectorEnv:
        return make_any(tasks, **{"num_workers": num_workers, **options})

    return make


@pytest.fixture
def rollout() -> Callable[..., list[Any]]:
    """Everything an env delivers over some steps of seeded random actions, copied."""

    def run(env: Any, *, steps: int, seed: int = 3, chunk: int | None = None) -> list[Any]:
        env.action_space.seed(seed)
        delivered = [copy.deepcopy(env.reset(seed=seed))]
        step = env.step
        for _ in range(steps):
            if chunk is None:
                actions = env.action_space.sample()
            else:
                samples = [env.action_space.sample() for _ in range(chunk)]
                actions, step = np.stack(samples, axis=1), env.step_chunk
            delivered.append(copy.deepcopy(step(actions)))
        return delivered

    return run
