from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest

from polyarm import EnvCallError, WorkerDied
from polyarm.contracts import EnvSpec
from polyarm.testing import CountingEnv, CrashingEnv
from polyarm.vector.board import Board, board_segment
from polyarm.vector.plans import SlotPlan
from polyarm.vector.settings import SlotSettings
from polyarm.vector.supervisor import Supervisor
from polyarm.vector.workerstate import Stage, WorkerOptions, WorkerState

NUM_ENVS = 8
ALL = np.zeros((NUM_ENVS, 2), np.float32)


def step_often(env):
    for _ in range(10):
        env.step(ALL[: env.num_envs])


@pytest.mark.timeout(15)
@pytest.mark.parametrize("num_workers", [0, 2, 8])
def test_many_envs_that_fail_in_the_same_step_are_all_replaced(make_any, num_workers):
    env = make_any(
        partial(CrashingEnv, at=2), num_envs=NUM_ENVS, num_workers=num_workers, max_restarts=100
    )
    env.reset(seed=0)
    for _ in range(5):
        obs, _, _, truncated, _ = env.step(ALL)
        assert not truncated.any()
        obs, rewards, _, truncated, info = env.step(ALL)
        assert truncated.all()
        assert not rewards.any()
        assert info["_error"].all()
        assert obs["state"][:, 1].tolist() == [1] * NUM_ENVS
        obs, _, _, truncated, info = env.step(ALL)
        assert not truncated.any()
        assert obs["state"][:, 1].tolist() == [0] * NUM_ENVS


@pytest.mark.timeout(15)
def test_events_that_somebody_else_has_taken_are_not_waited_for(make_any):
    """Fetching a worker's last stderr lines may empty the channel that a poll found readable."""
    env = make_any(CrashingEnv, num_workers=2)
    env.reset(seed=0)
    env._engine._supervisor.receive()  # returns although there is nothing to receive
    env.reset(seed=0)


@pytest.mark.timeout(15)
def test_a_slot_that_keeps_failing_is_given_up_and_named(make_everywhere):
    env = make_everywhere(partial(CrashingEnv, at=1), max_restarts=2)
    env.reset(seed=0)
    with pytest.raises(WorkerDied, match=r"max_restarts=2\): slot \d \(callable/.*phase step"):
        step_often(env)
    with pytest.raises(WorkerDied):
        env.step(ALL[:4])


def test_a_finished_episode_forgives_earlier_failures(make_everywhere, tmp_path):
    env = make_everywhere(
        partial(CrashingEnv, at=1, only_first=tmp_path / "once", length=2), max_restarts=1
    )
    env.reset(seed=0)
    failures = 0
    for episode in range(3):
        (tmp_path / "once").unlink(missing_ok=True)
        for _ in range(6):
            *_, info = env.step(ALL[:4])
            failures += int(info.get("_error", np.zeros(4)).sum())
        assert failures == episode + 1


@pytest.fixture(params=[Stage.STARTING, Stage.ENDING])
def waiting(request):
    """A supervisor of one worker that has no process yet."""
    board = Board(bytearray(board_segment(1, 1).nbytes + 8), 1, 1)
    worker = WorkerState(0, (0,), np.zeros(1, np.int64), stage=request.param)
    return Supervisor(
        None,
        board,
        [worker],
        [SlotPlan(0, "module:Suite", EnvSpec("toy", "count-3"))],
        SlotSettings(1, 1, 2, "last", "next_step", "auto"),
        WorkerOptions("imports", {}, 1.0, 1.0, build_timeout_s=10.0, max_restarts=3),
        owed=lambda worker: [],
        answer=lambda slot, error: None,
        launched=lambda worker: None,
    )


def test_a_start_of_which_nothing_is_heard_for_too_long_is_given_up(waiting):
    for now in range(1000, 1090, 2):
        waiting.check_deadlines(float(now), set())
        assert waiting.fatal is None
    for now in range(1090, 1100, 2):
        waiting.check_deadlines(float(now), set())
    assert "has not been started" in str(waiting.fatal)


def test_time_in_which_the_trainer_did_something_else_is_no_wait_for_a_start(waiting):
    waiting.check_deadlines(1000.0, set())
    waiting.check_deadlines(9000.0, set())
    assert waiting.fatal is None


def test_a_worker_that_not_even_sigkill_ends_is_left_behind_with_a_warning(waiting):
    (worker,) = waiting._workers
    worker.pid, worker.kill_at, worker.give_up_at = 4711, 1000.0, 1002.0
    waiting.check_deadlines(1001.0, {0})
    assert waiting.fatal is None
    with pytest.warns(ResourceWarning, match="pid 4711.* does not die of SIGKILL"):
        waiting.check_deadlines(1003.0, {0})
    found = "pid 4711, slots [0], toy/count-3, phase idle) cannot be killed, not even by SIGKILL"
    assert found in str(waiting.fatal)
    waiting.check_deadlines(1004.0, {0})  # said once


def test_an_env_that_leaves_wherever_it_is_asked_something_costs_its_slot_alone(make, tmp_path):
    left = tmp_path / "left"

    class LeavingEnv(CountingEnv):
        def __init__(self, *, leaves):
            super().__init__()
            self.leaves = leaves
            if leaves and left.exists():
                left.unlink()
                sys.exit("as it is rebuilt")

        def step(self, action):
            if self.leaves:
                left.touch()
            self.leave("as it steps")
            return super().step(action)

        def leave(self, words):
            if self.leaves:
                sys.exit(words)

        def close(self):
            self.leave("as it is closed")

    stays, leaves = (partial(LeavingEnv, leaves=each) for each in (False, True))
    env = make([stays, stays, stays, leaves], max_restarts=100)
    env.reset()
    with pytest.raises(EnvCallError, match="as it is called"):
        env.call("leave", "as it is called")
    for _ in range(3):
        error = env.step(ALL[:4])[-1]["error"]
        assert list(error[:3]) == [None] * 3
        assert (error[3].kind, error[3].error_class) == ("exception", "SystemExit")
        env.reset(options={"reset_mask": np.array([False, False, False, True])})
