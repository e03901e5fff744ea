"""RLBench's tasks by name: however they are written, with and without RLBench."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from polyarm import registry
from polyarm.contracts import EnvSpec
from polyarm.errors import UnknownName
from polyarm.suites.rlbench import RLBench, catalogue

SUITE = RLBench()
TABLE = json.loads(files("polyarm.suites.rlbench").joinpath("tasks.json").read_text())
IN_THE_DOUBLE = [
    "close_jar",
    "open_drawer",
    "pick_up_cup",
    "push_button",
    "reach_target",
    "sweep_to_dustpan",
]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """RLBench is not installed."""
    monkeypatch.setitem(sys.modules, "rlbench", None)
    catalogue._installed.cache_clear()
    yield
    catalogue._installed.cache_clear()


@pytest.fixture
def own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An RLBench with two tasks that only this machine has, and one that everybody has."""
    tasks = tmp_path / "rlbench" / "tasks"
    tasks.mkdir(parents=True)
    for folder in (tasks.parent, tasks):
        (folder / "__init__.py").write_text("raise AssertionError('nobody may import this')")
    for name in ("open_drawer.py", "fold_shirt.py", "stack4_bowls.py", "notes.txt"):
        (tasks / name).touch()
    (tasks / "__pycache__").mkdir()
    for name in [name for name in sys.modules if name.partition(".")[0] == "rlbench"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    catalogue._installed.cache_clear()
    yield
    catalogue._installed.cache_clear()


def class_name(task: str) -> str:
    """As RLBench's ``name_to_task_class`` has it."""
    return "".join(word[0].upper() + word[1:] for word in task.split("_"))


@pytest.mark.usefixtures("bare")
def test_without_rlbench_its_106_tasks_and_peracts_three_are_listed() -> None:
    assert len(TABLE["rlbench"]) == 106
    assert len(TABLE["peract"]) == 3
    assert catalogue.names() == sorted({**TABLE["rlbench"], **TABLE["peract"]})
    listed = {task.name: task for task in SUITE.tasks()}
    assert list(listed) == [f"rlbench/{name}" for name in catalogue.names()]
    drawer = listed["rlbench/open_drawer"]
    assert (drawer.instruction, drawer.max_steps) == ("open drawer", 400)


@pytest.mark.usefixtures("bare")
def test_every_task_is_found_as_file_and_as_class() -> None:
    for task in catalogue.names():
        assert catalogue.find(task) == (task, None)
        assert catalogue.find(class_name(task)) == (task, None)
        assert catalogue.find(f"{class_name(task)}:0") == (task, 0)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("written", "task"),
    [
        ("TvOn", "tv_on"),
        ("tvOn", "tv_on"),
        ("TV_ON", "tv_on"),
        ("insertOntoSquarePeg", "insert_onto_square_peg"),
        ("Open_Drawer", "open_drawer"),
        ("SetupChess", "setup_chess"),
    ],
)
def test_other_capitals_mean_the_same_task(written: str, task: str) -> None:
    assert catalogue.find(written) == (task, None)


@pytest.mark.usefixtures("own_tasks")
def test_a_digit_ends_a_word_where_a_capital_follows() -> None:
    for written in ("stack4_bowls", "Stack4Bowls"):
        assert catalogue.find(written) == ("stack4_bowls", None)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("written", "variation"), [("open_drawer:0", 0), ("OpenDrawer:2", 2), ("open_drawer:02", 2)]
)
def test_a_variation_follows_a_colon(written: str, variation: int) -> None:
    assert catalogue.find(written) == ("open_drawer", variation)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    "number", ["3", "20", "-1", "+1", " 1", "1.0", "1_0", "²", "two", "", "1:2"]
)
def test_a_variation_that_is_not_there_is_refused_with_those_that_are(number: str) -> None:
    with pytest.raises(UnknownName) as caught:
        catalogue.find(f"OpenDrawer:{number}")
    assert f"variation of rlbench/open_drawer {number!r}" in str(caught.value)
    assert "0 to 2, or all" in str(caught.value)


@pytest.mark.usefixtures("bare")
def test_the_last_variation_of_every_task_is_there_and_the_next_is_not() -> None:
    for task, count in {**TABLE["rlbench"], **TABLE["peract"]}.items():
        assert catalogue.variation_count(task) == count
        assert catalogue.find(f"{task}:{count - 1}") == (task, count - 1)
        with pytest.raises(UnknownName):
            catalogue.find(f"{task}:{count}")


@pytest.mark.usefixtures("bare")
def test_all_names_each_variation_as_a_task_of_its_own() -> None:
    drawers = ("open_drawer:0", "open_drawer:1", "open_drawer:2")
    assert catalogue.TaskSets()["open_drawer:all"] == drawers
    assert registry.resolve("rlbench/OpenDrawer:all") == [("rlbench", task) for task in drawers]
    assert len(catalogue.TaskSets()["push_buttons:all"]) == 50
    assert catalogue.TaskSets()["close_box:all"] == ("close_box:0",)


@pytest.mark.usefixtures("bare")
def test_all_variations_of_a_misspelt_task_name_the_right_one() -> None:
    with pytest.raises(UnknownName, match=r"'rlbench/open_drawr'; did you mean .*open_drawer'"):
        registry.resolve("rlbench/open_drawr:all")


@pytest.mark.usefixtures("bare")
def test_all_variations_of_one_variation_are_refused() -> None:
    with pytest.raises(UnknownName, match="variation of rlbench/open_drawer '2:all'"):
        registry.resolve("rlbench/open_drawer:2:all")


@pytest.mark.usefixtures("bare")
def test_peract18_is_complete_without_rlbench() -> None:
    sets = SUITE.sets()
    assert dict(sets) == {"peract18": catalogue.PERACT18}
    assert len(sets) == 1
    members = sets["peract18"]
    assert len(set(members)) == len(members) == 18
    assert set(members) <= set(catalogue.names())
    assert set(members) - set(TABLE["rlbench"]) == set(TABLE["peract"])
    assert registry.resolve("rlbench/peract18") == [("rlbench", task) for task in members]


@pytest.mark.usefixtures("bare")
def test_variations_of_a_set_are_refused_by_the_name_that_was_written() -> None:
    with pytest.raises(UnknownName, match="'rlbench/peract18:all'"):
        registry.resolve("rlbench/peract18:all")


@pytest.mark.usefixtures("bare")
def test_a_set_that_does_not_exist_is_no_set() -> None:
    assert SUITE.sets().get("peract17") is None
    with pytest.raises(UnknownName, match="'rlbench/peract17'; did you mean 'rlbench/peract18'"):
        registry.resolve("rlbench/peract17")


@pytest.mark.usefixtures("rlbench")
def test_only_tasks_of_the_installed_rlbench_are_listed() -> None:
    assert catalogue.names() == IN_THE_DOUBLE
    assert [task.name for task in SUITE.tasks()] == [f"rlbench/{name}" for name in IN_THE_DOUBLE]


@pytest.mark.usefixtures("rlbench")
def test_a_set_is_listed_only_where_all_its_tasks_are() -> None:
    assert dict(SUITE.sets()) == {}
    assert len(SUITE.sets()) == 0


@pytest.mark.usefixtures("rlbench")
@pytest.mark.parametrize("task", ["slide_block_to_color_target", "SweepToDustpanOfSize:1"])
def test_a_task_of_peracts_rlbench_says_that_it_needs_it(task: str) -> None:
    with pytest.raises(UnknownName, match=r"PerAct's tasks need PerAct's RLBench\."):
        SUITE.check(EnvSpec("rlbench", task))


@pytest.mark.usefixtures("rlbench")
def test_a_task_of_nobodys_rlbench_has_no_such_hint() -> None:
    with pytest.raises(UnknownName) as caught:
        SUITE.check(EnvSpec("rlbench", "slide_block_to_heaven"))
    assert "PerAct" not in str(caught.value)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("open_drawr", "rlbench/open_drawer"),
        ("opendrawer", "rlbench/open_drawer"),
        ("OpenDraweer:2", "rlbench/open_drawer"),
        ("push_butons", "rlbench/push_buttons"),
        ("peract-18", "rlbench/peract18"),
    ],
)
def test_a_misspelt_task_gets_the_closest_names(written: str, meant: str) -> None:
    with pytest.raises(UnknownName) as caught:
        catalogue.find(written)
    told = str(caught.value)
    assert f"unknown task 'rlbench/{written}'" in told
    assert repr(meant) in told.partition("did you mean")[2].partition("?")[0]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("written", ["", ":2", "/", "rlbench/open_drawer", "open drawer"])
def test_what_is_no_name_is_refused(written: str) -> None:
    with pytest.raises(UnknownName, match="unknown task"):
        catalogue.find(written)


@pytest.mark.usefixtures("own_tasks")
def test_a_task_of_ones_own_is_listed_and_takes_any_variation() -> None:
    assert catalogue.names() == ["fold_shirt", "open_drawer", "stack4_bowls"]
    assert catalogue.variation_count("fold_shirt") is None
    assert catalogue.find("FoldShirt:1234") == ("fold_shirt", 1234)
    for number in ("", "-1", "all"):
        with pytest.raises(UnknownName, match=f"variation of rlbench/fold_shirt '{number}'"):
            catalogue.find(f"fold_shirt:{number}")


@pytest.mark.usefixtures("own_tasks")
def test_nobody_knows_all_variations_of_a_task_of_ones_own() -> None:
    with pytest.raises(UnknownName, match="one by one: rlbench/fold_shirt:0, rlbench/fold_shirt:1"):
        registry.resolve("rlbench/fold_shirt:all")


@pytest.mark.usefixtures("own_tasks")
def test_listing_imports_no_rlbench() -> None:
    SUITE.tasks()
    dict(SUITE.sets())
    spec = SUITE.check(EnvSpec("rlbench", "OpenDrawer:1", ("front",)))
    SUITE.describe(spec)
    SUITE.interpreter(spec)
    assert not [name for name in sys.modules if name.partition(".")[0] in ("rlbench", "pyrep")]
