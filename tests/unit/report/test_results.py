"""Errors never count, the file round-trips exactly, and a half-written one is never seen."""

import json
import math
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import InvalidCall
from polyarm.report.results import Results, decode_episode, encode_episode, policy_step

text = st.text(max_size=20)
number = st.floats(allow_nan=False)
episodes = st.builds(
    EpisodeResult,
    key=st.builds(EpisodeKey, text, text, st.integers(0), st.integers(0)),
    outcome=st.sampled_from(["success", "failure", "error"]),
    steps=st.integers(0),
    total_reward=number,
    seconds=number,
    timings=st.dictionaries(text, number),
    action_hash=text,
    attempts=st.integers(1),
    error=st.dictionaries(text, text),
    videos=st.lists(text).map(tuple),
    trajectory=text,
    policy=text,
    finished_at=number,
)


def through_json(value):
    line = json.dumps(value, allow_nan=False, separators=(",", ":"))
    assert "\n" not in line
    return json.loads(line)


@given(episodes)
def test_an_episode_survives_the_journal_to_the_last_bit(episode):
    assert decode_episode(through_json(encode_episode(episode))) == episode


def test_a_reward_that_is_no_number_survives_as_valid_json(episode):
    for reward in (math.nan, math.inf, -math.inf):
        line = through_json(encode_episode(episode(total_reward=reward)))
        assert isinstance(line["total_reward"], str)
        back = decode_episode(line).total_reward
        assert back == reward or (math.isnan(back) and math.isnan(reward))


def test_numbers_of_numpy_are_written_like_any_other(episode):
    one = episode(steps=np.int64(7), total_reward=np.float32(0.5), seconds=np.float64(1.25))
    back = decode_episode(through_json(encode_episode(one)))
    assert (back.steps, back.total_reward, back.seconds) == (7, 0.5, 1.25)


def test_keys_that_are_not_known_are_ignored(episode):
    line = encode_episode(episode()) | {"from_the_future": 1}
    assert decode_episode(line) == episode()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"v": 2}, "version 2"), ({"outcome": "draw"}, "outcome 'draw'"), ({"steps": None}, None)],
)
def test_what_cannot_be_an_episode_is_refused(episode, change, words):
    line = encode_episode(episode()) | change
    if words is None:
        del line["steps"]
        words = "'steps'"
    with pytest.raises(InvalidCall, match=words):
        decode_episode(line)


def test_errors_are_counted_beside_the_rate_never_inside(results):
    run = results({"toy/a": "ssfe", "toy/b": "eee"})
    a, b = run.tasks
    assert (a.rate.successes, a.rate.episodes, a.errors) == (2, 3, 1)
    assert (b.rate.rate, b.errors, b.mean_return, b.mean_steps) == (None, 3, None, None)
    assert run.errors == 4
    assert run.success_rate == pytest.approx(2 / 3)
    assert run.macro.rate == pytest.approx(2 / 3)


def test_tasks_and_suites_come_in_the_order_they_first_appear(results):
    run = results({"z/b": "s", "a/x": "f", "z/a": "s"})
    assert [task.name for task in run.tasks] == ["z/b", "a/x", "z/a"]
    assert [(suite.name, len(suite.tasks)) for suite in run.suites] == [("z", 2), ("a", 1)]


def test_micro_counts_episodes_and_macro_counts_tasks(results):
    run = results({"toy/a": "s" * 9, "toy/b": "f"})
    assert (run.micro.rate, run.macro.rate) == (0.9, 0.5)
    assert run.suites[0].macro == run.macro


def test_means_are_over_the_episodes_without_error(episode):
    run = Results(
        (
            episode(index=0, steps=10, total_reward=1.0, seconds=2.0),
            episode(index=1, steps=30, total_reward=3.0, seconds=4.0, outcome="failure"),
            episode(index=2, steps=999, total_reward=math.nan, seconds=99.0, outcome="error"),
        ),
        planned=3,
    )
    task = run.tasks[0]
    assert (task.mean_steps, task.mean_return, task.mean_seconds) == (20, 2, 3)


def test_an_empty_run_has_no_rate_and_says_what_is_missing():
    run = Results((), planned=12)
    assert (run.success_rate, run.micro.rate, run.macro.rate, run.tasks) == (None, None, None, ())
    assert run.missing == 12
    assert run.by_policy() == {}


def test_several_checkpoints_are_told_apart_in_the_order_of_their_steps(results):
    parts = [results(policy=name) for name in ("run/step-900", "run/step-10000", "expert")]
    run = Results(tuple(one for part in parts for one in part.episodes), planned=9, wall={"sim": 1})
    split = run.by_policy()
    assert list(split) == ["run/step-900", "run/step-10000", "expert"]
    assert [part.planned for part in split.values()] == [3, 3, 3]
    assert all({one.policy for one in part.episodes} == {name} for name, part in split.items())


@pytest.mark.parametrize(
    ("name", "step"), [("smolvla-0.45b/checkpoint-020000", 20000), ("expert", None), ("", None)]
)
def test_the_step_is_the_last_integer_of_the_name(name, step):
    assert policy_step(name) == step


def test_results_survive_the_file(results, tmp_path):
    run = results(
        {"toy/a": "sfe"},
        planned=5,
        provenance={"git": {"dirty": True}, "sizes": [1, 2]},
        options={"num_envs": 4},
        wall={"total": 1.25, "sim": 0.1},
        notes=("a note",),
    )
    run.write(tmp_path)
    assert Results.read(tmp_path) == run
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_the_file_holds_a_summary_for_readers_without_polyarm(results):
    summary = through_json(results({"toy/a": "sfe"}, planned=5).to_json())["summary"]
    assert (summary["micro"]["rate"], summary["errors"], summary["missing"]) == (0.5, 1, 2)
    assert summary["tasks"][0]["name"] == "toy/a"


def test_whatever_the_provenance_holds_becomes_json(results, tmp_path):
    odd = {"path": tmp_path, "lr": np.float32(0.5), "n": np.int64(3), "nan": math.nan, 7: {1}}
    data = through_json(results(provenance=odd).to_json())
    assert data["provenance"] == {"path": str(tmp_path), "lr": 0.5, "n": 3, "nan": "nan", "7": [1]}


def test_text_that_is_no_unicode_does_not_keep_results_from_being_written(episode, tmp_path):
    broken = b"caf\xe9 \xff".decode(errors="surrogateescape")
    run = Results((episode(outcome="error", error={"stderr": broken}),), planned=1)
    run.write(tmp_path)
    assert Results.read(tmp_path) == run


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(results, tmp_path, monkeypatch):
    results({"toy/a": "s"}).write(tmp_path)
    before = (tmp_path / "results.json").read_bytes()

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        results({"toy/a": "f"}).write(tmp_path)
    assert (tmp_path / "results.json").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_without_results_says_what_to_do(tmp_path):
    with pytest.raises(InvalidCall, match=r"no results\.json in .*polyarm report"):
        Results.read(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": 1, "epis')
    with pytest.raises(InvalidCall, match="is not JSON"):
        Results.read(tmp_path)


def test_another_schema_is_refused():
    with pytest.raises(InvalidCall, match="schema 2 cannot be read"):
        Results.from_json({"schema": 2})


def test_without_scipy_episodes_are_written_all_the_same(results, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    run = results({"toy/a": "sf"})
    run.write(tmp_path)
    assert "pip install 'polyarm[report]'" in caplog.text
    assert Results.read(tmp_path) == run
    assert json.loads((tmp_path / "results.json").read_text())["summary"] is None
    assert run.success_rate == 0.5
