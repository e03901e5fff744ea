"""RLBench's tasks by name, known without importing RLBench.

A task is written as RLBench's files are (``open_drawer``) or as its classes are (``OpenDrawer``),
with a variation behind a colon if one is meant (``open_drawer:2``).
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from polyarm.errors import UnknownName

PERACT18 = (
    "close_jar",
    "insert_onto_square_peg",
    "light_bulb_in",
    "meat_off_grill",
    "open_drawer",
    "place_cups",
    "place_shape_in_shape_sorter",
    "place_wine_at_rack_location",
    "push_buttons",
    "put_groceries_in_cupboard",
    "put_item_in_drawer",
    "put_money_in_safe",
    "reach_and_drag",
    "slide_block_to_color_target",
    "stack_blocks",
    "stack_cups",
    "sweep_to_dustpan_of_size",
    "turn_tap",
)
"""The tasks of PerAct and its successors; three exist only in PerAct's own RLBench."""

_SETS = {"peract18": PERACT18}


def names() -> list[str]:
    """All tasks: those of the installed RLBench, else those of version 1.2.0 and PerAct's."""
    return sorted(_installed() or _counts())


def variation_count(task: str) -> int | None:
    """How many variations a task has; None for one that is not in RLBench 1.2.0 or PerAct's."""
    return _counts().get(task)


def find(name: str) -> tuple[str, int | None]:
    """A task and its variation from what a user writes; None for all variations in turn.

    Raises:
        UnknownName: There is no such task, or it has no such variation.
    """
    written, colon, number = name.partition(":")
    # As RLBench makes file names of class names, one capital after the other.
    task = (written if "_" in written else re.sub(r"(?<!^)(?=[A-Z])", "_", written)).lower()
    if task not in names():
        known = [f"rlbench/{one}" for one in (*names(), *_SETS)]
        raise UnknownName("task", f"rlbench/{name}", known, _missing_task(task))
    if not colon:
        return task, None
    count = variation_count(task)
    if not number.isdecimal() or (count is not None and int(number) >= count):
        numbers = f"Variations of {task} are 0 to {count - 1}, or all." if count else ""
        raise UnknownName(f"variation of rlbench/{task}", number, (), numbers)
    return task, int(number)


class TaskSets(Mapping[str, Sequence[str]]):
    """Named sets of tasks, and ``<task>:all``: every variation of a task as a task of its own."""

    def __getitem__(self, name: str) -> Sequence[str]:
        task, _, rest = name.partition(":")
        if rest != "all":
            return _SETS[name]
        if task in _SETS:
            hint = "A set has no variations; name them for each of its tasks."
            raise UnknownName("task", f"rlbench/{name}", (), hint)
        task, _ = find(task)
        count = variation_count(task)
        if count is None:
            hint = f"Name them one by one: rlbench/{task}:0, rlbench/{task}:1 …"
            raise UnknownName(f"number of variations of {task}", "all", (), hint)
        return tuple(f"{task}:{number}" for number in range(count))

    def __iter__(self) -> Iterator[str]:
        """The sets whose tasks are all there."""
        there = set(names())
        return (name for name, members in _SETS.items() if there.issuperset(members))

    def __len__(self) -> int:
        return len(list(iter(self)))


@cache
def _counts() -> dict[str, int]:
    data = json.loads(files(__package__).joinpath("tasks.json").read_text())
    return {**data["rlbench"], **data["peract"]}


def installed_here() -> bool:
    """Whether this Python has RLBench; any folder of that name would be imported, too."""
    return bool(_installed())


@cache
def _installed() -> frozenset[str]:
    """Task files of the installed package; it is looked up, not imported."""
    package = importlib.util.find_spec("rlbench")
    if package is None or package.origin is None:
        return frozenset()
    folder = Path(package.origin).parent / "tasks"
    return frozenset(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _missing_task(task: str) -> str:
    if task in _counts():
        return "The installed RLBench does not have it; PerAct's tasks need PerAct's RLBench."
    return ""
