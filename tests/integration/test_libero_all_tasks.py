"""All of LIBERO's 130 tasks against LIBERO's own envs; takes a quarter of an hour.

Run by hand: ``pytest -m exhaustive tests/integration/test_libero_all_tasks.py``. With
``POLYARM_LIBERO_TABLE`` set to a file's name, what was found is written there as a table.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from libero_play import differences, make, play
from libero_reference import ACTIONS, CAMERAS, Plan

from polyarm.suites.libero import catalogue

pytestmark = [pytest.mark.simulator, pytest.mark.frames, pytest.mark.exhaustive]

STEPS = 20
PLANS = [Plan("oft", task, (1,), STEPS, look="first") for task in catalogue.tasks()]
GROUPS = {
    "states": ("states",),
    "fixtures": ("body_pos", "body_quat"),
    "robot": (
        "eef_pos",
        "eef_quat",
        "eef_mat",
        "gripper_qpos",
        "gripper_qvel",
        "joint_pos",
        "joint_vel",
    ),
    "rewards, success": ("reward", "done"),
    "frames": tuple(f"frames/{camera}" for camera in CAMERAS),
}
"""Columns of the table: what is compared."""


@pytest.fixture(scope="module")
def table() -> Iterator[list[list[str]]]:
    """Rows of the table, which is written at the end."""
    rows: list[list[str]] = []
    yield rows
    if file := os.environ.get("POLYARM_LIBERO_TABLE"):
        head = ["task", *GROUPS]
        lines = [head, ["---"] * len(head), *rows]
        Path(file).write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


@pytest.mark.parametrize(
    ("plan", "reference"),
    list(zip(PLANS, PLANS, strict=True)),
    indirect=["reference"],
    ids=[plan.task for plan in PLANS],
)
def test_a_task_is_liberos_own(plan: Plan, reference: Any, table: list[list[str]]) -> None:
    with contextlib.closing(
        make(plan.task, *CAMERAS, protocol="oft", gripper="as_is", orientation="raw")
    ) as env:
        assert env.instruction == reference["language"]
        play(env, 4, ACTIONS[60:62], look="never")
        seen = play(env, 1, ACTIONS[:STEPS], look="first")
    found = differences(seen, reference, 1)
    row = [f"libero/{plan.task}"]
    for names in GROUPS.values():
        wrong = [f"{name}: {found[name]}" for name in names if name in found]
        size = sum(reference[f"1/{name}"].size for name in names)
        row.append("; ".join(wrong) or f"{size:,} equal")
    table.append(row)
    assert found == {}
