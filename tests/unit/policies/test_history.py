from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from polyarm.contracts import EpisodeKey
from polyarm.errors import InvalidCall
from polyarm.policies import FunctionPolicy, History, ZeroPolicy
from polyarm.testing import CountingEnv
from polyarm.testing.policies import CountingPolicy, check_policy

BOX = spaces.Box(-1, 1, (2,))


class Looking(CountingPolicy):
    """Remembers the observations it was handed."""

    def act(self, batch):
        self.obs = batch.obs
        return super().act(batch)


def states(*numbers):
    return {"state": np.array([[number] for number in numbers], np.float32)}


_step = itertools.count()


def look(history, policy, batch):
    """What the policy sees; every look is another step, unless it is the very same batch."""
    history.act(replace(batch, steps=batch.steps + next(_step)))
    return policy.obs["state"][..., 0].tolist()


def test_what_is_asked_again_is_not_seen_twice(make_batch):
    policy = Looking()
    history = History(policy, 3)
    for step, number in enumerate((1, 2, 3, 3, 3, 4)):
        batch = make_batch([0], states(number), steps=[min(step, 2) if number < 4 else 3])
        history.act(batch)
    assert policy.obs["state"][..., 0].tolist() == [[2, 3, 4]]


def test_the_first_observation_fills_the_history_and_newer_ones_push_it_out(make_batch):
    policy = Looking()
    history = History(policy, 3)
    history.begin([EpisodeKey("toy", "count", 0)])
    seen = [look(history, policy, make_batch([0], states(number))) for number in range(1, 6)]
    assert seen == [[[1, 1, 1]], [[1, 1, 2]], [[1, 2, 3]], [[2, 3, 4]], [[3, 4, 5]]]


def test_every_episode_has_a_history_of_its_own(make_batch):
    policy = Looking()
    history = History(policy, 2)
    assert look(history, policy, make_batch([0, 1], states(1, 10))) == [[1, 1], [10, 10]]
    assert look(history, policy, make_batch([1], states(11))) == [[10, 11]]
    assert look(history, policy, make_batch([2, 1, 0], states(20, 12, 2))) == [
        [20, 20],
        [11, 12],
        [1, 2],
    ]


@pytest.mark.parametrize("forget", ["begin", "end"])
def test_an_episode_that_begins_or_ends_is_forgotten_and_no_other(make_batch, forget):
    policy = Looking()
    history = History(policy, 2)
    look(history, policy, make_batch([0, 1], states(1, 10)))
    getattr(history, forget)([EpisodeKey("toy", "count", 0)])
    assert look(history, policy, make_batch([0, 1], states(5, 11))) == [[5, 5], [10, 11]]


def test_begin_and_end_reach_the_policy():
    policy = CountingPolicy()
    keys = [EpisodeKey("toy", "count", 0)]
    History(policy, 2).begin(keys)
    History(policy, 2).end(keys)
    assert (policy.begun, policy.ended) == (keys, keys)
    History(ZeroPolicy(BOX), 2).end(keys)


def test_observations_that_are_overwritten_stay_in_the_history(make_batch):
    policy = Looking()
    history = History(policy, 2)
    obs = states(1)
    look(history, policy, make_batch([0], obs))
    obs["state"][:] = 2
    assert look(history, policy, make_batch([0], obs)) == [[1, 2]]


def test_nested_observations_and_plain_arrays_are_stacked_leaf_by_leaf(make_batch):
    policy = Looking()
    obs = {"pixels": {"front": np.zeros((2, 4, 4, 3), np.uint8)}, "state": np.zeros((2, 5))}
    History(policy, 3).act(make_batch([0, 1], obs))
    assert policy.obs["pixels"]["front"].shape == (2, 3, 4, 4, 3)
    assert policy.obs["pixels"]["front"].dtype == np.uint8
    assert policy.obs["state"].shape == (2, 3, 5)
    History(policy, 3).act(make_batch([0, 1], np.zeros((2, 7))))
    assert policy.obs.shape == (2, 3, 7)


def test_a_history_keeps_the_contract_of_policies():
    def act(obs):
        changes = obs["state"][:, 1:, :2] - obs["state"][:, :-1, :2]
        return changes.astype(np.float32)

    policy = History(FunctionPolicy(act, row_independent=True), 4)
    check_policy(policy, BOX, CountingEnv().observation_space)


def test_a_history_is_what_its_policy_is():
    inner = ZeroPolicy(BOX)
    history = History(inner, 2)
    assert history.row_independent
    assert not history.needs_frames
    assert not History(FunctionPolicy(lambda batch: batch), 2).row_independent
    assert history.fingerprint == {
        "policy": "history",
        "n_obs_steps": 2,
        "of": {"policy": "zero", "chunk": 1},
    }


def test_a_history_of_nothing_is_refused():
    with pytest.raises(InvalidCall, match="at least 1"):
        History(ZeroPolicy(BOX), 0)
