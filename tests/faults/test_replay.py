"""What a restarted or switched env remembers: attributes set on it, and its new task."""

from __future__ import annotations

import os
import select
import signal
import sys

import cloudpickle
import numpy as np
import pytest

import polyarm
from polyarm.errors import BuildError, InvalidCall, UnknownName
from polyarm.testing import CountingEnv, CrashingEnv
from polyarm.vector.workerstate import Stage

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def counting():
    return CountingEnv(length=10)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("how", ["exception", "kill"])
def test_attributes_are_set_again_on_a_restarted_env(probe, tmp_path, workers, how):
    if how == "kill" and workers == 0:
        pytest.skip("the in-process engine has no worker to kill: run with workers")
    once = str(tmp_path / "once")
    at = 3 if how == "exception" else 100
    tasks = [lambda: CrashingEnv(at=at, only_first=once), counting]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset()
        envs.set_attr("length", [7, 8])
        envs.set_attr("colour", "green")
        for _ in range(2):
            envs.step(look.actions())
        if how == "kill":
            os.kill(look.pid(0), signal.SIGKILL)
        info = envs.step(look.actions())[-1]
        assert info["error"][0] is not None
        assert envs.get_attr("length") == (7, 8)
        assert envs.get_attr("colour") == ("green", "green")


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_a_slot_can_be_given_another_task(probe, workers, autoreset):
    with polyarm.make_vec(
        "toy/count-3", num_envs=3, num_workers=workers, autoreset=autoreset
    ) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        envs.step(look.actions())
        before = envs.worker_pids
        envs.switch_task([1], "toy/count-10")
        while len(envs.worker_pids) < workers:  # it may have answered before its pid has come
            look.engine._serve(0.01)
        replaced = [old != new for old, new in zip(before, envs.worker_pids, strict=True)]
        assert replaced == [workers == 3 and worker == 1 for worker in range(workers)]
        assert envs.tasks == ("toy/count-3", "toy/count-10", "toy/count-3")
        assert [each["task"] for each in envs.provenance] == list(envs.tasks)
        assert envs.get_attr("length") == (3, 10, 3)
        mask = np.array([False, True, False])
        obs, _ = envs.reset(options={"reset_mask": mask})
        assert obs["state"][:, 1].tolist() == [1, 0, 1]
        _, rewards, *_ = envs.step(look.actions())
        assert rewards.tolist() == [2, 1, 2]
        if autoreset == "next_step":
            ends = []
            for number in range(12):
                _, _, terminated, _, _ = envs.step(look.actions())
                ends += [number] * bool(terminated[1])
            assert ends == [8]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_switch_counts_for_the_restarted_env_as_well(probe, workers):
    with polyarm.make_vec("toy/count-3", num_envs=3, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        envs.switch_task([0, 1], "toy/count-10")
        os.kill(look.pid(1), signal.SIGKILL)
        look.step_until(lambda result: "error" in result[-1], steps=2)
        assert envs.get_attr("length") == (10, 10, 3)


@pytest.mark.parametrize("start", ["built", "imports"])
def test_a_slot_that_is_being_restarted_can_switch_in_the_background(probe, start):
    """It may be ready, and the trainer not know, when its slot is to hold another env."""
    with polyarm.make_vec("toy/count-10", num_envs=2, start=start) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        os.kill(look.pid(0), signal.SIGKILL)
        assert envs.step(look.actions())[-1]["error"][0].kind == "died"
        worker, announced = look.engine._workers[0], look.engine._completions.read_fd
        while worker.stage is not Stage.STARTING:
            look.engine._serve(0.005)
        assert select.select([announced], [], [], 20)[0]
        envs.send_reset([0], task="toy/count-50")
        assert envs.recv(1, timeout_s=20).slots.tolist() == [0]
        assert envs.get_attr("length") == (50, 10)
        assert envs.step(look.actions())[1].tolist() == [1, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_switch_in_the_background_refuses_a_wrong_episode_before_it_begins(probe, workers):
    with polyarm.make_vec("toy/count-10", num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        with pytest.raises(InvalidCall, match=r"episode index must be from 0 .*found -1"):
            envs.send_reset([0], task="toy/count-50", options={"episodes": [-1]})
        with pytest.raises(InvalidCall, match="seed of a suite must be"):
            envs.send_reset([0], task="toy/count-50", seed=-1)
        assert envs.tasks == ("toy/count-10", "toy/count-10")
        assert envs.step(look.actions())[1].tolist() == [1, 1]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_unknown_task_changes_nothing(probe, workers):
    with polyarm.make_vec("toy/count-3", num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        with pytest.raises(UnknownName):
            envs.switch_task([0], "toy/count-11")
        assert envs.tasks == ("toy/count-3", "toy/count-3")
        assert envs.step(look.actions())[1].tolist() == [1, 1]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_switch_that_fails_to_build_says_so_and_can_be_mended(probe, workers):
    def broken():
        raise OSError("no such simulator")

    with polyarm.make_vec(counting, num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        with pytest.raises(BuildError, match="no such simulator"):
            envs.switch_task([0], broken)
        envs.switch_task([0], lambda: CountingEnv(length=5))
        assert envs.get_attr("length") == (5, 10)
        info = envs.step(look.actions())[-1]
        assert info["steps"].tolist() == [0, 1]
        assert envs.step(look.actions())[1].tolist() == [1, 2]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_switch_to_other_spaces_is_refused_at_once(probe, workers):
    with polyarm.make_vec(counting, num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        with pytest.raises(BuildError, match="space"):
            envs.switch_task([0], "gym/CartPole-v1")
        envs.switch_task([0], counting)
        envs.step(look.actions())
        assert envs.step(look.actions())[1].tolist() == [1, 2]


def test_a_switch_of_a_dead_worker_works(probe):
    with polyarm.make_vec("toy/count-3", num_envs=2) as envs:
        look = probe(envs)
        envs.reset(seed=0)
        os.kill(look.pid(0), signal.SIGKILL)
        envs.switch_task([0], "toy/count-10")
        info = envs.step(look.actions())[-1]
        assert info["steps"].tolist() == [0, 1]
        assert envs.get_attr("length") == (10, 3)
