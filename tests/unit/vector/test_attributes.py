from __future__ import annotations

import os
import re
import signal
import threading
from functools import partial

import gymnasium
import numpy as np
import pytest

from polyarm import EnvCallError, InvalidCall
from polyarm.testing import CountingEnv, CrashingEnv

ALL = np.zeros((4, 2), np.float32)


def odd():
    """An env class by value: a worker cannot import this module."""

    class OddEnv(CountingEnv):
        label = "plain"

        def add(self, left, right=1):
            return left + right

        def refuse(self, why):
            raise KeyError(why)

        def function(self):
            return lambda: 42

        @property
        def broken(self):
            raise ZeroDivisionError("no such number")

    return OddEnv


def test_methods_and_attributes_of_the_envs_can_be_reached(make_everywhere):
    env = make_everywhere(odd())
    assert env.call("add", 2, right=3) == (5,) * 4
    assert env.call("label") == ("plain",) * 4
    assert env.get_attr("length") == (10,) * 4
    assert [function() for function in env.call("function")] == [42] * 4


def test_attributes_are_set_for_all_or_one_by_one(make):
    env = make(odd())
    env.set_attr("label", "new")
    assert env.get_attr("label") == ("new",) * 4
    env.set_attr("label", ["a", "b", "c", "d"])
    assert env.get_attr("label") == ("a", "b", "c", "d")
    env.set_attr("fresh", (1, 2, 3, 4))
    assert env.get_attr("fresh") == (1, 2, 3, 4)
    with pytest.raises(InvalidCall, match="4 values, found 2"):
        env.set_attr("label", [1, 2])
    assert env.get_attr("label") == ("a", "b", "c", "d")


def test_attributes_are_found_through_wrappers(make_any):
    def wrapped():
        return gymnasium.wrappers.TimeLimit(CountingEnv(), 5)

    env = make_any(wrapped, num_workers=2)
    env.set_attr("length", 3)
    assert env.get_attr("length") == (3,) * 4
    env.reset(seed=0)
    for _ in range(3):
        _, _, terminated, *_ = env.step(ALL)
    assert terminated.all()


def test_an_error_inside_carries_the_childs_traceback_and_costs_nothing(make):
    env = make(odd())
    env.reset(seed=0)
    env.step(ALL)
    calls = [
        lambda: env.call("refuse", "because"),
        lambda: env.get_attr("broken"),
        lambda: env.get_attr("missing"),
        lambda: env.set_attr("broken", 3),
        lambda: env.call("add"),
    ]
    for step, call in enumerate(calls, start=2):
        with pytest.raises(EnvCallError, match="Traceback") as caught:
            call()
        assert re.search(r"slot \d \(callable/.*OddEnv, pid \d+\) raised", str(caught.value))
        obs, rewards, _, truncated, info = env.step(ALL)
        assert obs["state"][:, 1].tolist() == [step] * 4
        assert rewards.tolist() == [step] * 4
        assert not truncated.any()
        assert "error" not in info


def test_an_error_in_one_slot_is_named_by_that_slot(make):
    class ChoosyEnv(CountingEnv):
        chosen = False

        def choose(self):
            if self.chosen:
                raise RuntimeError("not me")
            return "fine"

    env = make(ChoosyEnv)
    env.set_attr("chosen", [False, False, True, False])
    with pytest.raises(EnvCallError, match=r"slot 2 .*not me"):
        env.call("choose")
    env.set_attr("chosen", False)
    assert env.call("choose") == ("fine",) * 4


def test_a_value_that_cannot_travel_is_an_error_of_the_call(make_any):
    class HoldingEnv(CountingEnv):
        def lock(self):
            import threading

            return threading.Lock()

    env = make_any(HoldingEnv, num_workers=2)
    with pytest.raises(EnvCallError, match="pickle"):
        env.call("lock")
    env.reset(seed=0)


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_calls_behind_the_engines_back_are_refused(make_any, name):
    env = make_any(CountingEnv)
    for call in (env.call, env.get_attr):
        with pytest.raises(InvalidCall, match=f"use the vector env's {name}"):
            call(name)


def test_envs_render(make):
    env = make(CountingEnv)
    env.reset(seed=0)
    frames = env.render()
    obs, *_ = env.step(ALL)
    assert len(frames) == 4
    assert frames[0].shape == (8, 8, 3)
    for slot, frame in enumerate(env.render()):
        np.testing.assert_array_equal(frame, obs["pixels/front"][slot])
    assert env.render_mode == "rgb_array"
    assert env.call("render")[2].shape == (8, 8, 3)


def test_a_render_that_fails_leaves_the_engine_usable(make):
    env = make(partial(CrashingEnv, where="render"))
    env.reset(seed=0)
    with pytest.raises(EnvCallError, match="CrashingEnv raises in render"):
        env.render()
    assert len(env.render()) == 4
    assert env.step(ALL)[0]["state"][:, 1].tolist() == [1] * 4


def test_attributes_are_set_again_on_restarted_envs(make_everywhere):
    env = make_everywhere(partial(CrashingEnv, at=2))
    env.set_attr("label", ["a", "b", "c", "d"])
    env.set_attr("length", 5)
    env.reset(seed=0)
    for _ in range(2):
        env.step(ALL)
        *_, truncated, info = env.step(ALL)
        assert truncated.all()
        assert info["_error"].all()
        env.step(ALL)  # the reset
        assert env.get_attr("label") == ("a", "b", "c", "d")
        assert env.get_attr("length") == (5,) * 4
    env.set_attr("label", "later")
    env.step(ALL)
    env.step(ALL)
    env.step(ALL)
    assert env.get_attr("label") == ("later",) * 4


def test_attributes_are_set_again_on_envs_whose_worker_was_killed(make_any):
    env = make_any(CountingEnv, num_workers=2)
    env.set_attr("label", ["a", "b", "c", "d"])
    env.reset(seed=0)
    os.kill(env.worker_pids[0], signal.SIGKILL)
    while "error" not in env.step(ALL)[4]:
        pass
    assert env.get_attr("label") == ("a", "b", "c", "d")


def test_a_value_that_one_env_refuses_stays_with_the_others_after_a_restart(make_everywhere):
    class ChoosyEnv(CrashingEnv):
        def __setattr__(self, name, value):
            if name == "label" and value == "refused":
                raise ValueError("not this one")
            super().__setattr__(name, value)

    env = make_everywhere(partial(ChoosyEnv, at=2))
    env.set_attr("label", "before")
    with pytest.raises(EnvCallError, match=r"slot 1 .*not this one"):
        env.set_attr("label", ["a", "refused", "c", "d"])
    assert env.get_attr("label") == ("a", "before", "c", "d")
    env.reset(seed=0)
    env.step(ALL)
    assert env.step(ALL)[3].all()  # all of them crash
    env.step(ALL)
    assert env.get_attr("label") == ("a", "before", "c", "d")


def test_attributes_can_be_read_before_the_first_reset(make_any):
    assert make_any(CountingEnv).get_attr("instruction") == ("count to 10",) * 4


def test_an_interrupted_call_is_not_taken_for_a_step(make, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    env = make(CountingEnv)
    env.reset(seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(env._engine, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.get_attr("length")
    for count in (1, 2, 3):
        obs, *_ = env.step(ALL)
        assert obs["state"][:, 1].tolist() == [count] * 4


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_what_becomes_of_a_value_later_reaches_no_env(make_any, num_workers):
    """Slots had shared it in one process, and restarted envs got it as it was by then."""

    class Hoarding(CountingEnv):
        held = ()

        def step(self, action):
            self.held.append(len(self.held))
            if len(self.held) == 3:
                raise RuntimeError("too many")
            return super().step(action)

    env = make_any(Hoarding, num_envs=2, num_workers=num_workers)
    env.reset(seed=0)
    value = [7]
    env.set_attr("held", [value, value])
    value.append(8)
    assert env.get_attr("held") == ([7], [7])
    env.step(ALL[:2])
    *_, info = env.step(ALL[:2])
    assert all("too many" in error.message for error in info["error"])
    env.step(ALL[:2])
    assert env.get_attr("held") == ([7], [7])


def test_an_attribute_reaches_an_env_that_is_empty(make):
    class Emptyish(CountingEnv):
        gain = 1

        def __len__(self):
            return 0

    env = make(lambda: gymnasium.wrappers.TimeLimit(Emptyish(), 5))
    env.set_attr("gain", 7)
    assert env.call("get_wrapper_attr", "unwrapped")[0].__dict__.get("gain") == 7


def test_what_cannot_be_sent_to_envs_is_told(make_any):
    env = make_any(CountingEnv, num_workers=1)
    env.reset(seed=0)
    for call in (
        lambda: env.call("get_wrapper_attr", threading.Lock()),
        lambda: env.set_attr("lock", threading.Lock()),
        lambda: env.reset(options={"lock": threading.Lock()}),
    ):
        with pytest.raises(InvalidCall, match=r"must be picklable: .*lock"):
            call()
    env.reset(seed=0)
    env.step(ALL)
