"""Stored demonstrations: found where RLBench and PerAct put them, in the order of their numbers."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyarm.errors import StorageError
from polyarm.suites.rlbench.demos import StoredDemo, stored_demos

TASK = "open_drawer"


def store(
    root: Path, folder: str, episode: int | str, *, recorded: int = 0, number: int | None = None
) -> Path:
    """A demonstration of one moment.

    Args:
        root: The dataset.
        folder: ``variation<n>`` or ``all_variations``.
        episode: Its number.
        recorded: The variation in the demonstration itself.
        number: The variation in a file beside it.
    """
    home = root / TASK / folder / "episodes" / f"episode{episode}"
    home.mkdir(parents=True)
    moment = SimpleNamespace(misc={"variation_index": recorded}, mark=f"{folder}/{episode}")
    (home / "low_dim_obs.pkl").write_bytes(pickle.dumps([moment]))
    if number is not None:
        (home / "variation_number.pkl").write_bytes(pickle.dumps(number))
    return home


def found(root: Path, variation: int | None = None) -> list[str]:
    """What is found, as ``folder/number``."""
    demos = stored_demos(root, TASK, variation)
    return [
        f"{demo.folder.parents[1].name}/{demo.folder.name.removeprefix('episode')}"
        for demo in demos
    ]


def test_episodes_go_by_number_and_not_by_name(tmp_path: Path) -> None:
    for episode in (10, 9, 100, 0, 2):
        store(tmp_path, "variation0", episode)
    assert found(tmp_path) == [f"variation0/{number}" for number in (0, 2, 9, 10, 100)]


def test_variations_come_in_turn_by_number_and_not_by_name(tmp_path: Path) -> None:
    for variation in (10, 9, 1):
        store(tmp_path, f"variation{variation}", 1)
        store(tmp_path, f"variation{variation}", 0)
    store(tmp_path, "variation9", 2)
    expected = [f"variation{one}/{episode}" for episode in (0, 1) for one in (1, 9, 10)]
    assert found(tmp_path) == [*expected, "variation9/2"]
    variations = [demo.variation for demo in stored_demos(tmp_path, TASK, None)]
    assert variations == [1, 9, 10, 1, 9, 10, 9]


def test_one_variation_is_that_folder_alone(tmp_path: Path) -> None:
    for variation in (1, 2, 12, 21):
        store(tmp_path, f"variation{variation}", 0)
    assert found(tmp_path, 2) == ["variation2/0"]
    assert stored_demos(tmp_path, TASK, 2)[0].variation == 2


def test_all_variations_stand_for_all_others(tmp_path: Path) -> None:
    store(tmp_path, "variation0", 0)
    for episode in (10, 9):
        store(tmp_path, "all_variations", episode)
    assert found(tmp_path) == ["all_variations/9", "all_variations/10"]
    assert found(tmp_path, 0) == ["variation0/0"]


def test_an_empty_folder_of_all_variations_stands_for_none(tmp_path: Path) -> None:
    (tmp_path / TASK / "all_variations" / "episodes").mkdir(parents=True)
    store(tmp_path, "variation3", 0)
    assert found(tmp_path) == ["variation3/0"]


def test_a_demonstration_is_loaded_with_its_folders_variation(tmp_path: Path) -> None:
    # What it says itself is 0 for a task's first one, whatever its variation was.
    store(tmp_path, "variation2", 0, recorded=0)
    demo, variation = stored_demos(tmp_path, TASK, None)[0].load()
    assert (demo[0].mark, variation) == ("variation2/0", 2)


@pytest.mark.parametrize(("number", "expected"), [(4, 4), (0, 0), (None, 7)])
def test_among_all_variations_a_file_says_which_else_the_demonstration(
    tmp_path: Path, number: int | None, expected: int
) -> None:
    store(tmp_path, "all_variations", 0, recorded=7, number=number)
    (stored,) = stored_demos(tmp_path, TASK, None)
    assert stored.variation is None
    demo, variation = stored.load()
    assert (demo[0].mark, variation) == ("all_variations/0", expected)


def test_finding_reads_no_demonstration(tmp_path: Path) -> None:
    (store(tmp_path, "variation0", 0) / "low_dim_obs.pkl").write_bytes(b"damaged")
    assert found(tmp_path) == ["variation0/0"]


@pytest.mark.parametrize(
    "folder", [None, TASK, f"{TASK}/variation0", f"{TASK}/variation0/episodes"]
)
def test_where_none_are_the_expected_path_is_told(tmp_path: Path, folder: str | None) -> None:
    root = tmp_path / "dataset"
    if folder is not None:
        (root / folder).mkdir(parents=True)
    with pytest.raises(StorageError) as caught:
        stored_demos(root, TASK, None)
    assert f"no demonstrations of {TASK} in {root}" in str(caught.value)
    assert f"{root}/{TASK}/variation0/episodes/episode0/low_dim_obs.pkl" in str(caught.value)


def test_demonstrations_of_another_task_are_none(tmp_path: Path) -> None:
    store(tmp_path, "variation0", 0)
    with pytest.raises(StorageError, match="no demonstrations of turn_tap"):
        stored_demos(tmp_path, "turn_tap", None)


def test_a_variation_without_demonstrations_is_named(tmp_path: Path) -> None:
    store(tmp_path, "variation0", 0)
    with pytest.raises(StorageError, match="no demonstrations of variation 2 of open_drawer"):
        stored_demos(tmp_path, TASK, 2)


def test_where_a_variation_is_missing_its_own_path_is_told(tmp_path: Path) -> None:
    store(tmp_path, "all_variations", 0, number=1)
    with pytest.raises(StorageError) as caught:
        stored_demos(tmp_path, TASK, 2)
    assert f"{tmp_path}/{TASK}/variation2/episodes/episode0/low_dim_obs.pkl" in str(caught.value)


def test_one_variation_is_also_found_among_all(tmp_path: Path) -> None:
    for episode, number in enumerate((2, 0, 2)):
        store(tmp_path, "all_variations", episode, number=number)
    assert found(tmp_path, 2) == ["all_variations/0", "all_variations/2"]


def test_what_has_no_number_is_no_demonstration(tmp_path: Path) -> None:
    home = store(tmp_path, "variation0", 0).parent
    (home / "episode0.zip").touch()
    (home / "episode_notes").mkdir()
    (home / "episode1").touch()
    assert found(tmp_path) == ["variation0/0"]


def test_a_folder_with_more_to_its_name_is_no_variation(tmp_path: Path) -> None:
    store(tmp_path, "variation0", 0)
    store(tmp_path, "variation1_old", 0)
    assert [demo.variation for demo in stored_demos(tmp_path, TASK, None)] == [0]


def damage(home: Path, what: str) -> None:
    file = home / "low_dim_obs.pkl"
    if what == "missing":
        file.unlink()
    elif what == "cut short":
        file.write_bytes(file.read_bytes()[:-10])
    elif what == "empty":
        file.write_bytes(b"")
    elif what == "no pickle":
        file.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    elif what == "of a class nobody has":
        file.write_bytes(b"cno_such_module\nDemo\n.")
    elif what == "without moments":
        file.write_bytes(pickle.dumps([]))
    elif what == "without variation":
        file.write_bytes(pickle.dumps([SimpleNamespace(misc={})]))
    else:
        (home / "variation_number.pkl").write_bytes(b"")


@pytest.mark.parametrize(
    "what",
    [
        "missing",
        "cut short",
        "empty",
        "no pickle",
        "of a class nobody has",
        "without moments",
        "without variation",
        "with a damaged number",
    ],
)
def test_a_damaged_demonstration_is_told_with_its_folder(tmp_path: Path, what: str) -> None:
    home = store(tmp_path, "all_variations", 0)
    damage(home, what)
    with pytest.raises(StorageError, match="cannot be read") as caught:
        StoredDemo(home, None).load()
    assert str(home) in str(caught.value)
    assert caught.value.__cause__ is not None


def test_an_interrupt_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = store(tmp_path, "variation0", 0)

    def interrupt(data: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pickle, "loads", interrupt)
    with pytest.raises(KeyboardInterrupt):
        StoredDemo(home, 0).load()
