"""Ranks that are killed, orphaned or told to stop: nothing is lost, doubled or left running."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import evaluation_faults as faults
import launching
import pytest

from polyarm.report.results import Results

pytestmark = pytest.mark.usefixtures("plan")

EPISODES = 16


@pytest.fixture(scope="module")
def expected():
    return faults.undisturbed(faults.GAMBLE, EPISODES)


def words(out: Path, *more: str) -> list[str]:
    what = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--episodes", str(EPISODES)]
    return ["eval", *what, "--num-envs", "2", "--out", str(out), *more]


def finish(out: Path, expected: dict) -> None:
    """The same command with a single process completes what is there."""
    code, said = faults.run(out, *words(out)[1:-2])
    assert code == 0, said
    assert_complete(out, expected)


def assert_complete(out: Path, expected: dict) -> None:
    launching.assert_each_once(out, EPISODES)
    assert faults.in_journal(out) == expected
    assert faults.scores(Results.read(out).episodes) == expected
    hidden = [path.name for path in out.iterdir() if path.name.startswith(".")]
    assert not hidden, "locks, claims and notes are gone"


def ranks_of(launcher: int, number: int) -> list[int]:
    """Pids of a launcher's ranks, in their order."""
    found = {}
    for pid in faults.children(launcher):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        rank = [each for each in variables if each.startswith(b"RANK=")]
        if rank and b"polyarm\0eval" in command:
            found[int(rank[0][5:])] = pid
    assert sorted(found) == list(range(number))
    return [found[rank] for rank in range(number)]


def wait_for_two(out: Path, plan: Path, wait_until, step_s: float) -> None:
    """Until both ranks have finished an episode; neither begins before the other is there."""
    # A rank claims an episode before it builds envs, and these wait for the gate.
    wait_until(lambda: len(list(out.glob(".claim.*"))) >= 2, 60, "a claim of each")
    faults.plan(plan, step_s=step_s)
    gate(plan).touch()
    journals = ("episodes.jsonl", "episodes.rank1.jsonl")
    wait_until(lambda: all(launching.journals(out).get(name) for name in journals), 60)


def gate(plan: Path) -> Path:
    return plan.with_name("gate")


def test_neither_a_killed_rank_nor_a_killed_launcher_costs_or_leaves_anything(
    tmp_path, plan, expected, wait_until, running
):
    out = tmp_path / "out"
    faults.plan(plan, gate=str(gate(plan)))
    with launching.torchrun(2, *words(out), folder=tmp_path) as launcher:
        wait_for_two(out, plan, wait_until, step_s=0.06)
        family = faults.children(launcher.pid)
        os.kill(ranks_of(launcher.pid, 2)[1], signal.SIGKILL)
        code, _, _ = launcher.end()
    assert code != 0
    wait_until(lambda: not any(map(running, family)), 10, "all are gone")
    kept = launching.lines(out)
    assert 2 <= kept < EPISODES

    faults.plan(plan, step_s=0.03, policy="sleep", policy_after=6)  # deaf to SIGTERM
    with launching.torchrun(3, *words(out), folder=tmp_path) as launcher:
        wait_until(lambda: len(list(out.glob(".claim.*"))) >= 4, 60, "episodes under way")
        family = faults.children(launcher.pid)
        ranks_of(launcher.pid, 3)
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not any(map(running, family)), 15, "orphans are gone")
    assert kept <= launching.lines(out) < EPISODES
    faults.plan(plan)
    finish(out, expected)


def test_a_task_of_an_array_takes_over_from_one_that_is_killed(
    tmp_path, plan, expected, wait_until, running
):
    out = tmp_path / "out"
    faults.plan(plan, gate=str(gate(plan)))
    with launching.side_by_side(launching.array(2), *words(out), folder=tmp_path) as tasks:
        wait_for_two(out, plan, wait_until, step_s=0.06)
        family = faults.children(tasks[0].pid)
        tasks[0].kill()
        tasks[0].wait()
        wait_until(lambda: not any(map(running, family)), 10, "its workers are gone")
        faults.plan(plan)
        code, table, said = tasks[1].end()
    assert code == 0, said
    assert "report: " in table
    launching.assert_each_once(out, EPISODES)
    assert faults.in_journal(out) == expected
    assert Results.read(out).wall["total"] > 0
    assert not list(out.glob(".*.spent.json")), "or the next would count its time twice"
    late = launching.array(2)[0]  # requeued: nothing is left to do, and it says so
    with launching.side_by_side([late], *words(out), folder=tmp_path) as tasks:
        code, table, said = tasks[0].end()
    assert (code, "report: " in table) == (0, True), said
    assert_complete(out, expected)


def test_ranks_of_a_step_told_to_stop_ask_to_be_requeued_and_go_on(
    tmp_path, plan, expected, wait_until
):
    out = tmp_path / "out"
    faults.plan(plan, step_s=0.05)
    with launching.side_by_side(launching.srun(2), *words(out), folder=tmp_path) as ranks:
        wait_until(lambda: launching.lines(out) >= 3, 60, "episodes")
        for rank in ranks:
            rank.send_signal(signal.SIGUSR1)
        (code, table, said), (other_code, other_table, other_said) = (rank.end() for rank in ranks)
    assert (code, other_code) == (75, 75), said + other_said
    assert (other_table, other_said) == ("", "")
    known = Results.read(out)
    assert 0 < len(known.episodes) <= launching.lines(out) < EPISODES
    assert f"{known.missing} episodes are missing; go on" in said
    assert "all" in table
    faults.plan(plan)
    with launching.side_by_side(launching.srun(3), *words(out), folder=tmp_path) as ranks:
        codes = [rank.end()[0] for rank in ranks]
    assert codes == [0, 0, 0]
    assert_complete(out, expected)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR1], ids=["killed", "stopped"])
def test_where_the_first_rank_is_gone_the_next_writes_the_results(
    tmp_path, plan, expected, wait_until, how
):
    out = tmp_path / "out"
    faults.plan(plan, gate=str(gate(plan)))
    with launching.side_by_side(launching.srun(3), *words(out), folder=tmp_path) as ranks:
        wait_until(lambda: len(list(out.glob(".claim.*"))) >= 3, 60, "a claim of each")
        faults.plan(plan, step_s=0.2)  # one that is told to stop waits for the others for a while
        gate(plan).touch()
        wait_until(lambda: launching.lines(out) >= 2, 60, "episodes")
        ranks[0].send_signal(how)
        ranks[0].wait()
        assert launching.lines(out) < EPISODES
        faults.plan(plan)
        ended = [rank.end() for rank in ranks[1:]]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert [table.count("report: ") for _, table, _ in ended] == [1, 0]
    launching.assert_each_once(out, EPISODES)
    assert faults.scores(Results.read(out).episodes) == expected
    assert not list(out.glob(".*.spent.json"))


def test_a_rank_whose_policy_fails_says_which_it_is_and_another_job_is_kept_out(
    tmp_path, plan, expected, wait_until
):
    out = tmp_path / "out"
    faults.plan(plan, step_s=0.2)
    with launching.side_by_side(launching.srun(2), *words(out), folder=tmp_path) as ranks:
        wait_until(lambda: len(list(out.glob(".claim.*"))) == 4, 60, "both play")
        code, said = faults.run(out, *words(out)[1:-2])
        assert code == 2
        assert "in use by process" in said
        faults.plan(plan, policy="raise")
        ended = [rank.end() for rank in ranks]
    assert [code for code, _, _ in ended] == [2, 2]
    for rank, (_, _, said) in enumerate(ended):
        assert f"rank={rank} polyarm: " in said
        assert "the gambler is broke" in said
    faults.plan(plan)
    finish(out, expected)
