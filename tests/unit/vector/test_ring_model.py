"""Any mix of calls beside a slow model that keeps copies: deliveries, views and history agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm import InvalidCall, make_vec
from polyarm.testing import CountingEnv

SLOTS, LENGTH = 3, 9

LENGTHS = st.one_of(st.none(), st.integers(1, 5))
SOME = st.sets(st.integers(0, SLOTS - 1), min_size=1).map(sorted)
CALLS = st.one_of(
    st.tuples(st.just("step"), LENGTHS),
    st.tuples(st.just("reset"), SOME),
    st.tuples(st.just("send"), SOME, LENGTHS),
    st.tuples(st.just("recv"), st.integers(0, SLOTS)),
    st.tuples(st.just("rewind")),
)
MIXES = st.lists(CALLS, min_size=4, max_size=30)
ENVS = st.fixed_dictionaries(
    {
        "ring": st.integers(2, 6),
        "frames": st.sampled_from(["last", "every"]),
        "check_lifetimes": st.booleans(),
    }
)


@dataclass
class Told:
    """What a slot delivers for one command.

    Attributes:
        numbers: Of the steps whose observations it shows.
        steps: How many of them it made.
        ended: Whether the episode ended with the last one.
    """

    numbers: list[int]
    steps: int = 0
    ended: bool = False

    def rewards(self):
        return self.numbers[: self.steps]


@dataclass
class View:
    """An observation as delivered, a copy, and how old it is: in sends to each slot.

    Attributes:
        checked: Whether a row is known to be spoiled before it is used again.
    """

    array: np.ndarray
    kept: np.ndarray
    age: np.ndarray = field(default_factory=lambda: np.zeros(SLOTS, int))
    checked: bool = True


class Model:
    """Makes the same calls of an env and of lists, and compares.

    Args:
        env: A vector env of three `CountingEnv`.
        ring: How long a view lives.
        frames: As for `make_vec`.
        check_lifetimes: As for `make_vec`.
    """

    def __init__(self, env, *, ring, frames, check_lifetimes):
        self.env, self.ring, self.every = env, ring, frames == "every"
        self.checked = check_lifetimes
        self.told = [[] for _ in range(SLOTS)]
        self.views, self.pending = [], {}
        self.longest, self.in_order = 1, True
        self.reset(range(SLOTS))

    # What is called.

    def step(self, length):
        self.recv(SLOTS)
        rows = [self.command(slot, length) for slot in range(SLOTS)]
        self.together()
        actions = np.zeros((SLOTS, length or 1, 2), np.float32)
        if length is None:
            obs, rewards, terminated, _, info = self.env.step(actions[:, 0])
        else:
            obs, rewards, terminated, _, info = self.env.step_chunk(actions)
        self.compare(rows, length, obs, rewards)
        assert terminated.tolist() == [row.ended for row in rows]
        assert info["steps"].tolist() == [row.steps for row in rows]
        self.views.append(View(obs["state"], obs["state"].copy()))

    def reset(self, slots):
        self.recv(SLOTS)
        rows = [
            Told([0]) if slot in slots else Told(self.told[slot][-1].numbers[-1:])
            for slot in range(SLOTS)
        ]
        self.ended = [slot not in slots and self.ended[slot] for slot in range(SLOTS)]
        for slot, row in enumerate(rows):
            self.note(slot, row)
        self.together()
        mask = np.isin(np.arange(SLOTS), list(slots))
        obs, _ = self.env.reset(seed=0, options={"reset_mask": mask})
        self.compare(rows, None, obs)
        self.views.append(View(obs["state"], obs["state"].copy()))

    def send(self, slots, length):
        idle = [slot for slot in slots if slot not in self.pending]
        if idle:
            for slot in idle:
                self.pending[slot] = self.command(slot, length), length
            actions = np.zeros((len(idle), length or 1, 2), np.float32)
            self.env.send(actions[:, 0] if length is None else actions, idle)

    def recv(self, least):
        ready = self.env.recv(min(least, len(self.pending)))
        answers = [self.pending.pop(slot) for slot in ready.slots.tolist()]
        lengths = [length for _, length in answers if length is not None]
        rows = [row for row, _ in answers]
        self.compare(rows, max(lengths, default=None), ready.obs, ready.rewards)

    def rewind(self):
        self.recv(SLOTS)
        self.env.rewind()
        self.told = [rows[-1:] for rows in self.told]
        self.in_order = True
        del self.views[:-1]
        for view in self.views:  # of slots whose newest observation it is, until their next send
            view.age[:] = np.where(view.age == 0, self.ring - 1, self.ring)
            view.checked = False

    # What is to come of it.

    def command(self, slot, length):
        before = self.told[slot][-1].numbers[-1]
        made = 0 if self.ended[slot] else min(length or 1, LENGTH - before)
        row = Told(list(range(before + 1, before + made + 1)) or [0], made, before + made == LENGTH)
        row.ended = self.ended[slot] = row.ended and made > 0
        self.longest = max(self.longest, length or 1)
        self.note(slot, row)
        return row

    def note(self, slot, row):
        self.told[slot].append(row)
        for view in self.views:
            view.age[slot] += 1

    def together(self):
        """A lockstep call: rows of slots that were sent more often than others are used again."""
        self.in_order = self.in_order and self.one_row(before=1)

    def one_row(self, before=0):
        rows = self.ring + self.checked
        return len({(len(told) - before) % rows for told in self.told}) == 1

    # What has come of it.

    def compare(self, rows, length, obs, rewards=None):
        for place, row in enumerate(rows):
            self.compare_obs(obs["state"][place, ..., 1], row, length)
            if rewards is not None:
                padded = row.rewards() + [0] * ((length or 1) - row.steps)
                assert np.ravel(rewards[place]).tolist() == padded

    def compare_obs(self, found, row, length):
        if self.every and length is not None:
            assert found.tolist() == row.numbers + [0] * (length - len(row.numbers))
        else:
            assert found == row.numbers[-1]

    def compare_views(self):
        for view in self.views:
            alive = view.age < self.ring
            np.testing.assert_array_equal(view.array[alive], view.kept[alive])
            for slot in np.flatnonzero(view.age == self.ring) if self.checked else ():
                spoiled = np.isnan(view.array[slot]).all() and view.array[slot].size
                same = np.array_equal(view.array[slot], view.kept[slot])
                assert spoiled or same or not view.checked

    def compare_history(self):
        if self.pending or not self.in_order or not self.one_row():
            with np.testing.assert_raises(InvalidCall):
                self.env.history()
            return
        history, rows = self.env.history(), self.ring + self.checked
        length = self.longest if self.every else None
        for slot, told in enumerate(self.told):
            for age in range(rows):
                at = (history["row"] - age) % rows, slot
                row = told[-1 - age] if age < len(told) else Told([])
                assert history["steps"][at] == row.steps
                assert history["terminated"][at] == row.ended
                assert not history["truncated"][at]
                padded = row.rewards() + [0] * (self.longest - row.steps)
                assert np.ravel(history["rewards"][at]).tolist() == padded
                if row.numbers and age < self.ring:  # the spare row of checked lifetimes is spoiled
                    self.compare_obs(history["obs"]["state"][at][..., 1], row, length)


def check(num_workers, how, mix):
    task = partial(CountingEnv, length=LENGTH, cameras=())
    with make_vec(task, num_envs=SLOTS, num_workers=num_workers, **how) as env:
        model = Model(env, **how)
        for name, *arguments in mix:
            getattr(model, name)(*arguments)
            model.compare_views()
            model.compare_history()


@settings(max_examples=150, deadline=None)
@given(ENVS, MIXES)
def test_any_mix_of_calls_in_process(how, mix):
    check(0, how, mix)


@settings(max_examples=4, deadline=None)
@given(ENVS, MIXES)
def test_any_mix_of_calls_in_workers(how, mix):
    check(2, how, mix)
