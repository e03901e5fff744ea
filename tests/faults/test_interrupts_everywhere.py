"""Whatever point of a call an exception cuts short: nothing is lost, mixed up or waited for."""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np
import pytest
from interrupting import interrupted_everywhere

import polyarm
from polyarm.errors import InvalidCall
from polyarm.testing import CountingEnv

NUM_ENVS = 4
SINGLE = np.zeros((NUM_ENVS, 2), np.float32)
CHUNK = np.zeros((NUM_ENVS, 3, 2), np.float32)
MASK = np.array([True, False, True, False])


def receive_all(envs):
    """What is pending; fails if somebody is pending of whom nobody will ever hear."""
    while True:
        try:
            ready = envs.recv(1, timeout_s=5)
        except InvalidCall:
            return
        assert len(ready.slots), f"never heard of slots {sorted(envs._ledger.pending)}"


def truth(envs):
    """Origin and step of every env, as it says itself."""
    return np.array([state[:2] for state in envs.call("_state")])


def check_books(envs):
    """Observations are the envs' newest, and the episodes are those that are played."""
    np.testing.assert_array_equal(envs.observe(range(NUM_ENVS))["state"][:, :2], truth(envs))
    assert (envs.episodes % 1000).tolist() == truth(envs)[:, 0].tolist()


def send_and_receive(envs):
    envs.send(SINGLE[:2], [0, 2])
    envs.send_reset([1])
    while envs._ledger.pending:
        envs.recv(1)


CALLS = {
    "step": lambda envs: envs.step(SINGLE),
    "chunk": lambda envs: envs.step_chunk(CHUNK),
    "reset": lambda envs: envs.reset(),
    "some": lambda envs: envs.reset(options={"reset_mask": MASK}),
    "send": send_and_receive,
    "call": lambda envs: envs.call("step_number"),
    "rewind": lambda envs: envs.rewind(),
}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("call", list(CALLS))
def test_a_call_interrupted_anywhere_leaves_the_env_as_it_says_it_is(call, workers):
    with polyarm.make_vec("toy/count-3", num_envs=NUM_ENVS, num_workers=workers) as envs:
        envs.reset(seed=0)
        envs.step(SINGLE)
        envs.step_chunk(CHUNK)
        points = 0
        for _ in interrupted_everywhere(partial(CALLS[call], envs), stride=2):
            points += 1
            receive_all(envs)
            check_books(envs)
            obs, rewards, _, _, info = envs.step(SINGLE)
            found = truth(envs)
            np.testing.assert_array_equal(obs["state"][:, :2], found)
            np.testing.assert_array_equal(rewards, found[:, 1])
            assert info["frame_valid"].all()
            assert "error" not in info
            check_books(envs)
        assert points >= (20 if call != "rewind" else 3)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("how", ["switch_task", "send_reset"])
def test_a_switch_interrupted_anywhere_has_happened_or_not(how, workers):
    tasks = ["toy/count-10", "toy/count-50"]
    with polyarm.make_vec(tasks[0], num_envs=2, num_workers=workers) as envs:

        def switch():
            target = tasks[envs.tasks[0] == tasks[0]]
            if how == "switch_task":
                envs.switch_task([0], target)
            else:
                envs.send_reset([0], task=target)
                envs.recv(1)

        envs.reset(seed=0)
        points = 0
        for _ in interrupted_everywhere(switch, stride=5):
            points += 1
            receive_all(envs)
            for _ in range(2):
                assert "error" not in envs.step(SINGLE[:2])[-1]
            assert [f"toy/count-{length}" for length in envs.get_attr("length")] == [*envs.tasks]
        assert points >= 10


@pytest.mark.parametrize("workers", [1, 2])
def test_a_switched_slot_is_delivered_when_it_has_been_reset_and_not_before(workers):
    with polyarm.make_vec("toy/count-10", num_envs=2, num_workers=workers) as envs:
        episodes = iter(range(100, 900))
        delivered = []

        def switch():
            episode = next(episodes)
            task = f"toy/count-{50 if episode % 2 else 10}"
            envs.send_reset([0], task=task, options={"episodes": [episode]})
            receive(episode)

        def receive(episode):
            ready = envs.recv(1, timeout_s=5)
            assert ready.slots.tolist() == [0]
            assert ready.obs["state"][0, :2].tolist() == [episode, 0]
            assert ready.info["steps"].tolist() == [0]
            delivered.append(episode)

        envs.reset(seed=0)
        for number in interrupted_everywhere(switch, stride=1, within="vector/switching"):
            if delivered[-1:] != [99 + number]:
                with contextlib.suppress(InvalidCall):  # nobody is pending: the slot is idle again
                    receive(99 + number)
            envs.step(SINGLE[:2])
        assert delivered


def test_a_reset_that_failed_and_was_interrupted_leaves_the_last_observation(tmp_path):
    fails = tmp_path / "fails"

    class FailingEnv(CountingEnv):
        def reset(self, **options):
            if fails.exists():
                fails.unlink()
                raise ValueError("once")
            return super().reset(**options)

    tasks = [lambda: FailingEnv(length=1000), partial(CountingEnv, length=1000)]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=2, max_restarts=10**6) as envs:

        def reset():
            fails.touch()
            envs.reset()

        envs.reset(seed=0)
        for _ in interrupted_everywhere(reset, stride=1, within="vector/env"):
            fails.unlink(missing_ok=True)
            receive_all(envs)
            newest = envs.observe(range(2))["state"][:, 1]
            assert set(newest.tolist()) <= {0.0, 3.0}
            envs.reset()
            for _ in range(3):
                envs.step(SINGLE[:2])


def test_an_interrupted_send_leaves_views_of_the_last_step_as_long_as_they_last(probe):
    with polyarm.make_vec(partial(CountingEnv, length=1000), num_envs=2) as envs:
        envs.reset(seed=0)
        held = envs.step(SINGLE[:2])[0]["state"]
        kept = held[1].copy()
        envs.send(SINGLE[:1], [0])
        envs.recv(1)
        dispatch = envs._engine.dispatch

        def interrupted(*_):
            raise KeyboardInterrupt

        envs._engine.dispatch = interrupted
        with pytest.raises(KeyboardInterrupt):
            envs.send(SINGLE[:1], [1])
        envs._engine.dispatch = dispatch
        envs.step(SINGLE[:2])
        assert held[1].tolist() == kept.tolist()


def test_what_a_block_is_appended_to_is_used_once_it_is_ready(probe):
    ones = np.ones_like(SINGLE)
    with polyarm.make_vec(partial(CountingEnv, length=50), num_envs=NUM_ENVS) as envs:
        envs.reset(seed=0)
        lengths = iter(range(2, 1000))

        def longer_than_ever():
            envs.step_chunk(np.repeat(ones[:, np.newaxis], next(lengths), axis=1))

        for _ in interrupted_everywhere(longer_than_ever, stride=9):
            receive_all(envs)
            envs.reset()
            obs, rewards, *_ = envs.step(ones)
            assert rewards.tolist() == [1] * NUM_ENVS
            assert obs["state"][:, 2].tolist() == [1] * NUM_ENVS
