"""A dataset is what the journal says is finished, however the run went; and it changes nothing."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from pyarrow import parquet

import polyarm
from polyarm import EvalOptions, Evaluator, InvalidCall, MissingExtra, RunConflict, UnknownName
from polyarm.cli.evaluate import run
from polyarm.errors import StorageError
from polyarm.recording.dataset_writer import ABOUT, DatasetWriter
from polyarm.rollout import sharing
from polyarm.testing import CountingPolicy, CrashingEnv, RaisingPolicy

TOYS = "toy/short"
FILMED = {"cameras": ("front", "wrist"), "image_size": (16, 24)}


class Looker:
    """Decides by what it sees in a frame, and by its noise."""

    fingerprint = "looker"
    row_independent = True

    def begin(self, episodes):
        pass

    def act(self, batch):
        seen = batch.obs["pixels/front"][:, 3, 5, :2].astype("float32")[:, None] / 255 - 0.5
        return seen + 0.1 * batch.noise(3, 2)


class MomentaryEnv(gymnasium.Env):
    """Succeeds with its first step, in Gymnasium's own words, and observes nothing besides."""

    observation_space = gymnasium.spaces.Dict(
        state=gymnasium.spaces.Box(-1, 1, (2,)), nothing=gymnasium.spaces.Box(-1, 1, (0,))
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"state": np.zeros(2, np.float32), "nothing": np.zeros(0, np.float32)}, {}

    def step(self, action):
        obs = {"state": np.ones(2, np.float32), "nothing": np.zeros(0, np.float32)}
        return obs, 1.0, True, False, {"success": True}


def evaluate(folder, policy="random", tasks=TOYS, name="data", **options):
    given = {"episodes": 2, "num_envs": 2, "num_workers": 0, **options}
    return polyarm.evaluate(policy, tasks, out=folder / "run", save_dataset=folder / name, **given)


def facts(results):
    return {e.key: (e.outcome, e.steps, e.action_hash, e.total_reward) for e in results.episodes}


def contents(folder, name="data"):
    """All files of a dataset but ours."""
    dataset = folder / name
    files = {str(p.relative_to(dataset)): p.read_bytes() for p in dataset.rglob("*") if p.is_file()}
    about = json.loads(files.pop(ABOUT))
    return files, about["episodes"]


def steps(folder, name="data"):
    return parquet.read_table(folder / name / "data")


def test_steps_are_what_was_observed_decided_and_earned(tmp_path):
    results = evaluate(tmp_path, CountingPolicy(chunk=4), "toy/count-10", **FILMED)
    table = steps(tmp_path)
    assert len(table) == sum(episode.steps for episode in results.episodes) == 20
    state = np.array(table["observation.state"].to_pylist())
    np.testing.assert_array_equal(state[:, 0], np.repeat([0, 1], 10))  # which episode
    np.testing.assert_array_equal(state[:, 1], np.tile(np.arange(10), 2))  # before each step
    assert table["next.reward"].to_pylist() == [*range(1, 11)] * 2
    actions = np.array(table["action"].to_pylist(), np.float32)
    sums = np.cumsum(actions[:9], axis=0, dtype=np.float32)
    np.testing.assert_allclose(state[1:10, 2:], sums, rtol=1e-5)
    assert table["next.done"].to_pylist() == ([False] * 9 + [True]) * 2
    assert table["next.success"].to_pylist() == ([False] * 9 + [True]) * 2
    info = json.loads((tmp_path / "data/meta/info.json").read_text())
    assert info["fps"] == 20
    assert info["features"]["observation.images.wrist"]["shape"] == [16, 24, 3]
    tasks = parquet.read_table(tmp_path / "data/meta/tasks.parquet")
    assert tasks["task"].to_pylist() == ["count to 10"]


@pytest.mark.parametrize("also", [{}, {"record": "all", "save_trajectories": True}])
def test_saving_changes_no_episode(tmp_path, also):
    given = {"episodes": 3, "num_envs": 2, **FILMED}
    plain = polyarm.evaluate(Looker(), TOYS, num_workers=0, **given)
    saved = evaluate(tmp_path, Looker(), num_workers=2, **{**given, **also})
    assert facts(saved) == facts(plain)
    assert len({hash_ for _, _, hash_, _ in facts(plain).values()}) == 6
    assert len(steps(tmp_path)) == 39
    assert all(bool(episode.videos) == bool(also) for episode in saved.episodes)


def test_a_dataset_is_the_same_however_many_workers_make_it(tmp_path):
    for name, num_envs, num_workers in [("one", 1, 0), ("several", 3, 2)]:
        given = {"num_envs": num_envs, "num_workers": num_workers, "repeats": 2, **FILMED}
        evaluate(tmp_path / name, Looker(), **given)
    assert contents(tmp_path / "one") == contents(tmp_path / "several")
    assert len(contents(tmp_path / "one")[1]) == 8


def test_a_run_that_is_stopped_leaves_what_is_finished_and_goes_on(tmp_path):
    options = EvalOptions(
        episodes=4, num_envs=2, num_workers=0, save_dataset=str(tmp_path / "data"), **FILMED
    )
    with Evaluator([TOYS], options, tmp_path / "run") as evaluator:
        results = evaluator.run(
            {"": Looker()}, lambda seen: evaluator.stop() if seen.made >= 3 else None
        )
    finished = [(e.key.task, e.key.index) for e in results.episodes]
    assert 3 <= len(finished) < 8
    assert [(e["task"], e["index"]) for e in contents(tmp_path)[1]] == finished
    evaluate(tmp_path, Looker(), episodes=4, **FILMED)
    evaluate(tmp_path / "whole", Looker(), episodes=4, **FILMED)
    assert contents(tmp_path) == contents(tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_rank_that_is_left_alone_puts_the_dataset_together(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_LEAVING_S", 0.1)
    given = {"num_envs": 2, "num_workers": 0, "save_dataset": str(tmp_path / "data")}
    for number, episodes in ((1, 2), (0, 3)):
        options = EvalOptions(episodes=episodes, **given)
        rank = sharing.Member(number, 2, "job")
        with Evaluator([TOYS], options, tmp_path / "run", member=rank) as one:
            one.run({"": "random"})
        assert len(contents(tmp_path)[1]) == 2 * episodes
    assert evaluate(tmp_path / "alone", episodes=3)
    assert contents(tmp_path) == contents(tmp_path / "alone")


def test_more_episodes_of_the_same_run_join_the_dataset(tmp_path):
    evaluate(tmp_path, Looker(), episodes=1, **FILMED)
    assert len(contents(tmp_path)[1]) == 2
    shutil.rmtree(tmp_path / "data")  # what is staged is enough
    evaluate(tmp_path, Looker(), episodes=3, **FILMED)
    evaluate(tmp_path / "whole", Looker(), episodes=3, **FILMED)
    assert contents(tmp_path) == contents(tmp_path / "whole")


def test_episodes_that_ended_as_errors_are_left_out(tmp_path):
    broken = functools.partial(CrashingEnv, at=2, only_first=tmp_path / "crashed", length=3)
    results = evaluate(
        tmp_path, CountingPolicy(), broken, num_workers=1, num_envs=1, max_attempts=1, episodes=3
    )
    assert sorted(e.outcome for e in results.episodes) == ["error", "success", "success"]
    assert len(steps(tmp_path)) == 6
    assert contents(tmp_path)[1][0]["index"] == 1
    results = evaluate(
        tmp_path, CountingPolicy(), broken, num_workers=1, num_envs=1, max_attempts=1, episodes=3,
        retry_errors=True,
    )  # fmt: skip
    assert results.errors == 0
    assert [each["index"] for each in contents(tmp_path)[1]] == [0, 1, 2]
    state = np.array(steps(tmp_path)["observation.state"].to_pylist())
    assert state[:, 1].tolist() == [0, 1, 2] * 3  # nothing of the attempt that came to nothing


def test_successes_alone_on_request(tmp_path, caplog):
    evaluate(tmp_path, episodes=1, dataset_episodes="successes")
    assert [each["outcome"] for each in contents(tmp_path)[1]] == ["success", "success"]
    failing = {"suite_options": {"truncate": True}, "dataset_episodes": "successes"}
    evaluate(tmp_path / "failures", **failing)
    assert not (tmp_path / "failures/data").exists()
    assert "no episode has ended that could be saved" in caplog.text
    with pytest.raises(UnknownName, match="successes"):
        evaluate(tmp_path, dataset_episodes="success")


def test_several_policies_share_a_dataset(tmp_path):
    options = EvalOptions(
        episodes=1, num_envs=2, num_workers=0, save_dataset=str(tmp_path / "data")
    )
    with Evaluator([TOYS], options, tmp_path / "run") as evaluator:
        evaluator.run({"b": "random"})
        evaluator.run({"a": "zero"})  # joins what is there
    assert [(e["policy"], e["task"]) for e in contents(tmp_path)[1]] == [
        ("a", "count-3"), ("a", "count-10"), ("b", "count-3"), ("b", "count-10"),
    ]  # fmt: skip
    moved = np.array(steps(tmp_path)["action"].to_pylist()).any(axis=1)
    assert moved.tolist() == [False] * 13 + [True] * 13


def test_a_dry_run_saves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = EvalOptions(
        task=TOYS,
        episodes=2,
        num_envs=2,
        num_workers=0,
        save_dataset="data",
        dry_run=True,
        **FILMED,
    )
    assert run(options) == 0
    assert "4 episodes" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_any_gymnasium_env_can_be_saved(tmp_path):
    evaluate(tmp_path, tasks="gym/CartPole-v1", episodes=1, fps=50.0)
    table = steps(tmp_path)
    assert set(table["action"].to_pylist()) == {0, 1}
    assert np.array(table["observation.state"].to_pylist()).shape == (len(table), 4)
    info = json.loads((tmp_path / "data/meta/info.json").read_text())
    assert info["fps"] == 50
    tasks = parquet.read_table(tmp_path / "data/meta/tasks.parquet")
    assert tasks["task"].to_pylist() == ["gym/CartPole-v1"]


def test_an_episode_may_end_with_its_first_step(tmp_path):
    results = evaluate(tmp_path, tasks=MomentaryEnv, fps=33.3333)
    assert results.success_rate == 1
    table = steps(tmp_path)
    assert table["observation.state"].to_pylist() == [[0, 0]] * 2
    assert table["next.done"].to_pylist() == table["next.success"].to_pylist() == [True] * 2
    info = json.loads((tmp_path / "data/meta/info.json").read_text())
    assert info["fps"] == 100 / 3  # that of the videos, to the bit: times are compared
    assert "extra.nothing" not in info["features"]


# What is refused, before anything runs.


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "data").mkdir()
    evaluate(tmp_path)  # an empty one will do
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/thesis.tex").touch()
    (tmp_path / "file").touch()
    for name in ("foreign", "file"):
        with pytest.raises(InvalidCall, match=f"{name} holds something that is no dataset of this"):
            evaluate(tmp_path, name=name)
    with pytest.raises(InvalidCall, match="another run's dataset"):
        evaluate(tmp_path / "other", name="../data")
    assert not (tmp_path / "other").exists()
    assert (tmp_path / "foreign/thesis.tex").exists()
    for name in (".", "run", "run/videos", "run/dataset_episodes/x"):
        with pytest.raises(InvalidCall, match="a folder of the run itself"):
            evaluate(tmp_path, name=name)
    evaluate(tmp_path, name="run/lerobot")


def test_what_is_put_there_during_the_run_is_not_lost(tmp_path):
    def policy(batch):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/thesis.tex").touch()
        return np.zeros((len(batch), 2), np.float32)

    with pytest.raises(InvalidCall, match="data holds something that is no dataset of this run"):
        evaluate(tmp_path, policy)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["thesis.tex"]
    (tmp_path / "data/thesis.tex").unlink()
    evaluate(tmp_path, policy)
    assert len(contents(tmp_path)[1]) == 4


def test_of_two_runs_for_one_place_the_first_has_it(tmp_path, monkeypatch):
    finish = DatasetWriter.finish

    def overtaken(writer, about):
        monkeypatch.setattr(DatasetWriter, "finish", finish)
        evaluate(tmp_path / "other", name="../data", episodes=1)
        assert list(tmp_path.glob(".data.*/data"))  # what was written so far is still there
        finish(writer, about)

    monkeypatch.setattr(DatasetWriter, "finish", overtaken)
    with pytest.raises(InvalidCall, match="data holds another run's dataset"):
        evaluate(tmp_path)
    assert len(contents(tmp_path)[1]) == 2
    evaluate(tmp_path, name="own")
    assert len(contents(tmp_path, "own")[1]) == 4


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_runs(tmp_path, small_disk):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/data: Not a directory"):
        evaluate(tmp_path, RaisingPolicy(), name="file/data")
    refused = pytest.raises(InvalidCall, match=r"disk is a mount point.*a folder in it")
    with small_disk(tmp_path / "disk", "100k"), refused:
        evaluate(tmp_path, RaisingPolicy(), name="disk")


def test_starting_over_starts_the_dataset_over(tmp_path):
    evaluate(tmp_path, episodes=2)
    evaluate(tmp_path, "zero", episodes=1, fresh=True)
    assert len(contents(tmp_path)[1]) == 2
    assert not np.array(steps(tmp_path)["action"].to_pylist()).any()


def test_episodes_that_were_played_without_a_dataset_cannot_be_in_it(tmp_path):
    given = {"episodes": 2, "num_envs": 2, "num_workers": 0}
    polyarm.evaluate("random", TOYS, out=tmp_path / "run", **given)
    with pytest.raises(RunConflict, match=r"not saved for a dataset.*such as toy/count-3#0.*--fr"):
        evaluate(tmp_path)
    assert not (tmp_path / "data").exists()


def test_without_what_was_staged_a_dataset_stays_as_it_is(tmp_path):
    evaluate(tmp_path, **FILMED)
    before = contents(tmp_path)
    staged = tmp_path / "run/dataset_episodes"
    for remove, gone in [
        (Path.unlink, staged / "toy/count-10/1_wrist.mp4"),
        (shutil.rmtree, staged),
    ]:
        remove(gone)
        with pytest.raises(RunConflict, match=r"no longer are, such as toy/count-(10#1|3#0)\."):
            evaluate(tmp_path, **FILMED)
    assert contents(tmp_path) == before
    evaluate(tmp_path, episodes=1, fresh=True, **FILMED)  # it is this run's all the same
    assert len(contents(tmp_path)[1]) == 2


@pytest.mark.parametrize("fewer", [{"episodes": 1}, {"tasks": "toy/count-10"}, {"start": 2}])
def test_a_dataset_does_not_lose_episodes_that_a_command_leaves_out(tmp_path, fewer):
    evaluate(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(InvalidCall, match=r"does not name, such as toy/count-\d+#\d, and would"):
        evaluate(tmp_path, **fewer)
    assert contents(tmp_path) == before
    evaluate(tmp_path, name="elsewhere", **fewer)
    assert 1 <= len(contents(tmp_path, "elsewhere")[1]) <= 4


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tasks": [TOYS, "gym/CartPole-v1"]}, "toy/count-3 and gym/CartPole-v1 may not"),
        ({"cameras": ("front",), "image_size": (16, 15)}, "pixels/front has 16 x 15 pixels"),
        ({"tasks": "gym/CartPole-v1", "fps": 0.0}, "more than 0 steps per second"),
    ],
)
def test_what_does_not_fit_into_a_dataset_is_refused(tmp_path, options, match):
    with pytest.raises(InvalidCall, match=match):
        evaluate(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_needs_a_journal_and_all_slots(tmp_path):
    with pytest.raises(InvalidCall, match="datasets need a folder: give out"):
        polyarm.evaluate("random", TOYS, save_dataset=tmp_path / "data")
    options = EvalOptions(save_dataset=str(tmp_path / "data"))
    with pytest.raises(InvalidCall, match="a dataset needs all slots"):
        Evaluator([TOYS], options, tmp_path / "run", observed_slots=[0])


def test_a_missing_extra_is_told_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pyarrow.*polyarm\[dataset\]"):
        evaluate(tmp_path)
    assert list(tmp_path.iterdir()) == []


# A disk that is full.


@pytest.mark.parametrize("full", ["run", "data"])
def test_what_does_not_fit_on_the_disk_stops_the_run_until_there_is_room(
    tmp_path, small_disk, full
):
    options = {"episodes": 6, "num_envs": 2, "cameras": ("front",), "image_size": (128, 128)}
    with small_disk(tmp_path / "disk", "100k") as disk:
        places = {"run": tmp_path / "run", "data": tmp_path / "data", full: disk / full}
        given = {**options, "num_workers": 1, "out": places["run"], "save_dataset": places["data"]}
        with pytest.raises(StorageError, match="No space left on device"):
            polyarm.evaluate(Looker(), "toy/count-50", **given)
        assert not places["data"].exists()
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        polyarm.evaluate(Looker(), "toy/count-50", **given)
        evaluate(tmp_path / "whole", Looker(), "toy/count-50", **options)
        assert contents(places["data"].parent) == contents(tmp_path / "whole")
