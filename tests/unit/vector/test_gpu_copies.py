"""Copies to a GPU where there is none: the CPU takes its place, and streams put their work off.

What only CUDA can show (copies beside the host's work, pinned memory) is in
`tensor_checks.GPU_CHECKS`.
"""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from polyarm.testing import CountingEnv

torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")

import stand_in_cuda  # noqa: E402  both import torch
import tensor_checks  # noqa: E402

NO_ACTION = np.zeros((4, 2), np.float32)


@pytest.fixture
def cuda(monkeypatch):
    return stand_in_cuda.install(monkeypatch)


@pytest.mark.parametrize("check", tensor_checks.CHECKS, ids=lambda check: check.__name__)
def test_rows_and_slots_arrive_as_on_the_cpu(check, cuda):
    check("cpu")
    assert cuda.calls >= 1
    assert not cuda.pinned


def test_a_trainer_that_lags_behind_gets_what_was_observed(cuda):
    """Its stream has done nothing when rows, and what they were copied to, are due to be reused."""
    tensor_checks.check_a_busy_trainer_neither_tears_nor_delays("cpu")
    streams = [stream for stream in stand_in_cuda.Stream.made if stream.lazy]
    assert len(streams) == 3  # of the copies and the trainer's two
    assert all(stream.begun == stream.done > 0 for stream in streams)


def test_a_step_waits_for_the_copy_of_the_row_it_overwrites_and_for_no_other(cuda, make_any):
    tensors = make_any(CountingEnv).to_torch("cpu")
    reading = tensors._copies._reading
    tensors.reset(seed=0)
    row = int(tensors.envs.history()["row"])
    (first,) = set(reading[row])
    tensors.step(NO_ACTION)
    (second,) = set(reading[1 - row])
    assert (first.synchronized, second.synchronized) == (0, 0)
    tensors.envs.step(NO_ACTION)
    assert (first.synchronized, second.synchronized) == (1, 0)


def test_a_send_waits_for_the_copies_of_its_slots_alone(cuda, make_any):
    tensors = make_any(CountingEnv).to_torch("cpu")
    reading = tensors._copies._reading

    def turn(slot):
        tensors.send(NO_ACTION[:1], [slot])
        tensors.recv()
        return reading[tensors.envs._ring.slot_row[slot], slot]

    tensors.reset(seed=0)
    of_reset = reading[tensors.envs._ring.slot_row[0], 0]
    copies = [turn(0), turn(1)]
    assert [of_reset.synchronized, *[copy.synchronized for copy in copies]] == [0, 0, 0]
    turn(0)  # into the row that the reset was delivered from
    assert [of_reset.synchronized, *[copy.synchronized for copy in copies]] == [1, 0, 0]
    turn(0)  # into the row of its first turn
    assert [of_reset.synchronized, *[copy.synchronized for copy in copies]] == [1, 1, 0]


def test_the_rows_are_pinned_once_and_released_at_close(cuda, make_any):
    envs = make_any(CountingEnv)
    envs.to_torch("cpu")
    envs.to_torch("cpu", dtype="bfloat16")
    (nbytes,) = cuda.pinned.values()
    assert nbytes >= envs.history()["obs"]["pixels/front"].nbytes
    assert cuda.calls == 1
    envs.close()
    assert not cuda.pinned
    envs.close()


def test_what_nobody_closes_is_released_when_it_goes(cuda):
    from polyarm import make_vec

    envs = make_vec(CountingEnv, num_envs=2, num_workers=0)
    tensors = envs.to_torch("cpu")
    assert cuda.pinned
    del envs, tensors
    gc.collect()
    assert not cuda.pinned


def test_segments_that_are_appended_are_pinned_and_old_ones_released(cuda, make_any):
    envs = make_any(CountingEnv, frames="every")
    tensors = envs.to_torch("cpu")
    tensors.reset(seed=0)
    rows, first = sorted(cuda.pinned.items(), key=lambda item: item[1])[:2]
    tensors.step_chunk(np.zeros((4, 5, 2), np.float32))
    assert len(cuda.pinned) == 2
    assert rows[0] in cuda.pinned
    assert max(cuda.pinned.values()) >= 5 * 4 * 8 * 8 * 3 * 2
    assert max(cuda.pinned.values()) > first[1]
    assert cuda.calls == 3


def test_memory_that_cannot_be_pinned_is_copied_all_the_same_with_one_warning(cuda, make_any):
    cuda.refuses = True
    envs = make_any(CountingEnv, frames="every")
    with pytest.warns(RuntimeWarning, match=r"could not pin .*: out of memory\. .*pageable"):
        tensors = envs.to_torch("cpu")
    obs, _ = tensors.reset(seed=0)
    tensors.step_chunk(np.zeros((4, 5, 2), np.float32))  # a warning would be an error here
    assert obs["state"][:, 0].tolist() == [0, 1, 2, 3]


def test_a_forked_copy_of_the_process_leaves_cuda_alone(cuda, make_any):
    envs = make_any(CountingEnv)
    envs.to_torch("cpu")
    calls = []
    cuda.cudaHostUnregister = calls.append
    child = os.fork()
    if child == 0:
        envs.close()
        os._exit(len(calls))
    assert os.waitpid(child, 0)[1] == 0
    envs.close()
    assert len(calls) == 1
