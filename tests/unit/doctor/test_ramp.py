"""The ramp doubles the workers until the host gives in."""

import pytest

from polyarm.doctor import Case, ramp
from polyarm.doctor.ramp import Ramp, Rung
from polyarm.errors import BuildError, HostLimit, InvalidCall, UnknownName
from polyarm.vector import host


@pytest.fixture
def tried(monkeypatch):
    """Replaces the starting of workers: which counts were tried, and what each takes."""
    counts = []

    def fake(nbytes=2**20, fails_at=None):
        def attempt(planned, workers):
            counts.append(workers)
            error = "died of SIGSEGV" if workers == fails_at else ""
            return Rung(workers, 1.0, 10.0, nbytes, error)

        monkeypatch.setattr(ramp, "_try", attempt)
        return counts

    return fake


def test_workers_really_start_step_and_close():
    rungs = list(ramp.climb(Ramp("toy/count-3", 2, ("front",))))
    assert [rung.workers for rung in rungs] == [1, 2]
    for rung in rungs:
        assert not rung.error
        assert rung.first_obs_s > 0
        assert rung.steps_per_s > 0
        assert rung.nbytes_per_worker > 2**20


def test_a_worker_that_fails_in_a_step_ends_the_ramp_with_its_error():
    [rung] = ramp.climb(Ramp("polyarm.testing:SegfaultingEnv", 8))
    assert "SIGSEGV" in rung.error
    assert "polyarm doctor --ramp" in rung.error


def test_workers_are_doubled_up_to_the_last(tried):
    counts = tried()
    list(ramp.climb(Ramp("toy/count-3", 12)))
    assert counts == [1, 2, 4, 8, 12]


def test_the_first_count_that_fails_is_the_last(tried):
    counts = tried(fails_at=4)
    *_, last = ramp.climb(Ramp("toy/count-3", 64))
    assert counts == [1, 2, 4]
    assert last.error == "died of SIGSEGV"


def test_what_would_not_fit_is_not_tried(tried, monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 7 * 2**30)
    counts = tried(nbytes=2**30)
    *_, last = ramp.climb(Ramp("toy/count-3", 64))
    assert counts == [1, 2, 4]
    assert last.workers == 8
    assert "it would take 8.0 GiB, and 7.0 GiB are free" in last.error


def test_the_ramp_takes_a_plain_task_of_the_suite_with_its_cameras(monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 4)
    assert ramp.plan(Case("metaworld"), None, None) == Ramp("metaworld/reach-v3", 16, ("corner2",))


def test_the_ramp_takes_the_task_that_is_asked_for():
    assert ramp.plan(Case(), "toy/count-3", 2).task == "toy/count-3"
    with pytest.raises(UnknownName, match="metaworld"):
        ramp.plan(Case(), "metawrld/reach-v3", 2)


def test_rlbench_stands_still_in_joint_velocities():
    planned = ramp.plan(Case("rlbench"), None, 2)
    assert planned.task == "rlbench/reach_target"
    assert planned.options == {"arm_mode": "joint_velocity"}


def test_without_a_suite_or_a_task_there_is_nothing_to_start():
    with pytest.raises(InvalidCall, match="--suite metaworld"):
        ramp.plan(Case(), None, None)


@pytest.mark.parametrize(
    "error",
    [BuildError("could not build it"), HostLimit("too much"), BlockingIOError(11, "no more forks")],
)
def test_workers_that_cannot_be_started_end_the_ramp_with_the_error(error, monkeypatch):
    def make_vec(*_, **__):
        raise error

    monkeypatch.setattr(ramp, "make_vec", make_vec)
    [rung] = ramp.climb(Ramp("toy/count-3", 8))
    assert rung.error == str(error)


def test_no_workers_cannot_be_started():
    with pytest.raises(InvalidCall, match="at least 1"):
        ramp.plan(Case(), "toy/count-3", 0)


def test_an_error_without_words_is_named_by_its_class(monkeypatch):
    def make_vec(*_, **__):
        raise MemoryError

    monkeypatch.setattr(ramp, "make_vec", make_vec)
    assert ramp._try(Ramp("toy/count-3", 1), 1).error == "MemoryError"
