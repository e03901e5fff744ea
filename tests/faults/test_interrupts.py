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
from polyarm.testing import CountingEnv

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
