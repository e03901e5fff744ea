"""Workers that die: of a signal, by leaving, of too much memory; in every phase of their life."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import polyarm
from polyarm.testing import (
    CountingEnv,
    CrashingEnv,
    HangingEnv,
    SegfaultingEnv,
    SlowEnv,
)
from polyarm.vector.board import Command, Phase, Result
from polyarm.vector.supervisor import Supervisor
from polyarm.vector.workerstate import Stage

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def counting():
    return CountingEnv(length=10)


class LeavingEnv(CountingEnv):
    """Leaves the process in step 2, once."""

    def __init__(self, path, leave):
        super().__init__()
        self.path, self.leave = path, leave

    def step(self, action):
        if self.step_number == 1 and not Path(self.path).exists():
            open(self.path, "w").close()
            self.leave()
        return super().step(action)


class UnluckyEnv(CountingEnv):
    """Raises in a step, then dies in its reset and spoils its neighbour's next constructor."""

    def __init__(self, folder):
        super().__init__(length=100)
        self.raise_now, self.died = Path(folder, "raise"), Path(folder, "died")

    def reset(self, **options):
        if self.raise_now.exists() and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**options)

    def step(self, action):
        if self.raise_now.exists() and not self.died.exists():
            raise ValueError("raised in step")
        return super().step(action)


@pytest.mark.parametrize("start", ["built", "imports"])
def test_a_build_that_fails_says_nothing_of_slots_it_never_came_to(probe, tmp_path, start):
    died, told = tmp_path / "died", tmp_path / "told"

    def first():
        if died.exists() and not told.exists():
            told.touch()
            raise RuntimeError("cannot build now")
        return counting()

    tasks = [first, lambda: UnluckyEnv(tmp_path)]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=1, start=start) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        (tmp_path / "raise").touch()
        kinds = []
        for _ in range(5):
            error = envs.step(look.actions())[-1].get("error", [None, None])
            kinds.append([each and each.kind for each in error])
        assert kinds[:2] == [[None, "exception"], ["collateral", "died"]]
        assert kinds[-1] == [None, None]
        if start == "imports":
            assert kinds[2] == ["exception", "collateral"]


def test_a_death_is_heard_of_though_others_always_have_answers(probe):
    """A caller slower than the envs never has to wait."""
    with polyarm.make_vec(partial(CountingEnv, length=10**6), num_envs=4) as envs:
        look = probe(envs)
        envs.reset()
        os.kill(look.pid(0), signal.SIGSTOP)  # so that it has no answer
        envs.send(look.actions())
        envs.recv(3)
        envs.send(look.actions()[1:], [1, 2, 3])
        os.kill(look.pid(0), signal.SIGKILL)
        for _ in range(200):
            look.wait_until(lambda: len(arrived(envs)) >= 2, within_s=10)
            ready = envs.recv(1, timeout_s=5)
            if 0 in ready.slots:
                break
            envs.send(look.actions()[: len(ready.slots)], ready.slots)
        assert ready.info["error"][ready.slots.tolist().index(0)].kind == "died"


def arrived(envs):
    """Slots other than the first whose results are in the block."""
    board = envs._engine.board
    finished = board.results[1:, Result.SEQUENCE] == board.commands[1:, Command.SEQUENCE]
    return np.flatnonzero(finished)


@pytest.mark.parametrize("start", ["built", "fresh"])
def test_a_slots_bytes_go_to_a_new_worker_after_the_old_one_was_reaped(probe, monkeypatch, start):
    pids, relaunched = {}, []
    launch = Supervisor.launch

    def watched(self, worker):
        if worker.index in pids:
            relaunched.append(worker.index)
            assert not Path(f"/proc/{pids[worker.index]}").exists()
        launch(self, worker)

    monkeypatch.setattr(Supervisor, "launch", watched)
    with polyarm.make_vec(counting, num_envs=3, start=start) as envs:
        look = probe(envs)
        envs.reset()
        for _ in range(3):
            pids = {slot: look.pid(slot) for slot in range(3)}
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            assert all(envs.step(look.actions())[-1]["error"])
            envs.reset()
        assert sorted(relaunched) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
def test_a_worker_killed_in_mid_step_is_replaced_and_its_slot_goes_on(probe, tmp_path, start):
    once = str(tmp_path / "once")
    tasks = [counting, lambda: HangingEnv(at=3, only_first=once), counting]
    with polyarm.make_vec(tasks, num_envs=3, start=start) as envs:
        look = probe(envs)
        envs.reset(seed=5)
        for _ in range(2):
            before, *_ = envs.step(look.actions())
        before = {key: value.copy() for key, value in before.items()}
        envs.send(look.actions())
        look.wait_for_phase(1, Phase.STEP)
        victim = look.pid(1)
        os.kill(victim, signal.SIGKILL)
        ready = envs.recv(3)
        place = int(np.flatnonzero(ready.slots == 1)[0])
        error = ready.info["error"][place]
        assert (error.kind, error.phase, error.signal) == ("died", "step", "SIGKILL")
        assert (error.slot, error.pid) == (1, victim)
        assert ready.truncated[place]
        assert not ready.terminated[place]
        assert ready.rewards[place] == 0
        assert ready.info["steps"][place] == 0
        assert np.array_equal(ready.obs["state"][place], before["state"][1])
        for other in set(range(3)) - {place}:
            assert ready.info["error"][other] is None
            assert ready.rewards[other] == 3
        obs, rewards, terminated, truncated, info = envs.step(look.actions())
        assert info["steps"].tolist() == [1, 0, 1]
        assert obs["state"][1, 1] == 0
        assert not (terminated | truncated).any()
        obs, rewards, *_ = envs.step(look.actions())
        assert rewards.tolist() == [5, 1, 5]
        assert look.pid(1) != victim


def test_a_worker_killed_while_idle_costs_its_slot_an_episode(probe):
    with polyarm.make_vec(counting, num_envs=3) as envs:
        look = probe(envs)
        envs.reset(seed=1)
        envs.step(look.actions())
        os.kill(look.pid(2), signal.SIGKILL)
        _, rewards, _, truncated, info = envs.step(look.actions())
        assert truncated.tolist() == [False, False, True]
        assert rewards.tolist() == [2, 2, 0]
        assert info["error"][2].signal == "SIGKILL"
        assert info["error"][2].phase == "idle"
        obs, *_ = envs.step(look.actions())
        assert obs["state"][:, 1].tolist() == [3, 3, 0]


def test_a_worker_that_dies_between_episodes_is_reseeded_like_any_restarted_env(probe):
    with polyarm.make_vec(lambda: CountingEnv(length=2), num_envs=2) as envs:
        look = probe(envs)
        envs.reset(seed=7)
        envs.step(look.actions())
        envs.step(look.actions())
        os.kill(look.pid(0), signal.SIGKILL)

        def noticed():
            envs.send(look.actions()[1:], [1])
            envs.recv(1)
            return 0 in look.engine.lost

        look.wait_until(noticed)
        for _ in range(3):
            envs.send(look.actions()[:1], [0])
            ready = envs.recv(1)
            if "error" not in ready.info:
                break
        assert ready.info["steps"].tolist() == [0]
        assert ready.info["seed"][0] not in (-1, 7), "reset without a seed of its own"


@pytest.mark.parametrize("explicit", [True, False])
def test_a_worker_killed_in_reset_is_replaced_within_the_same_reset(probe, tmp_path, explicit):
    once = str(tmp_path / "once")
    with polyarm.make_vec(
        [counting, lambda: HangingEnv(where="reset", at=1, only_first=once)], num_envs=2
    ) as envs:
        look = probe(envs)
        if explicit:
            envs.send_reset(seed=3)
            look.wait_for_phase(1, Phase.RESET)
            os.kill(look.pid(1), signal.SIGKILL)
            ready = envs.recv(2)
            error = ready.info["error"][int(np.flatnonzero(ready.slots == 1)[0])]
            assert (error.phase, error.signal) == ("reset", "SIGKILL")
            return
        victim = look.pid(1)
        killer = os.fork()
        if killer == 0:
            try:
                look.wait_for_phase(1, Phase.RESET)
                os.kill(victim, signal.SIGKILL)
            finally:
                os._exit(0)
        obs, _ = envs.reset(seed=3)
        os.waitpid(killer, 0)
        assert obs["state"][:, 0].tolist() == [3, 4]
        _, rewards, *_ = envs.step(look.actions())
        assert rewards.tolist() == [1, 1]


@pytest.mark.parametrize("start", ["imports", "fresh"])
def test_a_worker_killed_during_its_first_build_is_a_build_error(probe, tmp_path, start):
    pid_file = tmp_path / "pid"

    def build():
        pid_file.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(polyarm.errors.BuildError, match="SIGKILL"):
        polyarm.make_vec(build, num_envs=2, start=start)


def test_a_segfault_shows_its_signal_and_its_stack(probe, tmp_path):
    once = str(tmp_path / "once")
    with polyarm.make_vec(lambda: SegfaultingEnv(at=2, only_first=once), num_envs=1) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        _, _, _, truncated, info = envs.step(look.actions())
        error = info["error"][0]
        assert truncated[0]
        assert (error.kind, error.signal, error.phase) == ("died", "SIGSEGV", "step")
        assert "Segmentation fault" in error.stack
        assert "failing.py" in error.stack
        assert "in fail" in error.stack
        assert "SIGSEGV" in str(error)


def test_a_segfault_in_a_forked_builder_says_so(probe):
    with pytest.raises(polyarm.errors.BuildError, match="Segmentation fault"):
        polyarm.make_vec(lambda: SegfaultingEnv(where="constructor"), num_envs=2, start="built")


@pytest.mark.parametrize("number", [40, signal.SIGTERM, signal.SIGINT, signal.SIGRTMAX])
def test_any_signal_can_end_a_worker_even_one_without_a_name(probe, number):
    with polyarm.make_vec(counting, num_envs=2) as envs:
        look = probe(envs)
        envs.reset()
        os.kill(look.pid(0), number)
        info = envs.step(look.actions())[-1]
        error = info["error"][0]
        assert error is not None
        assert error.signal
        envs.step(look.actions())
        _, rewards, *_ = envs.step(look.actions())
        assert rewards[0] == 1


def test_a_failed_worker_is_replaced_while_its_neighbours_are_still_in_their_step(probe):
    """Answers of a lockstep step are entered together, but a failure is dealt with at once."""
    tasks = [lambda: CrashingEnv(at=2, length=10), lambda: SlowEnv(step_s=0.7, length=10)]
    with polyarm.make_vec(tasks, num_envs=2) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        failing = look.engine._owner[0]
        before = failing.generation
        *_, info = envs.step(look.actions())
        assert info["error"][0].kind == "exception"
        assert info["steps"].tolist() == [0, 1]
        assert failing.generation == before + 1
        assert failing.stage is Stage.READY


def test_a_stopped_worker_is_killed_and_replaced(probe):
    with polyarm.make_vec(counting, num_envs=2, step_timeout_s=0.5) as envs:
        look = probe(envs)
        envs.reset()
        os.kill(look.pid(1), signal.SIGSTOP)
        began = time.monotonic()
        _, rewards, _, truncated, info = envs.step(look.actions())
        assert time.monotonic() - began < 10
        assert truncated.tolist() == [False, True]
        assert rewards.tolist() == [1, 0]
        assert info["error"][1].kind == "hung"
        assert envs.step(look.actions())[-1]["steps"].tolist() == [1, 0]
        assert envs.step(look.actions())[-1]["steps"].tolist() == [1, 1]


@pytest.mark.parametrize("start", ["built", "fresh"])
def test_os_exit_in_a_step_is_a_death(probe, tmp_path, start):
    path = str(tmp_path / "once")
    with polyarm.make_vec(
        lambda: LeavingEnv(path, lambda: os._exit(0)), num_envs=1, start=start
    ) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        info = envs.step(look.actions())[-1]
        assert info["error"][0].kind == "died"
        assert "exit status 0" in info["error"][0].message
        envs.step(look.actions())
        assert envs.step(look.actions())[1][0] == 1


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_sys_exit_in_a_step_is_an_exception_like_any_other(probe, tmp_path, workers):
    path = str(tmp_path / "once")
    with polyarm.make_vec(
        [lambda: LeavingEnv(path, sys.exit), counting], num_envs=2, num_workers=workers
    ) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        info = envs.step(look.actions())[-1]
        assert info["error"][0].kind == "exception"
        assert info["error"][0].error_class == "SystemExit"
        assert info["error"][1] is None
        envs.step(look.actions())
        assert envs.step(look.actions())[1].tolist() == [1, 4]
