"""Which processes are over their limit, and how often the dear question is asked."""

from __future__ import annotations

import os

import numpy as np
import pytest

from polyarm.vector import host, process
from polyarm.vector.memory_limit import MemoryLimit

MIB = 1 << 20


@pytest.fixture
def asked(monkeypatch):
    """Processes by pid: what they hold and how much of it is their own; and who was asked."""
    held, asked = {}, []

    def private_memory(pid):
        asked.append(pid)
        return held[pid][1] * MIB

    monkeypatch.setattr(host, "anonymous_memory", lambda pid: held[pid][0] * MIB)
    monkeypatch.setattr(host, "private_memory", private_memory)
    return held, asked


def look(limit, asked):
    """Who is over the limit, and whom it took to ask."""
    held, found = asked
    found.clear()
    return limit.exceeded(held), sorted(found)


def test_small_processes_are_not_asked_what_is_their_own(asked):
    asked[0].update({1: (100, 100), 2: (50, 50)})
    assert look(MemoryLimit(100 * MIB), asked) == ([], [])


def test_what_is_shared_does_not_count_and_is_asked_of_one_in_turn(asked):
    held, _ = asked
    held.update(dict.fromkeys((1, 2, 3), (300, 20)))
    limit = MemoryLimit(100 * MIB)
    assert look(limit, asked) == ([], [1, 2, 3])
    assert [look(limit, asked) for _ in range(4)] == [([], [1]), ([], [2]), ([], [3]), ([], [1])]
    held[3] = (300, 120)  # it has written to shared pages
    assert [look(limit, asked) for _ in range(2)] == [([], [2]), ([3], [3])]


def test_who_grows_is_found_at_once(asked):
    held, _ = asked
    held.update(dict.fromkeys((1, 2, 3), (300, 20)))
    limit = MemoryLimit(100 * MIB)
    look(limit, asked)
    held[3] = (390, 110)
    assert look(limit, asked) == ([3], [1, 3])
    del held[3]
    assert look(limit, asked) == ([], [2])


def test_pages_shared_with_a_fork_are_not_a_process_s_own():
    block = np.ones(64 * MIB, np.uint8)
    before = host.private_memory(os.getpid())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        for pid in (os.getpid(), child):
            assert host.anonymous_memory(pid) > 64 * MIB
        assert host.private_memory(os.getpid()) < before - 64 * MIB
        assert host.private_memory(child) < 40 * MIB
        block[:] = 2
        assert host.private_memory(os.getpid()) > 64 * MIB
    finally:
        process.kill(child)
        os.waitpid(child, 0)
        os.close(writer)
