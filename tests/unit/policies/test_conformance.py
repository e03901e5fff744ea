"""The kit finds every kind of policy out that breaks its promises."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from gymnasium import spaces

from polyarm.contracts import EpisodeKey, PolicyOutput
from polyarm.errors import PolicyError
from polyarm.rollout.chunking import as_chunks
from polyarm.testing import CountingEnv
from polyarm.testing.policies import (
    CountingPolicy,
    HangingPolicy,
    NanPolicy,
    RaisingPolicy,
    SleepyPolicy,
    WrongShapePolicy,
    check_policy,
)

BOX = spaces.Box(-1, 1, (2,))


class Scripted(CountingPolicy):
    """Returns what its function makes of zeros and the batch."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def act(self, batch):
        return self.function(super().act(batch), batch)


class Remembering(CountingPolicy):
    """Acts by how often an episode was decided on; ``forget`` is what begin() does."""

    def __init__(self, forget):
        super().__init__()
        self.forget = forget
        self.counts = {}

    def begin(self, episodes):
        self.forget(self.counts, episodes)

    def act(self, batch):
        actions = super().act(batch)
        for row, key in enumerate(batch.keys):
            self.counts[key] = self.counts.get(key, 0) + 1
            actions[row] += self.counts[key]
        return actions


def forget_these(counts, episodes):
    for key in episodes:
        counts.pop(key, None)


def test_a_policy_that_forgets_as_it_should_passes():
    check_policy(Remembering(forget_these), BOX)


def test_a_policy_that_forgets_nothing_is_found_out():
    with pytest.raises(AssertionError, match="begun again"):
        check_policy(Remembering(lambda counts, episodes: None), BOX)


def test_a_policy_that_forgets_other_episodes_is_found_out():
    with pytest.raises(AssertionError, match="while another episode began"):
        check_policy(Remembering(lambda counts, episodes: counts.clear()), BOX)


def test_noise_from_elsewhere_is_found_out():
    random = np.random.default_rng(0)
    with pytest.raises(AssertionError, match="noise must come from"):
        check_policy(Scripted(lambda zeros, _: zeros + random.random(zeros.shape)), BOX)


def test_rows_that_depend_on_the_batch_are_found_out():
    def by_size(zeros, batch):
        return zeros + 1e-7 * len(batch)

    def by_place(zeros, batch):
        return zeros + (np.arange(len(batch)) == len(batch) - 1)[:, None, None]

    for function in (by_size, by_place):
        with pytest.raises(AssertionError, match="in a batch of one"):
            check_policy(Scripted(function), BOX)
        check_policy(Scripted(function, row_independent=False), BOX)


def test_rows_that_depend_on_their_order_are_found_out():
    def by_order(zeros, batch):
        return zeros + any(
            first > second for first, second in zip(batch.keys[:-1], batch.keys[1:], strict=True)
        )

    keys = [EpisodeKey("toy", "count", index) for index in range(3)]
    with pytest.raises(AssertionError, match="of another order"):
        check_policy(Scripted(by_order), BOX, keys=keys)


def test_extras_are_compared_too():
    def by_size(zeros, batch):
        return PolicyOutput(zeros, {"value": np.full(len(batch), len(batch))})

    with pytest.raises(AssertionError, match="got other value"):
        check_policy(Scripted(by_size), BOX)


def test_a_policy_that_writes_into_its_observations_is_found_out():
    def scribble(zeros, batch):
        batch.obs["state"][:] = 0
        return zeros

    with pytest.raises(AssertionError, match="wrote into the observations"):
        check_policy(Scripted(scribble), BOX)


def test_a_policy_without_need_of_frames_gets_none():
    seen = set()

    def look(zeros, batch):
        seen.update(batch.obs)
        return zeros

    space = CountingEnv().observation_space
    check_policy(Scripted(look), BOX, space)
    assert seen == {"state"}
    check_policy(Scripted(look, needs_frames=True), BOX, space)
    assert seen == {"state", "pixels/front"}


@pytest.mark.parametrize(
    ("space", "function", "message"),
    [
        (BOX, lambda zeros, _: zeros[:1], "returned shape"),
        (BOX, lambda zeros, _: zeros[..., :1], "returned shape"),
        (BOX, lambda zeros, _: zeros[:, :0], "returned shape"),
        (BOX, lambda zeros, _: zeros + 1j, "complex"),
        (BOX, lambda zeros, _: zeros + np.inf, "returned inf in row 0"),
        (BOX, lambda zeros, _: PolicyOutput(zeros, {"value": np.zeros(9)}), "extras 'value'"),
        (BOX, lambda zeros, _: PolicyOutput(zeros, {"value": 1.0}), "extras 'value'"),
        (spaces.Discrete(2), lambda zeros, _: zeros[:, :, 0].astype(int) + 2, "outside of"),
        (spaces.MultiBinary(2), lambda zeros, _: zeros.astype(int) + 3, "outside of"),
    ],
)
def test_actions_and_extras_that_no_env_can_use_are_found_out(space, function, message):
    with pytest.raises(AssertionError, match=message):
        check_policy(Scripted(function), space)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"begin": None}, "no method begin"),
        ({"act": None}, "no method act"),
        ({"row_independent": "yes"}, "row_independent is 'yes'"),
        ({"needs_frames": 1}, "needs_frames is 1"),
        ({"expert_steps": 0}, "expert_steps is 0"),
    ],
)
def test_attributes_of_the_wrong_kind_are_found_out(attributes, message):
    with pytest.raises(AssertionError, match=message):
        check_policy(Scripted(lambda zeros, _: zeros, **attributes), BOX)


@pytest.mark.parametrize(
    ("fingerprint", "message"), [({"weights": np.zeros(2)}, "JSON"), (7, "int, expected a mapping")]
)
def test_a_fingerprint_that_cannot_be_written_is_found_out(fingerprint, message):
    class Marked(CountingPolicy):
        pass

    Marked.fingerprint = fingerprint
    with pytest.raises(AssertionError, match=message):
        check_policy(Marked(), BOX)


def test_one_episode_is_not_enough_to_check_with():
    with pytest.raises(AssertionError, match="two different episodes"):
        check_policy(CountingPolicy(), BOX, keys=[EpisodeKey("toy", "count", 0)] * 2)


def test_toys_that_go_wrong_are_found_out():
    with pytest.raises(AssertionError, match="raised RuntimeError: the policy raises at"):
        check_policy(RaisingPolicy(after=2), BOX)
    with pytest.raises(AssertionError, match="returned nan in row 4"):
        check_policy(NanPolicy(), BOX)
    with pytest.raises(AssertionError, match="returned shape"):
        check_policy(WrongShapePolicy(), BOX)


def test_toys_go_wrong_only_after_the_decisions_they_promise(make_batch):
    for policy, message in ((NanPolicy(1), "row 2: .* nan"), (WrongShapePolicy(1), "shape")):
        batch = make_batch(range(3))
        assert as_chunks(policy.act(batch), 3, BOX)[0].shape == (3, 1, 2)
        with pytest.raises(PolicyError, match=message):
            as_chunks(policy.act(batch), 3, BOX)


def test_the_counting_policy_remembers_what_it_was_asked(make_batch):
    policy = CountingPolicy(shape=(3,), chunk=4)
    keys = [EpisodeKey("toy", "count", index) for index in range(2)]
    policy.begin(keys)
    assert policy.act(make_batch(keys)).shape == (2, 4, 3)
    policy.act(make_batch(keys[1:], steps=[4]))
    policy.end(keys[:1])
    assert policy.batch_sizes == [2, 1]
    assert policy.keys == [tuple(keys), (keys[1],)]
    assert policy.steps == [(0, 0), (4,)]
    assert (policy.begun, policy.ended) == (keys, keys[:1])


def test_the_sleepy_policy_takes_its_time_for_every_row(make_batch):
    began = time.perf_counter()
    assert SleepyPolicy(0.02).act(make_batch(range(3))).shape == (3, 1, 2)
    assert time.perf_counter() - began >= 0.06


def test_the_hanging_policy_hangs_until_it_is_released(make_batch):
    policy = HangingPolicy(after=1)
    policy.act(make_batch([0]))
    found = []
    thread = threading.Thread(target=lambda: found.append(policy.act(make_batch([0]))))
    thread.start()
    assert policy.hanging.wait(10)
    assert not found
    policy.release.set()
    thread.join(10)
    assert found[0].shape == (1, 1, 2)


def test_what_a_policy_raises_is_told_with_the_call_that_raised_it():
    with pytest.raises(AssertionError, match="begin\\(\\) raised KeyError"):
        check_policy(Remembering(lambda counts, episodes: counts["no-such"]), BOX)
    with pytest.raises(AssertionError, match="act\\(\\) of a batch of 5 raised ZeroDivisionError"):
        check_policy(Scripted(lambda zeros, _: 1 / 0), BOX)
    with pytest.raises(AssertionError, match="an array of the tuple that act\\(\\) returned"):
        check_policy(Scripted(lambda zeros, _: (zeros, zeros[0])), BOX)
    with pytest.raises(AssertionError, match="needs a policy, not the class"):
        check_policy(Scripted, BOX)
