from __future__ import annotations

import pytest

from polyarm.vector import host
from polyarm.vector.admission import Admission

MIB = 1 << 20


@pytest.fixture
def memory(monkeypatch):
    """Sets what is free, and what a process holds, of which some is its own."""

    def set_to(free, held=0, own=None):
        own = held if own is None else own
        monkeypatch.setattr(host, "available_memory", lambda: free * MIB)
        monkeypatch.setattr(host, "anonymous_memory", lambda pid: held * MIB)
        monkeypatch.setattr(host, "private_memory", lambda pid: own * MIB)

    return set_to


def most(admission, *, forked):
    return next(number for number in range(100) if not admission.allows(number, forked=forked))


def test_as_many_builds_as_cores_and_more_forks_may_be_under_way(memory):
    memory(free=10**6)
    admission = Admission(max_builds=3)
    assert most(admission, forked=False) == 3
    assert most(admission, forked=True) == 12


def test_no_more_may_be_under_way_than_fit_into_memory(memory):
    memory(free=2100, held=1000)
    admission = Admission(max_builds=8)
    admission.learn(4711, forked=False)
    assert most(admission, forked=False) == 2
    assert most(admission, forked=True) == 8
    memory(free=2900, held=10)
    admission.learn(4712, forked=False)  # a smaller one changes nothing
    assert most(admission, forked=False) == 2


def test_a_fork_takes_what_it_holds_alone_and_its_build_what_it_shares_too(memory):
    memory(free=4100, held=2000, own=500)
    admission = Admission(max_builds=8)
    admission.learn(4711, forked=True)
    assert most(admission, forked=False) == 2
    assert most(admission, forked=True) == 8


def test_a_worker_that_has_built_alone_takes_no_imports_that_it_shares(memory):
    memory(free=4100, held=2000, own=500)
    admission = Admission(max_builds=8)
    admission.learn(4711, forked=False)
    assert most(admission, forked=False) == 8


def test_without_any_memory_one_after_the_other_is_built(memory):
    memory(free=0)
    assert most(Admission(max_builds=8), forked=False) == 1
