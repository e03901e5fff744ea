"""LIBERO's tasks by name and number, as the installed LIBERO lists them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from polyarm import registry
from polyarm.contracts import EnvSpec
from polyarm.errors import UnknownName
from polyarm.suites.libero import Libero, catalogue
from polyarm.suites.libero.assets import package_folder

SUITE = Libero()
SIZES = {
    "libero_spatial": 10,
    "libero_object": 10,
    "libero_goal": 10,
    "libero_10": 10,
    "libero_90": 90,
}


def liberos_own_map() -> dict[str, list[str]]:
    """``libero_task_map`` of the installed LIBERO, without importing the package."""
    file = package_folder() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("libero_suite_task_map", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, list[str]] = module.libero_task_map
    return found


def liberos_own_language(stem: str) -> str:
    """As in ``grab_language_from_filename`` of LIBERO's benchmark."""
    name = f"{stem}.bddl"
    if name[0].isupper():
        skipped = 8 if "SCENE10" in name else 7
        language = " ".join(name[name.find("SCENE") + skipped :].split("_"))
    else:
        language = " ".join(name.split("_"))
    return language[: language.find(".bddl")]


def test_the_130_tasks_are_liberos_own_in_its_order() -> None:
    own = liberos_own_map()
    assert {suite: len(own[suite]) for suite in SIZES} == SIZES
    assert len(catalogue.tasks()) == 130
    for suite, size in SIZES.items():
        for index in range(size):
            task = catalogue.find(f"{suite}/{index}")
            assert (task.suite, task.index, task.stem) == (suite, index, own[suite][index])
            assert task.instruction == liberos_own_language(task.stem)


def test_every_tasks_files_are_installed() -> None:
    folder = package_folder()
    for task in catalogue.tasks().values():
        assert (folder / "bddl_files" / task.bddl_file).is_file()
        assert (folder / "init_files" / task.init_states_file).is_file()


def test_a_task_has_three_names() -> None:
    task = catalogue.find("libero_goal/8")
    assert task.stem == "put_the_bowl_on_the_plate"
    assert catalogue.find("libero_goal/put_the_bowl_on_the_plate") == task
    assert catalogue.find("put_the_bowl_on_the_plate") == task
    assert registry.resolve("libero/put_the_bowl_on_the_plate") == [("libero", "libero_goal/8")]
    checked = SUITE.check(EnvSpec("libero", "libero_goal/put_the_bowl_on_the_plate"))
    assert checked.task == "libero_goal/8"


def test_a_name_that_two_suites_share_means_the_one_that_is_named() -> None:
    stems: dict[str, list[catalogue.LiberoTask]] = {}
    for task in catalogue.tasks().values():
        stems.setdefault(task.stem, []).append(task)
    for tasks in stems.values():
        for task in tasks:
            assert catalogue.find(f"{task.suite}/{task.stem}") == task


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("libero_goal/put_the_bowl_on_teh_plate", "libero/libero_goal/put_the_bowl_on_the_plate"),
        ("put_the_bowl_on_teh_plate", "libero/libero_goal/put_the_bowl_on_the_plate"),
        ("libero_spatail/3", "libero/libero_spatial/3"),
        ("libero_goal/10", "libero/libero_goal/1"),
        ("libero_90/090", "libero/libero_90/0"),
        ("libero_9", "libero/libero_90"),
        ("libero_object/put_the_bowl_on_the_plate", "libero/libero_goal/put_the_bowl_on_the_plate"),
    ],
)
def test_a_name_with_a_typo_gives_close_matches(name: str, match: str) -> None:
    with pytest.raises(UnknownName) as raised:
        registry.resolve(f"libero/{name}")
    suggestions = str(raised.value).partition(" Valid: ")[0]
    assert f"unknown task 'libero/{name}'; did you mean" in suggestions
    assert f"'{match}'" in suggestions


@pytest.mark.parametrize("name", ["libero_goal/-1", "libero_goal/01", "libero_goal/", ""])
def test_what_is_no_task_is_none(name: str) -> None:
    with pytest.raises(UnknownName):
        catalogue.find(name)


def test_sets_are_liberos_suites() -> None:
    sets = SUITE.sets()
    assert {name: len(members) for name, members in sets.items()} == {**SIZES, "libero_130": 130}
    for suite, size in SIZES.items():
        assert sets[suite] == tuple(f"{suite}/{index}" for index in range(size))
    assert sorted(sets["libero_130"]) == sorted(catalogue.tasks())


def test_listed_tasks_have_instructions_and_horizons() -> None:
    horizons = {
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    }
    listed = SUITE.tasks()
    assert len(listed) == 130
    for task in listed:
        assert task.max_steps == horizons[task.name.split("/")[1]]
        assert task.instruction == catalogue.find(task.name.partition("/")[2]).instruction


def test_listing_and_describing_tasks_imports_no_simulator() -> None:
    script = (
        "import sys\n"
        "from polyarm import registry\n"
        "from polyarm.vector.make import specify\n"
        "registry.resolve('libero/libero_130')\n"
        "suite = registry.load('libero')\n"
        "assert len(suite.tasks()) == 130\n"
        "spec = specify('libero/libero_10/3', ('wrist',), None, {'protocol': 'lerobot'})\n"
        "assert suite.describe(spec).provenance['libero_name']\n"
        "heavy = ('robosuite', 'torch', 'mujoco', 'libero', 'bddl', 'numba', 'OpenGL', 'cv2')\n"
        "sys.stdout.write(' '.join(name for name in heavy if name in sys.modules))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout == ""
