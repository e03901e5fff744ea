"""Imported by a zygote, this has it say late which workers it has forked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from polyarm.testing import CountingEnv
from polyarm.vector.zygote import Zygote

LATE_S = 0.3

_fork = Zygote._fork


def _fork_and_dawdle(self: Zygote, mains: Sequence[Callable[[], object]], fds: list[int]) -> Any:
    answers = _fork(self, mains, fds)
    time.sleep(LATE_S)
    return answers


Zygote._fork = _fork_and_dawdle  # type: ignore[method-assign]


def counting() -> CountingEnv:
    """The task ``slow_zygote:counting``: built long before the fork server knows of the worker."""
    return CountingEnv(length=10)
