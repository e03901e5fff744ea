"""Workers that outgrow their memory limit, and those that only share what another one holds."""

from __future__ import annotations

import sys
import time

import cloudpickle
import numpy as np

import polyarm
from polyarm.testing import CountingEnv, LeakingEnv, SlowEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def memory_error(result):
    info = result[-1]
    return info["error"][0] if "error" in info else None


def test_a_worker_that_outgrows_its_memory_is_replaced(probe, tmp_path):
    once = str(tmp_path / "once")

    def leaking():
        return LeakingEnv(mb_per_step=64, only_first=once, length=100000)

    tasks = [leaking, lambda: SlowEnv(step_s=0.05, length=100000)]
    with polyarm.make_vec(tasks, num_envs=2, memory_limit=400 << 20) as envs:
        look = probe(envs)
        envs.reset()

        error = look.step_until(memory_error, steps=60)
        assert error.kind == "memory"
        assert error.signal == "SIGKILL"
        assert "memory_limit" in error.message
        assert envs.step(look.actions())[-1]["steps"].tolist() == [0, 1]
        assert envs.step(look.actions())[-1]["steps"].tolist() == [1, 1]


class LargeEnv(CountingEnv):
    """Holds 200 MiB from its constructor on."""

    def __init__(self):
        super().__init__(length=100000)
        self.held = np.ones(200 << 20, np.uint8)

    def step(self, action):
        if action[0] > 0:
            self.held[:] = 2
        time.sleep(0.02)
        return super().step(action)


def test_memory_that_was_there_before_the_fork_is_not_a_workers_own_until_it_writes_there(probe):
    with polyarm.make_vec(LargeEnv, num_envs=3, start="built", memory_limit=150 << 20) as envs:
        look = probe(envs)
        envs.reset()
        others = look.pid(1), look.pid(2)
        for _ in range(60):  # several times as long as from one look at the memory to the next
            assert "error" not in envs.step(look.actions())[-1]
        actions = look.actions()
        actions[0] = 1  # that one writes
        envs.step(actions)
        assert look.step_until(memory_error, steps=300).kind == "memory"
        assert all(look.running(pid) for pid in others)
