"""In which order a lockstep wakes its workers."""

from __future__ import annotations

import os
from functools import partial

import pytest

import polyarm
from polyarm.testing import CountingEnv, SlowEnv
from polyarm.vector.roll import Roll
from polyarm.vector.workerstate import Stage, WorkerState

ROLL = Roll(1, [0, 1, 2], [4, 5, 6], [(0,), (1,), (2,)], [70, 71, 72], range(3))


def rung(roll):
    return [fd for fd, _ in roll.rings(lambda fd, count: (fd, count))]


@pytest.fixture
def roll():
    return Roll(*(getattr(ROLL, name) for name in ROLL.__slots__))


def test_workers_are_rung_once_each_beginning_with_whoever_answered_last(roll):
    assert rung(roll) == [70, 71, 72]
    roll.latest_first([(2, 6, 9), (0, 4, 9), (1, 5, 9)])
    assert rung(roll) == [71, 70, 72]
    assert all(count == 1 for _, count in roll.rings(lambda fd, count: (fd, count)))


def test_answers_named_twice_after_an_interrupt_ring_nobody_twice(roll):
    roll.latest_first([(2, 6, 9), (2, 6, 9), (0, 4, 9), (1, 5, 9)])
    assert sorted(rung(roll)) == [70, 71, 72]


def test_a_roll_without_everybody_there_rings_nobody():
    lost = WorkerState(0, (0,), [0])
    assert lost.stage is not Stage.READY
    assert rung(Roll.call([lost], 1)) == []


def test_the_slowest_worker_is_rung_first(monkeypatch):
    bells: list[int] = []

    def ring(fd, count):
        bells.append(fd)
        write(fd, count)

    write = os.eventfd_write
    tasks = [CountingEnv, partial(SlowEnv, step_s=0.1), CountingEnv]
    with polyarm.make_vec(tasks, num_envs=3, num_workers=3) as envs:
        monkeypatch.setattr(os, "eventfd_write", ring)
        envs.reset()
        by_worker = bells[:3]
        for _ in range(2):
            bells.clear()
            envs.step(envs.action_space.sample())
        assert sorted(bells) == sorted(by_worker)
        assert bells[0] == by_worker[1]
