"""Ranks that share a run's folder: claims, what a schedule draws from them, who is gone."""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import pytest

from polyarm import InvalidCall, RunConflict, StoppedEarly
from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.rollout import runlock, sharing
from polyarm.rollout.evaluator import Evaluator
from polyarm.rollout.journal import Journal
from polyarm.rollout.options import EvalOptions
from polyarm.rollout.sharing import Member, SharedSchedule, Sharing

SOON_S = 0.3
RUN = {"protocol": {"tasks": {}}, "options": {}, "planned": {}}
SHORT, LONG = "toy/count-3", "toy/count-10"


@pytest.fixture(autouse=True)
def nobody_is_waited_for_long(monkeypatch):
    monkeypatch.setattr(sharing, "_LEAVING_S", SOON_S)


def keys(*tasks: str, episodes: int = 3) -> list[EpisodeKey]:
    return [EpisodeKey(*task.split("/"), index) for task in tasks for index in range(episodes)]


def finished(key: EpisodeKey, outcome="success") -> EpisodeResult:
    return EpisodeResult(key, outcome, 3, 6.0, 0.1, finished_at=time.time())


class Rank:
    """A rank without envs."""

    def __init__(self, folder, number: int, world: int = 2) -> None:
        self.journal = Journal(folder, RUN, rank=number, alone=False)
        self.sharing = Sharing(folder, self.journal, Member(number, world, "job"), self.is_missing)

    def is_missing(self, label, key):
        return (label, key) not in self.journal.finished

    def schedule(self, of: list[EpisodeKey], label: str = "") -> SharedSchedule:
        return self.sharing.schedule(label, of, max_attempts=3)

    def finish(self, key: EpisodeKey) -> None:
        self.journal.append(finished(key))
        self.sharing.entered(finished(key))

    def close(self) -> None:
        self.sharing.close()
        self.journal.close()


@pytest.fixture
def ranks(tmp_path):
    both = [Rank(tmp_path, number) for number in range(2)]
    yield both
    for rank in both:
        rank.close()


def test_an_episode_is_played_by_one_rank_only(ranks, tmp_path):
    mine, theirs = (rank.schedule(keys(SHORT)) for rank in ranks)
    drawn = [mine.next(SHORT), theirs.next(SHORT), mine.next(SHORT)]
    assert [key.index for key in drawn] == [0, 1, 2]
    assert mine.next(SHORT) is theirs.next(SHORT) is None
    assert len(list(tmp_path.glob(".claim.*"))) == 3


def test_policies_have_claims_of_their_own(ranks):
    assert ranks[0].schedule(keys(SHORT), "a").next(SHORT).index == 0
    assert ranks[1].schedule(keys(SHORT), "b").next(SHORT).index == 0


def test_an_episode_that_was_finished_meanwhile_is_not_played_again(ranks, tmp_path):
    theirs = ranks[1].schedule(keys(SHORT))  # made before anything is finished
    mine = ranks[0].schedule(keys(SHORT))
    for _ in range(2):
        ranks[0].finish(mine.next(SHORT))
    assert theirs.next(SHORT).index == 2
    assert [result.key.index for result in ranks[1].sharing.news()] == [0, 1]
    assert len(list(tmp_path.glob(".claim.*"))) == 1


def test_what_a_rank_gives_up_is_to_be_had_again(ranks):
    assert ranks[0].schedule(keys(SHORT, episodes=1)).next(SHORT).index == 0
    assert ranks[1].schedule(keys(SHORT, episodes=1)).next(SHORT) is None
    ranks[0].close()
    assert ranks[1].schedule(keys(SHORT, episodes=1)).next(SHORT).index == 0


def leave_behind(claim, age_s: float = 0.0, **holder) -> None:
    """A claim as another process has left it."""
    claim.unlink()
    dead = {"host": socket.gethostname(), "boot": runlock._boot_id(), "pid": 2**22 + 1}
    claim.write_text(json.dumps({**dead, "started": "1", **holder}))
    os.utime(claim, times=(time.time() - age_s,) * 2)


@pytest.mark.parametrize(
    ("holder", "age_s", "taken_over"),
    [
        ({}, 0, True),
        ({"host": "elsewhere"}, 0, False),
        ({"host": "elsewhere"}, 2 * runlock.STALE_S, True),
        ({"pids": "pid:[1]"}, 0, False),
        ({"pids": "pid:[1]"}, 2 * runlock.STALE_S, True),
        ({"pids": "pid:[1]", "boot": "an earlier one"}, 0, True),
    ],
    ids=[
        "its process is gone",
        "on another host",
        "on another host, long ago",
        "in another container",
        "in another container, long ago",
        "before the host was restarted",
    ],
)
def test_the_claim_of_a_rank_that_is_gone_is_taken_over(ranks, tmp_path, holder, age_s, taken_over):
    ranks[0].schedule(keys(SHORT, episodes=1)).next(SHORT)
    (claim,) = tmp_path.glob(".claim.*")
    leave_behind(claim, age_s, **holder)
    key = ranks[1].schedule(keys(SHORT, episodes=1)).next(SHORT)
    assert (key is not None) == taken_over


def test_a_claim_of_the_living_is_not_moved_even_for_a_moment(ranks, tmp_path, monkeypatch):
    ranks[0].schedule(keys(SHORT, episodes=1)).next(SHORT)
    (claim,) = tmp_path.glob(".claim.*")
    monkeypatch.setattr("pathlib.Path.rename", lambda *_: pytest.fail("others could have it"))
    runlock.clear_away(claim)
    assert claim.exists()


def test_what_the_dead_have_finished_is_not_played_again(ranks, tmp_path):
    (key,) = keys(SHORT, episodes=1)
    theirs = ranks[1].schedule([key])
    ranks[0].schedule([key]).next(SHORT)
    (claim,) = tmp_path.glob(".claim.*")
    ranks[0].journal.append(finished(key))
    leave_behind(claim)  # it died between the two
    assert theirs.next(SHORT) is None
    assert not claim.exists()


def test_a_slot_stays_with_its_task_as_long_as_there_are_episodes(ranks):
    schedule = ranks[0].schedule(keys(SHORT, LONG))
    assert [schedule.next(LONG).name for _ in range(4)] == [LONG, LONG, LONG, SHORT]


def test_an_episode_that_fails_is_tried_again_here_under_the_same_claim(ranks, tmp_path):
    schedule = ranks[0].schedule(keys(SHORT))
    key = schedule.next(SHORT)
    assert schedule.failed(key)
    assert schedule.next(SHORT) == key
    assert schedule.attempts(key) == 2
    assert len(list(tmp_path.glob(".claim.*"))) == 1


def test_a_hopeless_task_is_dropped_as_far_as_nobody_else_plays_it(ranks):
    ranks[1].schedule(keys(SHORT)).next(SHORT)
    schedule = ranks[0].schedule(keys(SHORT, LONG))
    assert schedule.next(SHORT).index == 1
    assert [key.index for key in schedule.drop(SHORT)] == [2]
    assert schedule.next(SHORT).name == LONG


def test_ranks_begin_with_other_tasks_and_share_the_rest():
    tasks = [f"toy/{name}" for name in "abcde"]
    begun = [
        {key.task for key in Member(number, 2, "").first_of(keys(*tasks))} for number in (0, 1)
    ]
    assert begun == [set("ace"), set("bd")]
    alone = [Member(number, 3, "").first_of(keys(SHORT)) for number in range(3)]
    assert alone == [keys(SHORT)] * 3


def test_a_rank_waits_for_the_first_one_to_clear_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_FRESH_S", 0.0)
    Journal(tmp_path, {**RUN, "job": "an earlier one"}, alone=False).close()
    with pytest.raises(RunConflict, match="has not cleared"):
        sharing.await_fresh_start(tmp_path, "this one", lambda: False)
    monkeypatch.setattr(sharing, "_FRESH_S", 60.0)
    with pytest.raises(StoppedEarly, match="stopped before the first rank"):
        sharing.await_fresh_start(tmp_path, "this one", lambda: True)
    Journal(tmp_path, {**RUN, "job": "this one"}, alone=False, fresh=True).close()
    sharing.await_fresh_start(tmp_path, "this one", lambda: False)


def test_a_heart_beats_while_its_process_is_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(runlock, "BEAT_S", 0.05)
    lock = runlock.RunLock(tmp_path / "lock")
    try:
        assert lock.claim(tmp_path / "claim")
        os.utime(lock.path, times=(0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / "claim").stat().st_mtime == 0:  # one file, one heartbeat
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        lock.release()


def test_a_rank_that_was_requeued_on_another_host_waits_until_it_is_known_to_be_gone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(runlock, "_LOOK_S", 0.01)
    monkeypatch.setattr(runlock, "STALE_S", 0.3)
    path = tmp_path / "lock"
    first = runlock.Job("SLURM job 1", (0, 0))
    holder = {"host": "elsewhere", "pid": 7, "job": first.name, "attempt": [*first.attempt]}
    path.write_text(json.dumps(holder))
    # Another command of the same job is not in its place, nor is another job's.
    for other in (first, runlock.Job("SLURM job 2", (1, 0)), runlock.Job()):
        with pytest.raises(RunConflict, match="in use by process 7 on elsewhere"):
            runlock.RunLock(path, job=other)
    runlock.RunLock(path, job=runlock.Job("SLURM job 1", (1, 0))).release()
    assert not path.exists()


def evaluator(folder, number, **options):
    given = EvalOptions(num_envs=1, num_workers=0, episodes=2, **options)
    return Evaluator([SHORT], given, folder, member=Member(number, 2, "job"))


def test_ranks_do_not_share_a_cluster_of_ray_too(tmp_path):
    with pytest.raises(InvalidCall, match="one process, not ranks"):
        evaluator(tmp_path, 0, ray="auto")


def test_a_rank_alone_plays_everything_and_another_finds_nothing_left(tmp_path):
    for number in (1, 0):
        with evaluator(tmp_path, number) as one:
            results = one.run({"": "zero"})
        assert not results.missing
    assert (tmp_path / "episodes.rank1.jsonl").read_bytes().count(b"\n") == 2
    assert (tmp_path / "episodes.jsonl").read_bytes() == b""
    assert results.wall["total"] > results.wall["startup"] > 0, "of the one that played"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"run.json", "results.json", "episodes.jsonl", "episodes.rank1.jsonl"}


def test_a_job_that_is_restarted_does_not_start_over_again(tmp_path):
    for number in (0, 0, 1):
        with evaluator(tmp_path, number, fresh=True) as one:
            one.run({"": "zero"})
        lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
        assert [json.loads(line)["index"] for line in lines] == [0, 1]
    given = EvalOptions(num_envs=1, num_workers=0, episodes=1, fresh=True)
    with Evaluator([SHORT], given, tmp_path, member=Member(0, 2, "another job")) as one:
        assert len(one.run({"": "random"}).episodes) == 1


def test_a_rank_whose_policy_fails_closes_its_envs_before_others_can_have_its_episodes(
    tmp_path, monkeypatch
):
    held = []
    with evaluator(tmp_path, 1) as one:
        close = one._player.envs.close
        monkeypatch.setattr(
            one._player.envs, "close", lambda *group: held.append(claims()) or close(*group)
        )

        def claims():
            return len(list(tmp_path.glob(".claim.*")))

        def break_down(_):
            raise FloatingPointError("broke")

        with pytest.raises(Exception, match="broke"):
            one.run({"": break_down})
    assert held[0] == 1
    assert claims() == 0


def test_ranks_that_are_there_together_share_by_their_number(tmp_path, ranks):
    assert [ranks[0].sharing.fair_share(number) for number in (0, 1, 4, 9)] == [0, 1, 2, 5]


def test_a_task_of_an_array_counts_those_that_are_there(tmp_path):
    """The seven others may be waiting for room, or have ended."""
    journals = [Journal(tmp_path, RUN, rank=number, alone=False) for number in (3, 5)]
    task = Sharing(tmp_path, journals[0], Member(3, 8, "", together=False), lambda *_: True)
    assert task.fair_share(40) == 20
    journals[1].close()
    assert task.fair_share(40) == 40
    journals[0].close()


def test_the_first_rank_that_is_left_sums_up(tmp_path):
    one, two, three = (Rank(tmp_path, number, 4) for number in (1, 2, 3))
    assert one.sharing.is_first_left(stopped=True)
    assert not two.sharing.is_first_left(stopped=True)
    one.close()
    assert two.sharing.is_first_left(stopped=True)
    assert not three.sharing.is_first_left(stopped=True)
    two.close()
    three.close()


def test_a_rank_that_was_faster_waits_for_the_first_to_come(tmp_path):
    second = Rank(tmp_path, 1)
    late = []
    coming = threading.Timer(SOON_S / 3, lambda: late.append(Rank(tmp_path, 0)))
    coming.start()
    assert not second.sharing.is_first_left(stopped=False)
    coming.join()
    late[0].close()
    began = time.monotonic()
    assert second.sharing.is_first_left(stopped=False)
    assert time.monotonic() - began >= SOON_S
    second.close()


def test_a_rank_that_comes_when_all_is_told_does_not_tell_it_again(tmp_path):
    with evaluator(tmp_path, 0) as first:
        first.run({"": "zero"})
    told = (tmp_path / "results.json").read_bytes()
    with evaluator(tmp_path, 1) as late:
        late.run({"": "zero"})
        assert not late.sums_up
    assert (tmp_path / "results.json").read_bytes() == told
    assert not list(tmp_path.glob(".*"))


def test_time_that_was_spent_before_a_rank_came_to_sum_up_counts(tmp_path):
    def first_ends(progress):
        if not (tmp_path / "results.json").exists():
            so_far = late.results([""])
            so_far.wall["total"] += 1000
            so_far.write(tmp_path)

    with evaluator(tmp_path, 1) as late:
        results = late.run({"": "zero"}, first_ends)
    assert late.sums_up
    assert results.wall["total"] > 1000


def test_who_sums_up_where_the_first_rank_is_gone(tmp_path):
    first = Journal(tmp_path, {**RUN, "protocol": {}}, alone=False)
    first.close()
    (tmp_path / "run.json").unlink()
    with evaluator(tmp_path, 1) as one:
        one.run({"": "zero"})
        assert one.sums_up
    first = Journal(tmp_path, json.loads((tmp_path / "run.json").read_text()), alone=False)
    try:
        with evaluator(tmp_path, 1) as one:
            one.run({"": "zero"})
            assert not one.sums_up
    finally:
        first.close()


def test_of_an_episode_that_two_have_played_all_ranks_count_the_same_line(tmp_path):
    first = tmp_path / "episodes.jsonl"

    def come_back(progress):  # the first rank stood still, and was thought to be gone
        if progress.last is not None and not first.exists():
            (line,) = (tmp_path / "episodes.rank1.jsonl").read_text().splitlines()
            first.write_text(json.dumps({**json.loads(line), "outcome": "failure"}) + "\n")

    counted = []
    for number in (1, 0):
        with evaluator(tmp_path, number) as one:
            counted.append([each.outcome for each in one.run({"": "zero"}, come_back).episodes])
    assert counted == [["failure", "success"]] * 2


def test_errors_are_retried_once_whoever_does_it(tmp_path):
    with evaluator(tmp_path, 0) as one:
        one.run({"": "zero"})
    journal = tmp_path / "episodes.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[0]["outcome"], lines[0]["finished_at"] = "error", 0.0
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with evaluator(tmp_path, 0, retry_errors=True) as one:
        assert not one.run({"": "zero"}).errors
    lines[0]["finished_at"] = time.time()  # since these ranks were started
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with evaluator(tmp_path, 1, retry_errors=True) as one:
        assert one.run({"": "zero"}).errors == 1
