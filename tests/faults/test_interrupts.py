"""Exceptions out of a signal handler at any moment: what was sent is still answered, once."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

import cloudpickle
import pytest

import polyarm
from polyarm.errors import InvalidCall
from polyarm.testing import CountingEnv, CrashingEnv, SlowEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, TimeoutError])
def test_an_env_interrupted_at_random_moments_can_always_be_received_and_reset(
    probe, workers, interruption
):
    """Each round: interrupt a few steps somewhere, collect what is pending, start over."""

    def interrupt(*_):
        raise interruption

    rng = random.Random(0)
    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with polyarm.make_vec(
            lambda: CountingEnv(length=10**6), num_envs=4, num_workers=workers, step_timeout_s=10
        ) as envs:
            look = probe(envs)
            envs.reset(seed=0)
            end = time.monotonic() + 2
            rounds = 0
            while time.monotonic() < end:
                rounds += 1
                try:
                    threading.Timer(
                        rng.uniform(1e-4, 3e-3), os.kill, (os.getpid(), signal.SIGUSR1)
                    ).start()
                    while True:
                        envs.step(look.actions())
                except interruption:
                    pass
                while True:
                    try:
                        envs.recv(1, timeout_s=10)
                    except InvalidCall:
                        break
                seed = rng.randrange(500)
                obs, _ = envs.reset(seed=seed)
                assert obs["state"][:, 0].tolist() == [seed, seed + 1, seed + 2, seed + 3]
                assert obs["state"][:, 1].tolist() == [0] * 4
                for number in (1, 2):
                    _, rewards, _, _, info = envs.step(look.actions())
                    assert rewards.tolist() == [number] * 4
                    assert "error" not in info
            assert rounds > 3
    finally:
        signal.signal(signal.SIGUSR1, old)


def interrupt_the_next_wait(look):
    """As a handler does that raises while answers are waited for."""
    engine = look.engine

    def interrupted(*_, **__):
        del engine._serve
        raise KeyboardInterrupt

    engine._serve = interrupted


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_switch_shifts_no_answer_and_repeats_no_episode(probe, workers):
    with polyarm.make_vec("toy/count-10", num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        for _ in range(3):
            envs.step(look.actions())
        interrupt_the_next_wait(look)
        with pytest.raises(KeyboardInterrupt):
            envs.switch_task([0], "toy/count-50")
        rewards = [envs.step(look.actions())[1].tolist() for _ in range(3)]
        assert rewards == [[0, 4], [1, 5], [2, 6]]
        assert envs.episodes.tolist() == [2, 1]
        assert envs.tasks == ("toy/count-50", "toy/count-10")
        assert envs.reset()[0]["state"][:, 0].tolist() == [4, 3]


def test_an_env_lost_in_an_interrupted_call_is_reported_by_its_next_step(probe):
    with polyarm.make_vec("toy/count-10", num_envs=2) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        envs.step(look.actions())
        os.kill(look.pid(0), signal.SIGSTOP)
        interrupt_the_next_wait(look)
        with pytest.raises(KeyboardInterrupt):
            envs.get_attr("length")
        os.kill(look.pid(0), signal.SIGKILL)
        *_, info = envs.step(look.actions())
        assert info["error"][0].kind == "died"
        assert info["steps"].tolist() == [0, 1]
        obs, *_ = envs.step(look.actions())
        assert obs["state"][:, 0].tolist() == envs.episodes.tolist() == [2, 1]


class Alarm(Exception):
    """Out of the handler of SIGALRM."""


@pytest.fixture
def alarm():
    """SIGALRM raises `Alarm`."""

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.signal(signal.SIGALRM, before)


def alarm_in(monkeypatch, owner, name, *, before=True):
    """An alarm comes in the next call of a method, at its beginning or its end."""
    method = getattr(owner, name)

    def alarmed(*arguments, **options):
        monkeypatch.undo()
        if before:
            signal.raise_signal(signal.SIGALRM)
        value = method(*arguments, **options)
        if not before:
            signal.raise_signal(signal.SIGALRM)
        return value

    monkeypatch.setattr(owner, name, alarmed)


@pytest.mark.parametrize("before", [True, False])
def test_an_alarm_while_a_slot_is_retired_for_a_switch_hangs_nothing(
    probe, alarm, monkeypatch, before
):
    with polyarm.make_vec("toy/count-10", num_envs=2, step_timeout_s=20) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        alarm_in(monkeypatch, look.engine._supervisor, "retire", before=before)
        with pytest.raises(Alarm):
            envs.switch_task([0], "toy/count-50")
        rewards = [envs.step(look.actions())[1].tolist() for _ in range(3)]
        assert rewards == [[0, 1], [1, 2], [2, 3]]
        assert envs.tasks == ("toy/count-50", "toy/count-10")


@pytest.mark.parametrize("before", [True, False])
def test_an_alarm_while_a_failure_is_entered_loses_no_answer(probe, alarm, monkeypatch, before):
    tasks = [lambda: CrashingEnv(at=2, length=10), lambda: CountingEnv(length=10)]
    with polyarm.make_vec(tasks, num_envs=2, step_timeout_s=20) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        envs.step(look.actions())
        envs.send(look.actions())
        alarm_in(monkeypatch, look.engine._supervisor, "_tail", before=before)
        answers = []

        def receive():
            while True:
                answers.extend(envs.recv(1).slots.tolist())

        with pytest.raises(Alarm):
            receive()
        while len(answers) < 2:
            ready = envs.recv(1, timeout_s=10)
            answers += ready.slots.tolist()
        assert sorted(answers) == [0, 1]
        assert envs.step(look.actions())[-1]["steps"].tolist() == [0, 1]


def receive_all(envs):
    """Whatever is pending, until nothing is."""
    while True:
        assert len(envs.recv(1, timeout_s=10).slots)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("method", ["_on_started", "_on_ended", "built"])
def test_an_alarm_while_a_worker_is_replaced_loses_no_event(
    probe, alarm, monkeypatch, method, before
):
    with polyarm.make_vec("toy/count-10", num_envs=2, step_timeout_s=20) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        alarm_in(monkeypatch, look.engine._supervisor, method, before=before)
        os.kill(look.pid(0), signal.SIGKILL)

        def step():
            while True:
                envs.step(look.actions())

        with pytest.raises(Alarm):
            step()
        with pytest.raises(InvalidCall, match="0 slots are pending"):
            receive_all(envs)
        for _ in range(3):
            envs.step(look.actions())
        assert look.engine._owner[0].pid
        assert look.engine._owner[0].pidfd >= 0
        assert envs.step(look.actions())[-1]["steps"].sum() >= 1


def test_an_alarm_before_a_send_is_published_leaves_nothing_pending(probe, alarm, monkeypatch):
    with polyarm.make_vec("toy/count-10", num_envs=2) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        alarm_in(monkeypatch, envs._commands, "_publish")
        with pytest.raises(Alarm):
            envs.send(look.actions())
        with pytest.raises(InvalidCall, match="0 slots are pending"):
            envs.recv(1)
        assert envs.step(look.actions())[1].tolist() == [1, 1]


def test_answers_read_when_an_alarm_came_are_not_waited_for(probe, alarm, monkeypatch):
    class FakeOs:
        """The module, but an alarm comes right after a read, before its result is kept."""

        def __getattr__(self, name):
            return getattr(os, name)

        def readv(self, fd, buffers):
            number = os.readv(fd, buffers)
            monkeypatch.undo()
            signal.raise_signal(signal.SIGALRM)
            return number

    with polyarm.make_vec("toy/count-10", num_envs=1, step_timeout_s=60) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        envs.send(look.actions())
        look.wait_until(lambda: look.engine._finished[0] == look.engine._commanded[0])
        monkeypatch.setattr("polyarm.vector.signals.os", FakeOs())
        with pytest.raises(Alarm):
            envs.recv(1)
        began = time.monotonic()
        assert envs.recv(1).rewards.tolist() == [1]
        assert time.monotonic() - began < 10


def test_envs_that_have_answered_are_closed_although_others_have_not(probe, alarm, tmp_path):
    class ClosingEnv(SlowEnv):
        def close(self):
            (tmp_path / f"closed-{self.step_s}").touch()

    tasks = [lambda: ClosingEnv(step_s=0), lambda: ClosingEnv(step_s=30)]
    with polyarm.make_vec(tasks, num_envs=2, step_timeout_s=60) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        with pytest.raises(Alarm):
            envs.step(look.actions())
    assert [path.name for path in tmp_path.iterdir()] == ["closed-0"]
