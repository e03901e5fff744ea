"""The folder of a run: damaged journals, other runs in it, other protocols."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import evaluation_faults as faults
import pytest

from polyarm.errors import RunConflict
from polyarm.rollout import runlock
from polyarm.rollout.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("plan")

SERIAL = {"num_envs": 2, "num_workers": 0}


def gamble(out: Path, episodes: int = 6, **options):
    return evaluate(faults.GAMBLER, faults.GAMBLE, episodes=episodes, out=out, **SERIAL, **options)


# Damaged journals.


@pytest.mark.parametrize(
    "tear",
    [
        lambda data: data + data.splitlines()[0][:100],
        lambda data: data + b'{"v":1',
        lambda data: data + b"\0" * 100,
        lambda data: data[: data.rindex(b"\n", 0, -1) + 100],
        lambda data: data[:-1],
    ],
    ids=["half a line more", "a few bytes more", "zeros more", "half of the last", "no newline"],
)
def test_a_torn_last_line_costs_at_most_that_episode(tmp_path, monkeypatch, tear):
    out = tmp_path / "out"
    first = gamble(out, 4)
    journal = out / "episodes.jsonl"
    torn = tear(journal.read_bytes())
    journal.write_bytes(torn)
    begun = []
    monkeypatch.setattr(faults.Gambler, "begin", lambda _, keys: begun.extend(keys))
    again = gamble(out, 4)
    assert len(begun) == 4 - torn.count(b"\n")
    assert faults.scores(again.episodes) == faults.scores(first.episodes)
    faults.assert_each_once(out)
    assert faults.lines(out) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:50],
        lambda line: b"\0" * len(line),
        lambda line: b'{"v":1}',
        lambda line: b"[1, 2]",
        lambda line: line.replace(b'"v":1', b'"v":99'),
    ],
    ids=["cut", "zeros", "no result", "a list", "another version"],
)
def test_a_damaged_line_in_the_middle_is_refused_by_its_number(tmp_path, damage):
    out = tmp_path / "out"
    gamble(out, 4)
    journal = out / "episodes.jsonl"
    lines = journal.read_bytes().splitlines()
    lines[1] = damage(lines[1])
    damaged = b"\n".join(lines) + b"\n"
    journal.write_bytes(damaged)
    with pytest.raises(RunConflict, match=r"episodes\.jsonl, line 2"):
        gamble(out, 4)
    assert journal.read_bytes() == damaged
    assert not (out / ".rank0.lock").exists()


# Two runs.


@pytest.fixture
def other_run(tmp_path, plan, wait_until):
    """Another process that is in the midst of a run in ``out``."""
    out = tmp_path / "out"
    faults.plan(plan, step_s=0.1)
    command = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--episodes", "6"]
    with faults.Run(out, *command, "--num-envs", "2") as process:
        wait_until(lambda: faults.lines(out) >= 1, 40, "an episode")
        yield process
        faults.plan(plan)


def test_a_folder_in_use_is_refused_until_its_user_is_dead(tmp_path, plan, other_run):
    out = tmp_path / "out"
    for options in ({}, {"fresh": True}):
        kept = (out / "episodes.jsonl").read_bytes()
        with pytest.raises(RunConflict) as caught:
            gamble(out, **options)
        assert f"in use by process {other_run.pid} on {socket.gethostname()}" in str(caught.value)
        assert (out / "episodes.jsonl").read_bytes().startswith(kept), "the other's journal"
        assert (out / "run.json").exists()
    assert other_run.poll() is None
    other_run.kill()
    # Nobody has waited for it yet: a dead process that still has an entry is dead all the same.
    os.waitid(os.P_PID, other_run.pid, os.WEXITED | os.WNOWAIT)
    faults.plan(plan)
    results = gamble(out)
    assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, 6)
    faults.assert_each_once(out)


def lock(out: Path, age_s: float = 0.0, **holder) -> Path:
    """A lock as another process has left it."""
    out.mkdir(exist_ok=True)
    path = out / ".rank0.lock"
    path.write_text(
        json.dumps({"host": "elsewhere", "boot": "b", "pid": 7, "started": "1"} | holder)
    )
    os.utime(path, times=(time.time() - age_s,) * 2)
    return path


def test_a_lock_of_another_host_is_stale_only_when_its_heart_has_stopped(tmp_path):
    out = tmp_path / "out"
    path = lock(out, runlock.STALE_S / 2)
    with pytest.raises(RunConflict, match="in use by process 7 on elsewhere"):
        gamble(out)
    assert path.exists()
    lock(out, runlock.STALE_S * 2)
    assert not gamble(out).missing
    assert not path.exists()


@pytest.mark.parametrize(
    "holder",
    [
        {"pid": 2**22 + 1},
        {"pid": os.getpid(), "started": "1"},
        {"pid": os.getpid(), "started": runlock.start_of(os.getpid()), "boot": "another"},
    ],
    ids=["no such process", "the number of another process", "before the last boot"],
)
def test_a_lock_of_this_host_is_stale_when_its_process_is_gone(tmp_path, holder):
    mine = {"host": socket.gethostname(), "boot": runlock._boot_id()}
    lock(tmp_path / "out", **{**mine, **holder})
    assert not gamble(tmp_path / "out").missing


def test_a_run_whose_lock_was_taken_over_writes_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(runlock, "BEAT_S", 0.0)
    out, policy = tmp_path / "out", faults.Gambler()
    act = policy.act

    def suspended(batch):
        if len(policy.batch_sizes) == 12:
            (out / ".rank0.lock").unlink()
            lock(out)
        return act(batch)

    policy.act = suspended
    with pytest.raises(RunConflict, match="process 7 on elsewhere"):
        evaluate(policy, faults.GAMBLE, episodes=20, out=out, **SERIAL)
    assert "elsewhere" in (out / ".rank0.lock").read_text()
    assert len(policy.batch_sizes) < 30
    assert faults.lines(out) < 10


# Other protocols.


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"chunk": 2}, "chunk: 2 here, 1 there"),
        ({"seed": 1}, "seed: 1 here, 0 there"),
        ({"repeats": 2}, "repeats: 2 here, 1 there"),
        ({"execute": 1}, "execute: 1 here, None there"),
        ({"suite_options": ("truncate=true",)}, "truncate: True here, False there"),
        ({"policy": "zero"}, "policy: 'zero' here, 'random' there"),
        ({"cameras": ("front",)}, "cameras: ['front'] here, [] there"),
    ],
)
def test_another_protocol_is_refused_by_what_differs(tmp_path, changed, named):
    out = tmp_path / "out"
    evaluate("random", "toy/count-3", episodes=2, out=out, **SERIAL)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    given = {"policy": "random", "tasks": "toy/count-3", "episodes": 2, **SERIAL, **changed}
    refusal = faults.conflict(given.pop("policy"), given.pop("tasks"), out, **given)
    assert named in refusal
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_more_episodes_and_tasks_of_the_same_protocol_are_added(tmp_path):
    out = tmp_path / "out"
    evaluate("random", "toy/count-3", episodes=2, out=out, **SERIAL)
    kept = (out / "episodes.jsonl").read_bytes()
    more = evaluate("random", ["toy/count-3", "toy/count-10"], episodes=4, out=out, **SERIAL)
    assert (out / "episodes.jsonl").read_bytes().startswith(kept)
    faults.assert_each_once(out)
    tasks = ["toy/count-3", "toy/count-10"]
    assert faults.scores(more.episodes) == faults.undisturbed(tasks, 4, "random")


def test_a_fresh_run_forgets_another_protocol(tmp_path):
    out = tmp_path / "out"
    gamble(out)
    (out / "notes.txt").write_text("mine")
    results = evaluate("random", "toy/count-3", episodes=2, out=out, fresh=True, **SERIAL)
    assert len(results.episodes) == faults.lines(out) == 2
    assert (out / "notes.txt").exists()
