"""Contenders in processes of their own, a fresh one for every turn, as their users run them.

Whoever shares a process shares its heap: what one contender has freed decides whether another's
arrays of megabytes come from memory at hand or from the kernel, page by page. The same
AsyncVectorEnv, whose copy of an observation takes 3 MB, made between 5,000 and 17,000 env-steps/s
in processes that differed in nothing else; a fresh process per turn draws that lot anew.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.connection import Connection

import measure

Stepper = Callable[[], int]
"""Steps all envs once and says how many steps that were."""
Maker = Callable[[], AbstractContextManager[Stepper]]
"""Opens a contender; picklable."""


def contenders(makers: Mapping[str, Maker], seconds: float) -> dict[str, Callable[[], float]]:
    """A function per contender: it runs it for so long and returns its steps per second."""
    return {name: partial(turn, name, maker, seconds) for name, maker in makers.items()}


def turn(name: str, maker: Maker, seconds: float) -> float:
    """Start a process, measure in it, and see it end."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, maker, seconds), name=name)
    process.start()
    theirs.close()
    try:
        rate: float = mine.recv()
    except EOFError:
        raise SystemExit(f"{name} failed; its traceback is above") from None
    finally:
        process.join()
    return rate


def serve(pipe: Connection, maker: Maker, seconds: float) -> None:
    with maker() as step:
        measure.rate(step, seconds / 4)  # warm caches, and whatever its copies settle on
        rate = measure.rate(step, seconds)
    pipe.send(rate)
