"""Failures on demand: the words in the environment variable RLBENCH_DOUBLE.

    RLBENCH_DOUBLE="abort_step=2.3@/tmp/marker,slow_reset=0.5"

A word may carry `=value` and `@marker`. The value of a fault says when: at the n-th launch or reset
of the process, at the n-th step of an episode, or with `e.n` at the n-th step of the e-th episode;
without one it happens every time. With a marker it happens only while that file does not exist,
and creates it: once, however often the process is started again.
"""

import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

FAULT = "The call failed on the V-REP side. Return value: -1"


@dataclass(frozen=True)
class Switch:
    word: str
    value: str | None
    marker: Path | None

    def is_due(self, *ordinals: int) -> bool:
        """Whether it is to happen now; `ordinals` count from one, the innermost last."""
        if self.value is not None:
            wanted = tuple(int(number) for number in self.value.split("."))
            if wanted != ordinals[-len(wanted) :]:
                return False
        return self.is_first()

    def is_first(self) -> bool:
        """Whether the marker, if there is one, was not there before."""
        if self.marker is None:
            return True
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def find(word: str) -> Switch | None:
    return parse(os.environ.get("RLBENCH_DOUBLE", "")).get(word)


@cache
def parse(text: str) -> dict[str, Switch]:
    found = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        rest, _, marker = entry.partition("@")
        word, equals, value = rest.partition("=")
        if word not in WORDS:
            raise ValueError(f"RLBENCH_DOUBLE has no switch {word!r}; there are {sorted(WORDS)}")
        found[word] = Switch(word, value if equals else None, Path(marker) if marker else None)
    return found


def happens(word: str, *ordinals: int) -> bool:
    switch = find(word)
    return switch is not None and switch.is_due(*ordinals)


def count(event: str) -> int:
    """How often this has happened in the process, this time included."""
    _counts[event] += 1
    return _counts[event]


def strike(phase: str, *ordinals: int) -> None:
    """Fail if a fault is switched on for this launch, reset or step."""
    for kind, fail in FAULTS.items():
        if happens(f"{kind}_{phase}", *ordinals):
            fail()


def hang() -> NoReturn:
    """Never return; like the simulator, only SIGKILL ends it."""
    while True:
        time.sleep(3600)


def abort() -> NoReturn:
    os.write(2, b"*** buffer overflow detected ***: terminated\n")
    os.abort()


def segfault() -> None:
    ctypes.string_at(0)


def fault() -> NoReturn:
    raise RuntimeError(FAULT)


_counts: Counter[str] = Counter()
FAULTS: dict[str, Callable[[], None]] = {
    "hang": hang,
    "abort": abort,
    "segv": segfault,
    "fault": fault,
}
PHASES = ("launch", "reset", "step")
WORDS = {f"{kind}_{phase}" for kind in FAULTS for phase in PHASES}
WORDS |= {"handle", "slow_reset", "bad_demo", "no_place", "loader"}
