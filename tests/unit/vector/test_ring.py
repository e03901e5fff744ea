"""The rows of the ring: how long views of them live, and what the whole ring says."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest

from polyarm import InvalidCall
from polyarm.testing import CountingEnv, CrashingEnv

LONG = partial(CountingEnv, length=100)
NOTHING = np.zeros((4, 2), np.float32)


def chunk(length, slots=4):
    return np.zeros((slots, length, 2), np.float32)


def half_writing(error=RuntimeError, **options):
    """An env that spoils the arrays it is to write into before it fails."""

    class HalfWritingEnv(CrashingEnv):
        buffers = None

        def bind(self, buffers):
            self.buffers = buffers

        def fail(self):
            self.buffers["state"][...] = -1
            raise error

    return partial(HalfWritingEnv, length=100, **options)


# How long views live.


@pytest.mark.parametrize(("ring", "check_lifetimes"), [(2, True), (3, False), (6, True)])
def test_sends_between_steps_take_no_view_before_its_time(make, ring, check_lifetimes):
    env = make(LONG, ring=ring, check_lifetimes=check_lifetimes)
    for ahead in range(1, ring + 2):
        obs, _ = env.reset(seed=0)
        kept, sent = copy.deepcopy(obs), np.zeros(4, int)
        for turn in range(ahead + ring):
            slots = [0] if turn < ahead else [0, 1, 2, 3]
            if turn < ahead:
                env.send(NOTHING[:1], slots)
                env.recv()
            else:
                env.step(NOTHING)
            sent[slots] += 1
            for key, value in kept.items():
                np.testing.assert_array_equal(obs[key][sent < ring], value[sent < ring])


# What becomes of last observations.


@pytest.mark.parametrize("frames", ["last", "every"])
@pytest.mark.parametrize(("ring", "check_lifetimes"), [(2, False), (2, True), (3, False)])
def test_a_slot_that_was_ahead_and_fails_delivers_its_last_complete_observation(
    make, ring, check_lifetimes, frames
):
    tasks = [half_writing(at=at) for at in (3, 4, 5, 6)]
    env = make(tasks, ring=ring, check_lifetimes=check_lifetimes, frames=frames)
    env.reset(seed=5)
    env.step(NOTHING)
    for slot in range(4):
        for _ in range(slot + 1):
            env.send(NOTHING[:1], [slot])
            env.recv(1)
    obs, *_, info = env.step(NOTHING)
    assert info["_error"].all()
    assert obs["state"][:, :2].tolist() == [[5, 2], [6, 3], [7, 4], [8, 5]]


def test_a_slot_that_was_ahead_keeps_its_observation_if_a_step_is_cut_short(make_any):
    env = make_any([LONG, half_writing(KeyboardInterrupt, at=3)], num_envs=2, ring=3)
    env.reset(seed=5)
    obs, *_ = env.step(NOTHING[:2])
    kept = copy.deepcopy(obs)
    env.send(NOTHING[:1], [1])
    env.recv()
    with pytest.raises(KeyboardInterrupt):
        env.step(NOTHING[:2])
    env.recv(1)  # the slot that got the command
    assert env.observe([0, 1])["state"][:, :2].tolist() == [[5, 2], [6, 2]]
    np.testing.assert_array_equal(obs["state"], kept["state"])


@pytest.mark.parametrize("last", ["step", "rewind"])
def test_an_observation_that_was_kept_aside_is_dropped_by_the_second_call(make_any, last):
    env = make_any(LONG, ring=2)
    env.reset(seed=0)
    for _ in range(3):
        env.send(NOTHING[:1], [1])
        env.recv()
        env.step(NOTHING)
        assert list(env._ring._aside) == [1]
        env.step(NOTHING) if last == "step" else env.rewind()
        assert not env._ring._aside
    env.step(NOTHING)
    assert env._ring._aligned


@pytest.mark.parametrize("frames", ["last", "every"])
def test_rewinding_leaves_no_view_but_the_newest(make, frames):
    env = make(LONG, ring=3, check_lifetimes=True, frames=frames)
    env.reset(seed=0)
    env.step_chunk(chunk(2))
    env.rewind()
    views = [env.step_chunk(chunk(2))[0]["state"] for _ in range(3)]
    kept = views[2].copy()
    env.rewind()
    newest = env.history()["obs"]["state"][0]
    assert [np.isnan(view).all() for view in views] == [True, True, False]
    np.testing.assert_array_equal(views[2], kept)
    np.testing.assert_array_equal(newest, kept)


def test_a_rewind_that_is_cut_short_leaves_last_observations(make, monkeypatch):
    env = make(half_writing(at=1))
    env.reset(seed=5)
    carry = env._ring.copy

    def interrupted(slot, *rows):
        if slot == 2:
            raise KeyboardInterrupt
        carry(slot, *rows)

    monkeypatch.setattr(env._ring, "copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.rewind()
    obs, *_, info = env.step(NOTHING)
    assert info["_error"].all()
    assert obs["state"][:, :2].tolist() == [[5, 0], [6, 0], [7, 0], [8, 0]]


# What the whole ring says.


def test_the_history_is_refused_once_slots_have_gone_their_own_ways_until_it_begins_anew(make):
    env = make(LONG, ring=4)
    env.reset(seed=0)
    env.send(NOTHING[:1], [2])
    env.recv()
    with pytest.raises(InvalidCall, match=r"rewind\(\)"):
        env.history()
    env.step(NOTHING)
    with pytest.raises(InvalidCall, match=r"rewind\(\)"):
        env.history()
    env.rewind()
    env.step(NOTHING)
    history = env.history()
    assert history["row"] == 1
    assert history["obs"]["state"][:2, :, 1].tolist() == [[1, 1, 2, 1], [2, 2, 3, 2]]


def test_sends_to_all_slots_fill_the_history_as_steps_do(make):
    env = make(LONG, ring=4)
    env.reset(seed=0)
    env.rewind()
    env.send(NOTHING[:2], [0, 2])
    env.send(NOTHING[:2], [3, 1])
    env.recv(4)
    env.step(NOTHING)
    history = env.history()
    assert history["rewards"][:, 0].tolist() == [0, 1, 2, 0]
    assert history["obs"]["state"][:3, :, 1].tolist() == [[0] * 4, [1] * 4, [2] * 4]


@pytest.mark.parametrize("frames", ["last", "every"])
def test_a_slot_that_is_not_reset_has_made_no_step_in_that_row(make, frames):
    env = make(partial(CountingEnv, length=5), ring=4, frames=frames)
    env.reset(seed=0)
    env.rewind()
    env.step_chunk(chunk(2))
    env.step_chunk(chunk(3))
    _, info = env.reset(options={"reset_mask": np.array([True, False, False, True])})
    assert info["frame_valid"].all()
    history = env.history()
    assert history["steps"][:, 1].tolist() == [0, 2, 3, 0]
    assert history["terminated"][:, 1].tolist() == [False, False, True, False]
    assert history["rewards"][:, 1].tolist() == [[0, 0, 0], [1, 2, 0], [3, 4, 5], [0, 0, 0]]
    shown = history["obs"]["state"][:, 1, ..., 1].tolist()
    assert shown == (
        [[0, 0, 0], [1, 2, 0], [3, 4, 5], [5, 0, 0]] if frames == "every" else [0, 2, 5, 5]
    )
    assert env.step(NOTHING)[-1]["steps"].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("frames", ["last", "every"])
def test_rows_that_held_longer_chunks_say_nothing_of_them(make, frames):
    env = make(LONG, ring=2, frames=frames)
    env.reset(seed=0)
    for length in (3, 3, 4, 1, 2):
        env.step_chunk(chunk(length))
    history = env.history()
    row = history["row"]
    assert history["rewards"][[row - 1, row], 0].tolist() == [[11, 0, 0, 0], [12, 13, 0, 0]]
    assert history["rewards"].flags.c_contiguous
    if frames == "every":
        shown = history["obs"]["state"][[row - 1, row], 0, :, 1]
        assert shown.tolist() == [[11, 0, 0, 0], [12, 13, 0, 0]]


def test_rows_not_written_since_rewinding_say_that_no_step_was_made(make_any):
    env = make_any(partial(CountingEnv, length=3), ring=4)
    env.reset(seed=0)
    for _ in range(3):
        env.step(NOTHING)
    env.rewind()
    history = env.history()
    assert history["rewards"][:, 0].tolist() == [3, 0, 0, 0]
    assert history["steps"][:, 0].tolist() == [1, 0, 0, 0]
    assert history["terminated"][:, 0].tolist() == [True, False, False, False]


@pytest.mark.parametrize("frames", ["last", "every"])
def test_longer_chunks_leave_the_history_as_it_was(make, frames):
    env = make(LONG, ring=6, frames=frames)
    env.reset(seed=0)
    env.rewind()
    for _ in range(2):
        env.step(NOTHING)
    env.step_chunk(chunk(3))
    history = env.history()
    made = [[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 4, 5]]
    for slot in range(4):
        assert history["rewards"][:4, slot].tolist() == made
        shown = history["obs"]["state"][:4, slot, ..., 1].tolist()
        assert shown == (made if frames == "every" else [0, 1, 2, 5])


@pytest.mark.parametrize("frames", ["last", "every"])
def test_what_was_under_way_when_chunks_grew_is_in_the_history(make, frames):
    env = make(LONG, ring=4, frames=frames)
    env.reset(seed=0)
    env.rewind()
    env.send(NOTHING[:2], [0, 1])
    env.send(chunk(3, 2), [2, 3])
    env.recv(4)
    history = env.history()
    made = [[1, 0, 0], [1, 0, 0], [1, 2, 3], [1, 2, 3]]
    assert history["rewards"][1].tolist() == made
    if frames == "every":
        assert history["obs"]["state"][1, ..., 1].tolist() == made
