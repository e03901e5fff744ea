"""Advantages agree with the definition, written out slowly, in every kind of rollout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm.training.play import Steps
from polyarm.training.ppo import advantages


def made(rewards, steps=None, *, usable=None, terminated=None, truncated=None):
    """A rollout of one env, T decisions of up to K steps."""
    rewards = np.asarray(rewards, np.float64)
    rewards = rewards.reshape(len(rewards), 1, -1)
    shape = rewards.shape[:2]

    def column(values, default, dtype):
        found = np.full(shape, default, dtype)
        if values is not None:
            found[:, 0] = values
        return found

    steps = column(steps, rewards.shape[2], np.int64)
    usable = steps > 0 if usable is None else column(usable, True, np.bool_)
    ended = (column(one, False, np.bool_) for one in (terminated, truncated))
    return Steps({}, rewards, steps, *ended, usable)


def column(values):
    return np.asarray(values, np.float64)[:, None]


def by_definition(steps, values, gamma, gae_lambda):
    """Discounted surprises of all decisions up to the end of the episode, one at a time."""
    horizon, count = steps.steps.shape
    found = np.zeros((horizon, count))
    for first in range(horizon):
        for slot in range(count):
            weight = 1.0
            for row in range(first, horizon):
                if not steps.usable[row, slot]:
                    break
                surprise = -values[row, slot]
                ran = steps.steps[row, slot]
                for number in range(ran):
                    surprise += gamma**number * steps.rewards[row, slot, number]
                if not steps.terminated[row, slot]:
                    surprise += gamma**ran * values[row + 1, slot]
                found[first, slot] += weight * surprise
                if steps.terminated[row, slot] or steps.truncated[row, slot]:
                    break
                weight *= gae_lambda * gamma**ran
    return found


@st.composite
def rollouts(draw):
    """Episodes that end in both ways, resets after them, envs that fail, chunks cut short."""
    horizon, count, chunk = (draw(st.integers(1, limit)) for limit in (7, 3, 3))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    shape = (horizon, count)
    kind = random.choice(4, shape, p=[0.6, 0.15, 0.15, 0.1])  # goes on, ends, is cut off, fails
    steps = np.where(kind == 0, chunk, random.integers(1, chunk + 1, shape))
    for row in range(1, horizon):
        after_end = (kind[row - 1] > 0) & (steps[row - 1] > 0)
        kind[row][after_end], steps[row][after_end] = 0, 0
    steps[kind == 3] = 0
    rewards = random.normal(size=(*shape, chunk))
    rewards[np.arange(chunk) >= steps[..., None]] = 0.0
    no_frame = random.random(shape) < 0.1
    usable = (steps > 0) & (~no_frame | (kind == 1))
    values = random.normal(size=(horizon + 1, count))
    return Steps({}, rewards, steps, kind == 1, kind >= 2, usable), values


@settings(max_examples=300, deadline=None)
@given(rollouts(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_they_are_what_the_definition_says(rollout, gamma, gae_lambda):
    steps, values = rollout
    expected = by_definition(steps, values, gamma, gae_lambda)
    found = advantages(steps, values, gamma, gae_lambda)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_terminated_episode_expects_nothing_more():
    steps = made([1.0], terminated=[True])
    assert advantages(steps, column([10, 99]), 0.9, 0.95)[0] == 1.0 - 10


def test_a_truncated_episode_expects_the_value_of_its_last_observation():
    steps = made([1.0, 0.0, 5.0], steps=[1, 0, 1], truncated=[True, False, False])
    found = advantages(steps, column([10, 20, 30, 40]), 0.5, 1.0)
    # The row after it only resets, and belongs to no episode: 30 and 40 are of the next one.
    assert found[:, 0].tolist() == [1 + 0.5 * 20 - 10, 0.0, 5 + 0.5 * 40 - 30]


def test_terminated_and_truncated_at_once_is_terminated():
    steps = made([1.0], terminated=[True], truncated=[True])
    assert advantages(steps, column([0, 99]), 1.0, 1.0)[0] == 1.0


def test_an_env_that_fails_cuts_its_episode_off_before_the_failure():
    # It fails at the second decision and is reset by the third.
    steps = made([1.0, 0.0, 0.0, 2.0], steps=[1, 0, 0, 1], truncated=[False, True, False, False])
    found = advantages(steps, column([10, 20, 20, 40, 50]), 0.5, 0.9)
    assert found[:, 0].tolist() == [1 + 0.5 * 20 - 10, 0.0, 0.0, 2 + 0.5 * 50 - 40]


def test_rewards_of_a_chunk_are_discounted_per_step_and_a_short_chunk_by_its_own_length():
    steps = made([[1, 2, 4], [1, 2, 0]], steps=[3, 2], truncated=[False, True])
    found = advantages(steps, column([0, 100, 1000]), 0.5, 0.0)
    assert found[0, 0] == 1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 100
    assert found[1, 0] == pytest.approx(1 + 0.5 * 2 + 0.25 * 1000 - 100)
