"""Infos of envs that were written without polyarm in mind: nothing in them may stop the batch."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest

from polyarm.vector.infos import InfoReader, InfoWriter, info_segment, learn_schema

STEP = np.zeros(4, np.int64)
LONG = 2**63


def telling(*infos, length=100):
    """An env that returns these infos, one after the other, and then the last one for ever."""

    class TellingEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.step_number = 0
            return 0, infos[0]

        def step(self, action):
            self.step_number += 1
            info = infos[min(self.step_number, len(infos) - 1)]
            return 0, 0.0, self.step_number >= length, False, info

    return TellingEnv


@contextmanager
def caught():
    """The texts of all warnings."""
    texts = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
        texts += [str(one.message) for one in found]


@pytest.mark.parametrize("infos", ["auto", "full"])
def test_an_envs_own_keys_are_not_taken_for_the_engines(make, infos):
    own = {"error": 0.25, "steps": 7, "frame_valid": False, "_error": 3, "gap": 1.5}
    env = make(telling(own), infos=infos)
    with caught() as said:
        delivered = [env.reset()[1], *(env.step(STEP)[4] for _ in range(4))]
    for step, info in enumerate(delivered):
        assert "error" not in info
        assert "_error" not in info
        assert info["env_error"].tolist() == [0.25] * 4
        assert info["_env_error"].all()
        assert info["env__error"].tolist() == [3] * 4
        assert info["env_steps"].tolist() == [7] * 4
        assert info["env_frame_valid"].tolist() == [False] * 4
        assert info["frame_valid"].all()
        assert info["gap"].tolist() == [1.5] * 4
        assert "steps" not in info if step == 0 else info["steps"].tolist() == [1] * 4
    (text,) = said
    assert "['_error', 'error', 'frame_valid', 'steps'] of the envs" in text


@pytest.mark.filterwarnings("ignore:info keys:UserWarning")
def test_an_envs_own_keys_are_not_taken_for_the_engines_at_an_episodes_end(make):
    own = {"error": 0.25, "final_obs": "mine", "final_info": {"a": 1}, "final_frame_valid": 5}
    env = make(telling(own, length=2), autoreset="same_step")
    env.reset()
    for _ in range(4):
        *_, info = env.step(STEP)
    assert info["_final_obs"].all()
    assert info["final_obs"].tolist() == [0] * 4
    assert info["final_frame_valid"].dtype == np.bool_
    for one in (info, info["final_info"]):
        assert "error" not in one
        assert one["env_error"].tolist() == [0.25] * 4
        assert one["env_final_obs"].tolist() == ["mine"] * 4
        assert one["env_final_info"]["a"].tolist() == [1] * 4
        assert one["env_final_frame_valid"].tolist() == [5] * 4


@pytest.mark.filterwarnings("ignore:info keys:UserWarning")
@pytest.mark.parametrize("infos", ["auto", "full"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_no_key_of_an_env_has_two_meanings(make, infos, autoreset):
    both = {"error": 1.5, "env_error": 2.5, "_error": 3, "_env_error": 4}
    tasks = [telling(both, length=3), telling({"env_error": 2.5}, both, length=3)]
    env = make(tasks, infos=infos, autoreset=autoreset)
    delivered = [env.reset()[1], *(env.step(STEP)[4] for _ in range(8))]
    delivered += [info["final_info"] for info in delivered if "final_info" in info]
    assert len(delivered) == (11 if autoreset == "same_step" else 9)
    for info in delivered:
        assert "error" not in info
        assert info["env_env_error"].tolist() == [2.5] * 4
        assert set(info["env_error"].tolist()) <= {0, 1.5}
        assert set(info["env__error"].tolist()) <= {0, 3}
        assert set(info["env__env_error"].tolist()) <= {0, 4}
        assert info["_env_env_error"].all()
        assert info["_env_error"].dtype == np.bool_


@pytest.mark.parametrize("order", [1, -1], ids=["dict first", "dict last"])
@pytest.mark.parametrize("other", [None, 2.5, "text"])
def test_a_dict_may_stand_beside_something_else(make_any, order, other):
    values = [{"x": 1, "deep": {"y": 2.5}}, other][::order]
    _, info = make_any([telling({"a": value}) for value in values]).reset()
    assert info["a"].tolist() == values * 2
    assert info["_a"].all()


def test_arrays_of_objects_may_differ_in_their_shapes(make_any):
    values = [np.array([None, 1]), np.array([None, 1, 2]), None, [1, [2, 3]]]
    _, info = make_any([telling({"a": value}) for value in values]).reset()
    assert [np.size(value) for value in info["a"][:2]] == [2, 3]
    assert info["a"][2:].tolist() == values[2:]


def test_keys_need_not_be_strings(make):
    env = make(telling({0: 1.0, "b": 2, None: "x"}))
    delivered = [env.reset()[1], env.step(STEP)[4]]
    with pytest.warns(UserWarning, match=r"info keys \[None\] are not numeric"):
        delivered.append(env.step(STEP)[4])
    for info in delivered:
        assert info[0].tolist() == [1.0] * 4
        assert info["b"].tolist() == [2] * 4


def test_an_int_that_is_too_long_travels_as_an_object(make):
    env = make([telling({"id": 1}), telling({"id": LONG})])
    assert env.reset()[1]["id"].tolist() == [1, LONG] * 2
    assert env.step(STEP)[4]["id"].tolist() == [1, LONG] * 2
    with pytest.warns(UserWarning, match="'id'"):
        assert "id" not in env.step(STEP)[4]


def test_an_int_that_grows_too_long_is_dropped_and_costs_no_episode(make):
    env = make(telling(*[{"id": 1, "x": 0.5}] * 4, {"id": -LONG - 1, "x": 0.5}, {"id": 2, "x": 1}))
    env.reset()
    for _ in range(3):
        assert env.step(STEP)[4]["id"].tolist() == [1] * 4
    with pytest.warns(UserWarning, match="'id'"):
        *_, info = env.step(STEP)
    assert "id" not in info
    assert "error" not in info
    assert info["x"].tolist() == [0.5] * 4
    *_, info = env.step(STEP)
    assert info["id"].tolist() == [2] * 4


def test_an_int_that_no_float_can_hold_is_dropped():
    learnt = {"x": 0.5, "y": 1}
    schema = learn_schema([learnt])
    views = info_segment(schema, 1).views(bytearray(info_segment(schema, 1).nbytes))
    writer, reader = InfoWriter(schema, views, 0), InfoReader(schema, views)
    for _ in range(2):
        assert writer.write({"x": 3, "y": 1}) == []
    assert writer.write({"x": 10**400, "y": 1}) == ["x"]
    assert "x" not in reader.read(None)


@pytest.mark.parametrize("infos", ["auto", "full"])
def test_what_cannot_be_pickled_is_left_out_by_name(make, infos):
    class Locked(gymnasium.Wrapper):
        """Locks cannot be passed to a worker, so each env makes its own."""

        def reset(self, **how):
            obs, info = super().reset(**how)
            return obs, {**info, "lock": threading.Lock()}

        def step(self, action):
            *result, info = super().step(action)
            return *result, {**info, "lock": threading.Lock(), "nested": {"lock": threading.Lock()}}

    inner = telling({"x": 1.5}, length=3)
    env = make(lambda: Locked(inner()), infos=infos, autoreset="same_step")
    with caught() as said:
        assert env.reset()[1]["x"].tolist() == [1.5] * 4
        for _ in range(6):
            *_, info = env.step(STEP)
            assert "error" not in info
            assert "lock" not in info
            assert info["x"].tolist() == [1.5] * 4
    assert info["final_info"]["x"].tolist() == [1.5] * 4
    named = [text for text in said if "cannot be pickled" in text]
    assert [text[: text.index(" hold")] for text in named] == [
        "info keys ['lock']",
        "info keys ['nested']",
    ]
