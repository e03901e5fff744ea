from __future__ import annotations

import json
import os
import socket

import pytest

from polyarm import RunConflict
from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.rollout.journal import (
    Journal,
    clear_folder,
    differences,
    load_results,
    read_episodes,
    read_run,
)

RUN = {
    "protocol": {"seed": 0, "tasks": {"toy/count-3": {"v": 1}}},
    "options": {},
    "planned": {"toy/count-3": [0, 3, 1]},
}


def result(index, outcome="success", **fields):
    return EpisodeResult(EpisodeKey("toy", "count-3", index), outcome, 3, 6.0, 0.1, **fields)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def write(folder, *results, run=RUN, rank=0, **options):
    journal = Journal(folder, run, rank=rank, **options)
    try:
        for one in results:
            journal.append(one)
    finally:
        journal.close()
    return journal


def test_what_was_appended_is_there_when_it_is_opened_again(folder):
    write(folder, result(0), result(1, "failure", error={}, videos=("videos/a.mp4",)))
    again = write(folder)
    assert list(again.finished.values()) == [
        result(0),
        result(1, "failure", videos=("videos/a.mp4",)),
    ]


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_torn_last_line_is_cut_off(folder, cut):
    write(folder, result(0), result(1))
    path = folder / "episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert [key.index for _, key in read_episodes(folder)] == [0]
    write(folder, result(1), result(2))
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_a_damaged_line_in_the_middle_is_refused(folder):
    write(folder, result(0), result(1))
    path = folder / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0][:30], lines[1]]) + "\n")
    with pytest.raises(RunConflict, match="line 1 is no result"):
        write(folder)


def test_another_protocol_is_refused_and_what_differs_is_said(folder):
    write(folder, result(0))
    other = {**RUN, "protocol": {"seed": 1, "tasks": {"toy/count-3": {"v": 2}}}}
    with pytest.raises(RunConflict) as caught:
        write(folder, run=other)
    assert "seed: 1 here, 0 there" in str(caught.value)
    assert "tasks.toy/count-3.v: 2 here, 1 there" in str(caught.value)


def test_more_episodes_and_more_policies_may_join(folder):
    one = {**RUN, "protocol": {**RUN["protocol"], "policies": {"a": {"x": 1}}}}
    two = {**RUN, "protocol": {**RUN["protocol"], "policies": {"b": {"x": 2}}}}
    two["planned"] = {"toy/count-3": [0, 9, 1], "toy/count-10": [0, 2, 2]}
    write(folder, result(0), run=one)
    write(folder, result(1), run=two)
    results = load_results(folder)
    assert results.provenance["policies"] == {"a": {"x": 1}, "b": {"x": 2}}
    assert results.planned == 2 * (9 + 4)
    changed = {**RUN, "protocol": {**RUN["protocol"], "policies": {"a": {"x": 3}}}}
    with pytest.raises(RunConflict, match=r"policies.a.x: 3 here, 1 there"):
        write(folder, run=changed)


def test_a_second_run_is_refused_while_the_first_lives(folder):
    first = Journal(folder, RUN)
    try:
        for rank, alone in ((0, True), (1, True), (1, False)):
            with pytest.raises(RunConflict, match="in use by process"):
                Journal(folder, RUN, rank=rank, alone=alone)
        assert [path.name for path in folder.glob(".rank*")] == [".rank0.lock"]
    finally:
        first.close()


def test_another_run_takes_a_folder_in_which_nothing_has_come_of_the_first(folder):
    """A policy is mended after an error in its first decision, and tried again."""
    changed = {**RUN, "protocol": {**RUN["protocol"], "seed": 5}}
    write(folder)
    (folder / "videos").mkdir()
    (folder / "videos" / "half.mp4.part").touch()
    waiting = Journal(folder, RUN, rank=1, alone=False)
    try:
        with pytest.raises(RunConflict, match="holds results of another run"):
            write(folder, run=changed, alone=False)
    finally:
        waiting.close()
    write(folder, result(0), run=changed)
    assert read_run(folder)["protocol"] == changed["protocol"]
    assert not (folder / "videos").exists()
    with pytest.raises(RunConflict, match="seed: 0 here, 5 there"):
        write(folder)


def test_ranks_of_another_command_do_not_join(folder):
    """Not even those whose numbers nobody has."""
    first = Journal(folder, {**RUN, "job": "one"}, rank=0, alone=False)
    try:
        with pytest.raises(RunConflict, match="in use by process"):
            Journal(folder, {**RUN, "job": "other"}, rank=2, alone=False)
        assert read_run(folder)["job"] == "one"
        write(folder, result(7), run={**RUN, "job": "one"}, rank=1, alone=False)
    finally:
        first.close()
    write(folder, result(8), run={**RUN, "job": "other"}, rank=2, alone=False)


def test_a_lock_that_was_made_though_its_answer_was_lost_is_held(folder, monkeypatch):
    """NFS sends a request again, and is told that what it has just made is there already."""
    link = os.link

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link_twice)
        journal = Journal(folder, RUN)
    try:
        with pytest.raises(RunConflict, match="in use by process"):
            Journal(folder, RUN)
    finally:
        journal.close()


def test_ranks_that_share_a_folder_keep_everybody_else_out(folder):
    first = Journal(folder, RUN, rank=1, alone=False)
    try:
        for options in ({}, {"rank": 1, "alone": False}, {"alone": False, "fresh": True}):
            with pytest.raises(RunConflict, match="in use by process"):
                Journal(folder, RUN, **options)
        write(folder, result(7), alone=False)
        assert first.read_others() == [result(7)]
        assert first.read_others() == []
    finally:
        first.close()
    assert [key.index for _, key in write(folder).finished] == [7]


def test_lines_of_others_are_read_once_and_only_when_they_are_whole(folder):
    reader = Journal(folder, RUN, rank=0, alone=False)
    writer = Journal(folder, RUN, rank=1, alone=False)
    try:
        writer.append(result(0))
        assert reader.read_others() == [result(0)]
        writer.append(result(1))
        path = folder / "episodes.rank1.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        assert reader.read_others() == []
        path.write_bytes(whole)
        assert reader.read_others() == [result(1)]
    finally:
        reader.close()
        writer.close()


def test_what_the_dead_have_left_is_removed_when_nobody_else_is_there(folder):
    write(folder, result(0))
    dead = {"host": socket.gethostname(), "boot": "another", "pid": 7, "started": "1"}
    for name in (".rank3.lock", ".claim.0123"):
        (folder / name).write_text(json.dumps(dead))
    (folder / "videos").mkdir()
    (folder / "videos" / "0.mp4.part").touch()
    other = Journal(folder, RUN, rank=1, alone=False)
    (folder / "videos" / "1.mp4.part").touch()
    write(folder, rank=2, alone=False)
    assert (folder / "videos" / "1.mp4.part").exists(), "the other films it"
    other.close()
    left = {path.name for path in folder.rglob("*")}
    assert not left & {".rank3.lock", ".claim.0123", "0.mp4.part"}


def test_a_run_that_dies_while_it_starts_over_does_not_take_old_episodes_for_its_own(
    folder, monkeypatch
):
    write(folder, result(0))

    def die(*_, **__):
        raise KeyboardInterrupt

    (folder / "videos").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            clear_folder(folder)
    other = Journal(folder, {**RUN, "protocol": {"tasks": {}, "horizon": 7}})
    other.close()
    assert not other.finished
    assert not (folder / "videos").exists()


def test_what_ranks_of_an_earlier_run_have_said_is_forgotten_with_it(folder):
    write(folder, result(0))
    (folder / ".rank3.spent.json").write_text("{}")
    write(folder, fresh=True)
    assert {path.name for path in folder.iterdir()} == {"run.json", "episodes.jsonl"}


def test_of_two_lines_the_first_counts_unless_it_is_an_error(folder):
    write(folder, result(0, "error"), result(1, "failure"))
    write(folder, result(0, "success"), result(1, "success"), rank=1)
    finished = {key.index: one.outcome for (_, key), one in read_episodes(folder).items()}
    assert finished == {0: "success", 1: "failure"}


def test_a_folder_without_a_run_is_said_to_be_one(tmp_path):
    with pytest.raises(RunConflict, match=r"there is no run.json"):
        load_results(tmp_path)


def test_differences_name_the_whole_path():
    assert differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 2}}) == [
        "a.b: 1 here, 2 there",
        "c: 2 here, None there",
    ]
    assert differences({"a": {"": {"b": 1}}}, {"a": {"": {"b": 2}}}) == ["a.b: 1 here, 2 there"]
