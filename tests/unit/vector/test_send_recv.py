from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest

from polyarm import InvalidCall
from polyarm.testing import CountingEnv, CrashingEnv, SlowEnv

ONE = np.zeros((1, 2), np.float32)
ALL = np.zeros((4, 2), np.float32)


def by_slot(ready, values):
    return dict(zip(ready.slots.tolist(), np.asarray(values).tolist(), strict=True))


def test_what_was_sent_is_received_with_its_slots(make_everywhere):
    env = make_everywhere(CountingEnv)
    env.reset(seed=0)
    actions = np.array([[0.5, 0], [0.25, 0]], np.float32)
    env.send(actions, [3, 1])
    ready = env.recv(2)
    assert sorted(ready.slots) == [1, 3]
    states = by_slot(ready, ready.obs["state"])
    assert states == {3: [3, 1, 0.5, 0], 1: [1, 1, 0.25, 0]}
    assert ready.rewards.tolist() == [1, 1]
    assert not ready.terminated.any()
    assert ready.info["steps"].tolist() == [1, 1]
    assert ready.info["frame_valid"].tolist() == [True, True]
    assert by_slot(ready, ready.info["seed"]) == {3: 3, 1: 1}


def test_all_slots_of_a_worker_may_be_sent_in_any_order(make_any):
    env = make_any(CountingEnv, num_workers=2)
    env.reset(seed=0)
    actions = np.array([[0.5, 0], [0.25, 0], [0.75, 0]], np.float32)
    env.send(actions, [3, 1, 2])  # both slots of the second worker, the larger first
    ready = env.recv(3)
    states = by_slot(ready, ready.obs["state"])
    assert states == {3: [3, 1, 0.5, 0], 1: [1, 1, 0.25, 0], 2: [2, 1, 0.75, 0]}
    assert env.get_attr("step_number") == (0, 1, 1, 1)


def test_slots_come_in_the_order_they_became_ready_even_if_all_are_waited_for(make_any):
    env = make_any([partial(SlowEnv, step_s=s) for s in (0.5, 0)], num_envs=2, num_workers=2)
    env.reset(seed=0)
    env.step(ALL[:2])
    env.send(ALL[:2])
    assert env.recv(2).slots.tolist() == [1, 0]


def test_a_failure_in_a_longer_chunk_delivers_what_was_there_before_whoever_came_first(make_any):
    class LateEnv(CrashingEnv):
        """Fails when its neighbour has long answered."""

        def step(self, action):
            time.sleep(0.3)
            return super().step(action)

    tasks = [partial(CountingEnv, length=10), partial(LateEnv, at=2, length=10)]
    env = make_any(tasks, num_envs=2, num_workers=2, frames="every")
    env.reset(seed=5)
    obs, *_ = env.step(ALL[:2])
    last = obs["state"][1].tolist()
    env.send(np.zeros((2, 3, 2), np.float32))
    assert env.recv(1).slots.tolist() == [0]
    ready = env.recv(1)
    assert ready.info["error"][0].kind == "exception"
    assert ready.obs["state"][0, 0].tolist() == last


def test_the_first_ready_is_the_first_served(make_any):
    env = make_any([partial(SlowEnv, step_s=s, length=100) for s in (2, 0, 0, 0)], num_workers=4)
    env.reset(seed=0)
    env.send(ALL)
    steps = np.zeros(4, int)
    while steps[0] == 0 and (steps[1:] <= 10).any():
        ready = env.recv(1)
        steps[ready.slots] += 1
        env.send(ALL[: len(ready.slots)], ready.slots)
    assert steps[0] == 0


def test_a_second_send_to_a_busy_slot_is_refused(make):
    env = make(CountingEnv)
    env.reset(seed=0)
    env.send(ALL[:2], [0, 2])
    for call in (lambda: env.send(ALL[:2], [1, 2]), lambda: env.send_reset([2])):
        with pytest.raises(InvalidCall, match=r"slots \[2\] have not been received"):
            call()
    env.send(ONE, [1])
    assert sorted(env.recv(3).slots) == [0, 1, 2]
    assert env.get_attr("step_number") == (1, 1, 1, 0)


def test_lockstep_calls_with_sends_pending_are_refused(make):
    env = make(CountingEnv)
    env.reset(seed=0)
    env.send(ALL[:2], [1, 3])
    calls = [
        lambda: env.step(ALL),
        lambda: env.step_chunk(ALL[:, None]),
        env.reset,
        env.rewind,
        env.history,
        env.render,
        lambda: env.get_attr("length"),
        lambda: env.set_attr("length", 3),
    ]
    for call in calls:
        with pytest.raises(InvalidCall, match=r"sends pending.*\[1, 3\]"):
            call()
    env.recv(2)
    env.step(ALL)


def test_waiting_for_more_than_is_pending_is_refused_at_once(make):
    env = make(CountingEnv)
    env.reset(seed=0)
    with pytest.raises(InvalidCall, match="0 slots are pending"):
        env.recv()
    env.send(ALL[:2], [0, 1])
    with pytest.raises(InvalidCall, match=r"recv\(3\).*2 slots are pending"):
        env.recv(3, timeout_s=60)
    assert len(env.recv(2).slots) == 2
    assert env.recv(0).slots.tolist() == []


@pytest.mark.parametrize(
    "slots", [[], [1, 1], [-1], [4], [0, 4]], ids=["none", "twice", "below", "above", "one above"]
)
def test_slots_that_cannot_be_are_refused(make_any, slots):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    for call in (lambda: env.send(ALL[: len(slots)], slots), lambda: env.send_reset(slots)):
        with pytest.raises(InvalidCall, match="slots"):
            call()
    env.step(ALL)


def test_a_timeout_returns_what_there_is(make_any):
    env = make_any([partial(SlowEnv, step_s=s) for s in (2, 0)], num_envs=2, num_workers=2)
    env.reset(seed=0)
    env.send(ALL[:2])
    ready = env.recv(2, timeout_s=1)
    assert ready.slots.tolist() == [1]
    assert ready.obs["state"].shape == (1, 4)
    nothing = env.recv(1, timeout_s=0.01)
    assert nothing.slots.tolist() == []
    assert nothing.obs["pixels/front"].shape == (0, 8, 8, 3)
    assert nothing.rewards.shape == (0,)
    assert env.recv(1).slots.tolist() == [0]


def test_the_received_batch_lives_in_a_buffer_that_is_used_again(make_any):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    env.send(ALL)
    first = env.recv(4)
    env.send(ALL)
    second = env.recv(4)
    assert np.shares_memory(first.obs["state"], second.obs["state"])
    assert first.rewards.tolist() == [1] * 4


def test_slots_come_together_again_after_going_their_own_ways(make_everywhere):
    env = make_everywhere(partial(CountingEnv, length=100))
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    expected = np.zeros(4, int)
    for _ in range(12):
        for _ in range(rng.integers(0, 4)):
            slots = rng.permutation(4)[: rng.integers(1, 5)]
            env.send(ALL[: len(slots)], slots)
            expected[slots] += 1
            ready = env.recv(len(slots))
            assert sorted(ready.slots) == sorted(slots)
            assert ready.obs["state"][:, 1].tolist() == expected[ready.slots].tolist()
        obs, rewards, *_ = env.step(ALL)
        expected += 1
        assert obs["state"][:, 1].tolist() == expected.tolist()
        assert rewards.tolist() == expected.tolist()


def test_resetting_some_slots_keeps_what_the_others_last_showed(make):
    env = make(partial(CountingEnv, length=100))
    env.reset(seed=0)
    for slots in ([1], [1, 2], [1], [3]):
        env.send(ALL[: len(slots)], slots)
        env.recv(len(slots))
    obs, _ = env.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert obs["state"][:, :2].tolist() == [[1, 0], [1, 3], [2, 1], [3, 1]]


def test_a_reset_can_be_sent(make):
    env = make(partial(CountingEnv, length=100))
    env.send_reset(seed=40)
    assert sorted(env.recv(4).obs["state"][:, 0]) == [40, 41, 42, 43]
    env.step(ALL)
    env.send_reset([2], seed=70)
    env.send(ONE, [0])
    ready = env.recv(2)
    assert by_slot(ready, ready.obs["state"][:, :2]) == {2: [72, 0], 0: [40, 2]}
    assert by_slot(ready, ready.rewards) == {2: 0, 0: 2}
    assert by_slot(ready, ready.info["steps"]) == {2: 0, 0: 1}
    assert by_slot(ready, ready.info["frame_valid"]) == {2: True, 0: True}


@pytest.mark.parametrize("frames", ["last", "every"])
def test_a_reset_is_received_right_after_chunks_have_grown(make, frames):
    env = make(partial(CountingEnv, length=100), frames=frames)
    env.reset(seed=0)
    for _ in range(2):
        env.step(ALL)
    env.send(np.zeros((1, 6, 2), np.float32), [0])
    env.recv()
    env.send_reset([1], seed=50)
    ready = env.recv()
    assert ready.obs["state"].tolist() == [[51, 0, 0, 0]]
    assert ready.rewards.tolist() == [0]
    assert ready.info["frame_valid"].tolist() == [True]
    obs, info = env.reset(seed=60)
    assert info["frame_valid"].all()
    assert obs["state"][:, 0].tolist() == [60, 61, 62, 63]
    env.send(ONE, [3])
    ready = env.recv()
    assert ready.obs["state"][:, :2].tolist() == [[63, 1]]
    obs, *_ = env.step(ALL)
    assert obs["state"][:, :2].tolist() == [[60, 1], [61, 1], [62, 1], [63, 2]]


@pytest.mark.parametrize("frames", ["last", "every"])
def test_chunks_of_different_lengths_share_a_batch(make, frames):
    env = make(partial(CountingEnv, length=100), frames=frames)
    env.reset(seed=0)
    for _ in range(2):  # rows and rewards of longer chunks lie behind
        env.step_chunk(np.zeros((4, 5, 2), np.float32))
    env.send(np.zeros((1, 5, 2), np.float32), [0])
    env.send(np.zeros((1, 2, 2), np.float32), [1])
    env.send(ONE, [2])
    ready = env.recv(3)
    assert by_slot(ready, ready.info["steps"]) == {0: 5, 1: 2, 2: 1}
    assert by_slot(ready, ready.rewards) == {
        0: [11, 12, 13, 14, 15],
        1: [11, 12, 0, 0, 0],
        2: [11, 0, 0, 0, 0],
    }
    if frames == "every":
        valid = by_slot(ready, ready.info["frame_valid"].sum(axis=1))
        assert valid == {0: 5, 1: 2, 2: 1}
        steps = by_slot(ready, ready.obs["state"][..., 1])
        assert steps == {0: [11, 12, 13, 14, 15], 1: [11, 12, 0, 0, 0], 2: [11, 0, 0, 0, 0]}
    else:
        assert by_slot(ready, ready.obs["state"][:, 1]) == {0: 15, 1: 12, 2: 11}


def test_a_growing_chunk_leaves_pending_sends_alone(make):
    env = make(partial(CountingEnv, length=100), frames="every")
    env.reset(seed=0)
    env.send(np.full((1, 2), 0.5, np.float32), [0])
    env.send(np.full((1, 3, 2), 0.25, np.float32), [1])
    env.send(np.full((1, 9, 2), 0.125, np.float32), [2])
    ready = env.recv(3)
    last = {
        slot: ready.obs["state"][place, ready.info["steps"][place] - 1].tolist()
        for place, slot in enumerate(ready.slots.tolist())
    }
    assert last == {0: [0, 1, 0.5, 0.5], 1: [1, 3, 0.75, 0.75], 2: [2, 9, 1.125, 1.125]}


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_sends_go_on_through_ends_and_resets(make, autoreset):
    env = make(partial(CountingEnv, length=2), autoreset=autoreset)
    env.reset(seed=0)
    seen = {slot: [] for slot in range(4)}
    env.send(ALL)
    for _ in range(20):
        ready = env.recv(1)
        for place, slot in enumerate(ready.slots.tolist()):
            step = int(ready.obs["state"][place, 1])
            seen[slot].append((step, bool(ready.terminated[place])))
        env.send(ALL[: len(ready.slots)], ready.slots)
    env.recv(4)
    cycle = {"next_step": [(1, False), (2, True), (0, False)], "same_step": [(1, False), (0, True)]}
    for steps in seen.values():
        whole = cycle[autoreset] * 20
        assert steps == whole[: len(steps)]


@pytest.mark.parametrize("options", [{}, {"check_lifetimes": True}, {"frames": "every"}], ids=str)
def test_a_failed_slot_delivers_its_last_complete_observation(make, options):
    env = make(partial(CrashingEnv, at=4), **options)
    env.reset(seed=0)
    env.step(ALL)
    env.send(ONE, [0])  # slot 0 is now a row ahead of the others
    env.recv()
    env.send(np.zeros((1, 2, 2), np.float32), [0])
    ready = env.recv()
    assert ready.truncated.tolist() == [True]
    assert ready.info["error"][0].error_class == "RuntimeError"
    state = ready.obs["state"][0, 0] if "frames" in options else ready.obs["state"][0]
    assert state.tolist() == [0, 2, 0, 0]
    obs, rewards, _, truncated, info = env.step_chunk(np.zeros((4, 3, 2), np.float32))
    states = obs["state"][:, 0] if "frames" in options else obs["state"]
    assert states[1:].tolist() == [[slot, 1, 0, 0] for slot in (1, 2, 3)]
    assert truncated.tolist() == [False, True, True, True]
    assert not rewards.any()
    assert info["steps"].tolist() == [0] * 4
    assert info["_error"].tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    "slots",
    [[True, False, True, False], np.array([False, True]), [1.0, 2.0]],
    ids=["mask", "short mask", "floats"],
)
def test_slots_are_numbers_and_neither_masks_nor_floats(make_any, slots):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    calls = [lambda: env.send(ALL[: len(slots)], slots), lambda: env.send_reset(slots)]
    for call in calls:
        with pytest.raises(InvalidCall, match=r"needs the numbers of slots, found (bool|float64)"):
            call()
    with pytest.raises(InvalidCall, match=r"needs distinct slots, found \[\]"):
        env.send(ALL[:0], [])
    env.send(ALL[:2], np.array([1, 3], np.uint8))
    assert sorted(env.recv(2).slots) == [1, 3]
