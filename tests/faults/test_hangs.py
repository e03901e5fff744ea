"""Envs that never answer: in their constructor, in a step, with the interpreter lock or without."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import polyarm
from polyarm.errors import BuildError, InvalidCall
from polyarm.testing import CountingEnv, HangingEnv, SlowEnv
from polyarm.vector.board import Phase

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def counting():
    return CountingEnv(length=1000)


@pytest.mark.parametrize("hold_gil", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_hung_step_is_killed_and_its_stack_is_shown(probe, tmp_path, hold_gil, workers):
    once = str(tmp_path / "once")
    tasks = [lambda: HangingEnv(at=2, only_first=once, hold_gil=hold_gil), counting]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=workers, step_timeout_s=0.5) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        began = time.monotonic()
        _, rewards, _, truncated, info = envs.step(look.actions())
        assert 0.4 < time.monotonic() - began < 10
        error = info["error"][0]
        assert (error.kind, error.phase) == ("hung", "step")
        assert "0.5 s" in error.message
        assert "in fail" in error.stack
        assert "failing.py" in error.stack
        assert truncated.tolist() == [True, workers == 1]
        if workers == 1:
            assert info["error"][1].kind == "collateral"
            assert info["error"][1].stack == ""
        else:
            assert rewards.tolist() == [0, 2]
        look.step_until(lambda result: result[1][0] == 1, steps=3)


def test_a_deadline_is_that_of_one_step_not_of_all_a_worker_was_woken_for(probe):
    slow = partial(SlowEnv, step_s=0.15, length=100)
    with polyarm.make_vec(slow, num_envs=2, num_workers=1, step_timeout_s=0.8) as envs:
        look = probe(envs)
        envs.reset()
        began = time.monotonic()
        *_, info = envs.step_chunk(look.actions(6))
        assert time.monotonic() - began > 2 * 0.8
        assert "error" not in info
        assert info["steps"].tolist() == [6, 6]


class ComputingEnv(CountingEnv):
    """Computes in each step, on a core that all of these share."""

    def __init__(self, step_s):
        super().__init__(length=1000)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        self.step_s = step_s

    def step(self, action):
        began = time.process_time()
        while time.process_time() - began < self.step_s:
            pass
        return super().step(action)


def test_a_worker_that_waits_for_a_core_is_not_taken_for_a_hung_one(probe):
    busy = partial(ComputingEnv, step_s=0.15)
    with polyarm.make_vec(busy, num_envs=6, start="imports", step_timeout_s=0.4) as envs:
        envs.reset()
        began = time.monotonic()
        result = envs.step(probe(envs).actions())
        assert time.monotonic() - began > 0.8  # they had a sixth of a core each
        assert "error" not in result[-1]
        assert result[1].tolist() == [1] * 6


def test_an_env_that_computes_for_ever_is_hung_when_it_has_done_so_for_its_limit(probe):
    endless = partial(ComputingEnv, step_s=float("inf"))
    with polyarm.make_vec([endless, counting], num_envs=2, step_timeout_s=0.5) as envs:
        envs.reset()
        began = time.monotonic()
        info = envs.step(probe(envs).actions())[-1]
        assert 0.4 < time.monotonic() - began < 10
        assert info["error"][0].kind == "hung"
        assert "in step" in info["error"][0].stack
        assert info["error"][1] is None


def test_a_hung_reset_has_a_deadline_of_its_own(probe, tmp_path):
    once = str(tmp_path / "once")
    with polyarm.make_vec(
        [lambda: HangingEnv(where="reset", only_first=once), counting],
        num_envs=2,
        step_timeout_s=50,
        reset_timeout_s=0.5,
    ) as envs:
        began = time.monotonic()
        obs, _ = envs.reset(seed=1)
        assert time.monotonic() - began < 10
        assert obs["state"][:, 0].tolist() == [1, 2]


@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_hung_constructor_is_a_build_error_that_shows_where_it_hung(start, workers):
    tasks = [counting, lambda: HangingEnv(where="constructor"), counting]
    began = time.monotonic()
    with pytest.raises(BuildError) as caught:
        polyarm.make_vec(
            tasks,
            num_envs=3,
            num_workers=workers,
            start=start,
            build_timeout_s=6.0 if start == "fresh" else 2.0,
        )
    assert time.monotonic() - began < 30
    assert "slot 1" in str(caught.value)
    assert "failing.py" in str(caught.value), "no stack of the hung constructor"


def test_a_rebuild_that_hangs_is_killed_too(probe, tmp_path):
    marker, once = str(tmp_path / "built"), str(tmp_path / "once")

    def build():
        if Path(marker).exists() and not Path(once).exists():
            open(once, "w").close()
            time.sleep(3600)
        open(marker, "w").close()
        return CountingEnv()

    with polyarm.make_vec([build, counting], num_envs=2, build_timeout_s=2, start="imports") as e:
        look = probe(e)
        e.reset()
        os.kill(look.pid(0), signal.SIGKILL)
        kinds = []
        for _ in range(6):
            info = e.step(look.actions())[-1]
            if "error" in info and info["error"][0]:
                kinds.append((info["error"][0].kind, info["error"][0].phase))
        assert kinds == [("died", "idle"), ("hung", "build")]


@pytest.mark.parametrize("start", ["imports", "built"])
def test_a_zygote_that_stops_answering_is_replaced(probe, start):
    limits = {"build_timeout_s": 1, "step_timeout_s": 1}
    with polyarm.make_vec(counting, num_envs=2, start=start, **limits) as envs:
        look = probe(envs)
        envs.reset()
        stopped = look.zygote_pids()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        os.kill(look.pid(0), signal.SIGKILL)
        began = time.monotonic()
        failures = []

        def works(result):
            failures.extend(filter(None, result[-1].get("error", ())))
            return result[1][0] == 2

        look.step_until(works, steps=10)
        assert time.monotonic() - began < 20
        found = [(failure.slot, failure.kind, failure.phase) for failure in failures]
        assert found[0] == (0, "died", "idle")
        assert set(found[1:]) == {(0, "hung", "build")}
        look.wait_until(lambda: not set(stopped) & set(look.zygote_pids()))


def test_a_zygote_that_is_killed_is_replaced_when_it_is_needed(probe):
    for start in ("built", "imports"):
        with polyarm.make_vec(counting, num_envs=2, start=start) as envs:
            look = probe(envs)
            envs.reset()
            for pid in look.zygote_pids():
                os.kill(pid, signal.SIGKILL)
                look.wait_until(lambda pid=pid, look=look: not look.running(pid))
            assert envs.step(look.actions())[1].tolist() == [1, 1]
            os.kill(look.pid(0), signal.SIGKILL)
            assert envs.step(look.actions())[-1]["error"][0].kind == "died"
            assert envs.step(look.actions())[-1]["steps"].tolist() == [0, 1]
            assert envs.step(look.actions())[1].tolist() == [1, 4]


@pytest.mark.parametrize("then", ["reset", "step"])
def test_an_interrupted_step_can_be_received_and_the_env_goes_on(probe, then):
    class NapEnv(CountingEnv):
        def step(self, action):
            time.sleep(0.3)
            return super().step(action)

    with polyarm.make_vec(NapEnv, num_envs=3) as envs:
        look = probe(envs)
        envs.reset(seed=1)
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            envs.step(look.actions())
        with pytest.raises(InvalidCall, match=r"\[0, 1, 2\]"):
            envs.step(look.actions())
        ready = envs.recv(3)
        assert ready.rewards.tolist() == [1, 1, 1]
        if then == "reset":
            obs, _ = envs.reset(seed=5)
            assert obs["state"][:, 0].tolist() == [5, 6, 7]
        _, rewards, *_ = envs.step(look.actions())
        assert rewards.tolist() == [1 if then == "reset" else 2] * 3


def interrupt_soon():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_an_interrupted_recv_loses_nothing(probe):
    class NapEnv(CountingEnv):
        def step(self, action):
            time.sleep(0.3)
            return super().step(action)

    with polyarm.make_vec(NapEnv, num_envs=2) as envs:
        look = probe(envs)
        envs.reset(seed=1)
        envs.send(look.actions())
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            envs.recv(2)
        ready = envs.recv(2)
        assert sorted(ready.slots.tolist()) == [0, 1]
        assert ready.rewards.tolist() == [1, 1]


def test_close_of_a_hung_env_has_a_deadline(tmp_path):
    envs = polyarm.make_vec(lambda: HangingEnv(where="close"), num_envs=2, num_workers=1)
    envs.reset()
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 10


def test_a_hang_in_close_after_an_exception_is_killed(probe, tmp_path):
    once = str(tmp_path / "once")

    class HangsInClose(CountingEnv):
        def step(self, action):
            if not Path(once).exists():
                open(once, "w").close()
                raise RuntimeError("first")
            return super().step(action)

        def close(self):
            if Path(once).exists():
                time.sleep(3600)

    envs = polyarm.make_vec([HangsInClose, counting], num_envs=2, step_timeout_s=0.5)
    look = probe(envs)
    try:
        envs.reset()
        info = envs.step(look.actions())[-1]
        assert info["error"][0].error_class == "RuntimeError"
        assert envs.step(look.actions())[-1]["steps"].tolist() == [0, 1]
        assert envs.step(look.actions())[1].tolist() == [1, 3]
    finally:
        envs.close()


def test_a_worker_stopped_while_it_starts_is_replaced(probe, tmp_path):
    once = str(tmp_path / "once")

    class StopsItself(CountingEnv):
        def __init__(self):
            super().__init__()
            if Path(once).exists() and not Path(once + "2").exists():
                open(once + "2", "w").close()
                os.kill(os.getpid(), signal.SIGSTOP)

    with polyarm.make_vec(
        [StopsItself, counting], num_envs=2, build_timeout_s=2, start="imports"
    ) as envs:
        look = probe(envs)
        envs.reset()
        open(once, "w").close()
        os.kill(look.pid(0), signal.SIGKILL)
        look.step_until(lambda result: result[1][0] == 2, steps=6)
        assert Path(once + "2").exists()


def test_a_call_that_hangs_is_an_error_of_the_call(probe, tmp_path):
    class HangsInCall(CountingEnv):
        def hang(self):
            if self._seed == 1:
                time.sleep(3600)
            return 5

    with polyarm.make_vec(HangsInCall, num_envs=2, step_timeout_s=0.5) as envs:
        look = probe(envs)
        envs.reset(seed=1)
        with pytest.raises(polyarm.errors.EnvCallError, match="hang"):
            envs.call("hang")
        info = envs.step(look.actions())[-1]
        assert info["error"][0].phase == "call"
        assert info["error"][1] is None
        assert envs.step(look.actions())[-1]["steps"].tolist() == [0, 1]
        assert envs.call("hang") == (5, 5)


def test_phases_are_published(probe, tmp_path):
    once = str(tmp_path / "once")
    with polyarm.make_vec(lambda: HangingEnv(only_first=once), num_envs=1) as envs:
        look = probe(envs)
        envs.reset()
        envs.send(look.actions())
        look.wait_for_phase(0, Phase.STEP)
        assert envs.recv(1, timeout_s=0.05).slots.size == 0
        os.kill(look.pid(0), signal.SIGKILL)
        assert envs.recv(1).info["error"][0].signal == "SIGKILL"


def test_a_worker_stopped_while_it_starts_is_judged_by_the_deadline_of_builds():
    build = partial(SlowEnv, build_s=0.5, step_s=0.0)
    with polyarm.make_vec(build, num_envs=1, step_timeout_s=60, build_timeout_s=1.5) as envs:
        envs.reset()
        first = envs.worker_pids[0]
        os.kill(first, signal.SIGKILL)
        envs.step(np.zeros((1, 2), np.float32))
        worker = envs._engine._workers[0]
        envs.send(np.zeros((1, 2), np.float32))
        while worker.pid in (0, first):
            envs.recv(1, timeout_s=0.01)
        os.kill(worker.pid, signal.SIGSTOP)
        ready = envs.recv(1, timeout_s=20)
        error = ready.info["error"][0]
    assert (error.kind, error.phase) == ("hung", "build")
    assert "1.5 s" in error.message
