"""From an exit status and a board record to the error that a slot reports."""

from __future__ import annotations

import numpy as np
import pytest

from polyarm.contracts import EnvSpec
from polyarm.vector.board import Board, Doing, Phase, board_segment
from polyarm.vector.failures import from_death
from polyarm.vector.plans import SlotPlan
from polyarm.vector.workerstate import Stage, WorkerOptions, WorkerState

OPTIONS = WorkerOptions(
    mode="built",
    environment={},
    step_timeout_s=1,
    reset_timeout_s=2,
    build_timeout_s=3,
    max_restarts=3,
)


@pytest.mark.parametrize(
    ("stage", "published", "phase", "limit"),
    [
        (Stage.STARTING, Phase.IDLE, "build", "3 s"),
        (Stage.STARTING, Phase.BUILD, "build", "3 s"),
        (Stage.READY, Phase.IDLE, "idle", "1 s"),
        (Stage.READY, Phase.RESET, "reset", "2 s"),
        (Stage.READY, Phase.STEP, "step", "1 s"),
    ],
)
def test_a_hung_worker_is_reported_with_the_phase_and_limit_it_was_judged_by(
    stage, published, phase, limit
):
    board = Board(bytearray(board_segment(1, 1).nbytes + 8), 1, 1)
    board.workers[0, Doing.PHASE] = published
    worker = WorkerState(0, (0,), np.zeros(1, np.int64), stage=stage, hung=True)
    event = {"pid": 7, "status": -9, "reason": "", "stderr": ""}
    plans = [SlotPlan(0, "module:Suite", EnvSpec("toy", "count-3"))]
    error = from_death(worker, event, board, plans, OPTIONS)[0]
    assert (error.kind, error.phase) == ("hung", phase)
    assert limit in error.message
