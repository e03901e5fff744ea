"""LIBERO's 130 tasks: names, instructions, horizons and files, known without LIBERO installed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polyarm.errors import UnknownName

HORIZONS = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
"""Policy steps of an episode in most published evaluations; settle steps are not counted."""

_SCENE = re.compile(r"^[A-Z_]+SCENE\d+_")


@dataclass(frozen=True, slots=True)
class LiberoTask:
    """One task.

    Attributes:
        suite: ``"libero_spatial"``, ``"libero_object"`` …
        index: Place in its suite.
        stem: LIBERO's own name of the task and of its files.
    """

    suite: str
    index: int
    stem: str

    @property
    def name(self) -> str:
        """The name inside polyarm's suite, ``"libero_spatial/0"``."""
        return f"{self.suite}/{self.index}"

    @property
    def instruction(self) -> str:
        """What a policy is told: the task's name without its scene."""
        return _SCENE.sub("", self.stem).replace("_", " ")

    @property
    def bddl_file(self) -> str:
        """Path of the task's definition, relative to LIBERO's ``bddl_files``."""
        return f"{self.suite}/{self.stem}.bddl"

    @property
    def init_states_file(self) -> str:
        """Path of the task's initial states, relative to LIBERO's ``init_files``."""
        return f"{self.suite}/{self.stem}.pruned_init"


@cache
def tasks() -> dict[str, LiberoTask]:
    """All tasks by name, suite by suite, in LIBERO's order."""
    suites = json.loads(Path(__file__).with_name("tasks.json").read_text())
    found = [
        LiberoTask(suite, index, stem)
        for suite, stems in suites.items()
        for index, stem in enumerate(stems)
    ]
    return {task.name: task for task in found}


@cache
def sets() -> dict[str, tuple[str, ...]]:
    """LIBERO's five suites as sets of tasks, and ``libero_130`` for all of them."""
    suites = {
        suite: tuple(task.name for task in tasks().values() if task.suite == suite)
        for suite in HORIZONS
    }
    return {**suites, "libero_130": tuple(tasks())}


def find(name: str) -> LiberoTask:
    """The task called ``name``: by number, or by LIBERO's name with or without its suite.

    Raises:
        UnknownName: There is none.
    """
    task = tasks().get(name) or _by_stem().get(name.rpartition("/")[2])
    if task is None or name not in (task.name, task.stem, f"{task.suite}/{task.stem}"):
        known = [*tasks(), *sets(), *(f"{one.suite}/{one.stem}" for one in tasks().values())]
        raise UnknownName("task", f"libero/{name}", [f"libero/{one}" for one in known])
    return task


@cache
def _by_stem() -> dict[str, LiberoTask]:
    return {task.stem: task for task in tasks().values()}
