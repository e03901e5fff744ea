from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyarm import InvalidAction
from polyarm.testing import CountingEnv, DictActionEnv
from polyarm.vector.actions import ActionCheck
from polyarm.vector.layout import leaves


def checker(space, **options):
    return ActionCheck(space, leaves(space, "action"), **options)


def batch(value, *, slot=2, num_envs=4, width=2):
    actions = np.zeros((num_envs, width), np.float32)
    actions[slot, 1] = value
    return actions


def counts(env):
    return env.get_attr("step_number")


def test_an_action_that_is_not_finite_is_refused_before_anything_is_sent(make):
    env = make(CountingEnv)
    env.reset(seed=0)
    env.step(batch(0.5))
    for value in (np.nan, np.inf, -np.inf):
        for send in (env.step, lambda actions: env.step_chunk(actions[:, None]), env.send):
            with pytest.raises(InvalidAction, match=rf"slot 2: action\[1\] = {value}"):
                send(batch(value))
    assert issubclass(InvalidAction, ValueError)
    assert counts(env) == (1, 1, 1, 1)
    obs, *_ = env.step(batch(0.25))
    assert obs["state"][:, 1].tolist() == [2, 2, 2, 2]
    assert obs["state"][2, 3] == 0.75


def test_a_bad_value_deep_in_a_chunk_is_named_with_its_step(make_any):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    actions = np.zeros((4, 5, 2), np.float32)
    actions[3, 4, 0] = np.nan
    with pytest.raises(InvalidAction, match=r"slot 3: action\[0\] = nan at step 4"):
        env.step_chunk(actions)
    assert counts(env) == (0, 0, 0, 0)


def test_a_bad_value_is_named_by_its_slot_not_by_its_row_in_the_batch(make_any):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="slot 3"):
        env.send(batch(np.nan, slot=1, num_envs=2), slots=[1, 3])
    env.send(batch(0.0, slot=1, num_envs=2), slots=[1, 3])
    assert sorted(env.recv(2).slots) == [1, 3]


@pytest.mark.parametrize(
    "shape", [(), (4,), (3, 2), (5, 2), (4, 3), (4, 1, 2), (4, 2, 1), (0, 2), (2, 4)]
)
def test_an_action_of_the_wrong_shape_is_refused(make_any, shape):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=r"shape .*expected \(4, 2\)"):
        env.step(np.zeros(shape, np.float32))
    assert counts(env) == (0, 0, 0, 0)


@pytest.mark.parametrize("shape", [(4, 2), (4, 0, 2), (3, 2, 2), (4, 2, 3)])
def test_a_chunk_of_the_wrong_shape_is_refused(make_any, shape):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    with pytest.raises(InvalidAction):
        env.step_chunk(np.zeros(shape, np.float32))
    assert counts(env) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "actions",
    [
        np.zeros((4, 2), np.complex64),
        np.full((4, 2), "0"),
        np.full((4, 2), None),
        [[0, 0], [0], [0, 0], [0, 0]],
        {"a": np.zeros((4, 2))},
        None,
    ],
    ids=["complex", "str", "object", "ragged", "dict", "none"],
)
def test_an_action_of_the_wrong_kind_is_refused(make_any, actions):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    with pytest.raises(InvalidAction):
        env.step(actions)
    assert counts(env) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([0], r"action = \[0\] does not fit: the actions are not an array"),
        ([0, "x"], r"action = \[0, 'x'\] does not fit: .*dtype .*the space says float32"),
        ([0, None], r"action = \[0, None\] does not fit: .*dtype object"),
        ([0, 1j], r"action = \[0, 1j\] does not fit: .*dtype complex128"),
    ],
)
def test_the_one_action_of_the_wrong_kind_is_named_with_its_slot(make_any, row, why):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=f"slot 2: {why}"):
        env.step([[0, 0], [0, 0], row, row])
    with pytest.raises(InvalidAction, match=f"slot 3: {why}"):
        env.send([[0, 0], row], slots=[1, 3])
    assert counts(env) == (0, 0, 0, 0)


def test_a_float_is_no_discrete_action(make_any):
    env = make_any("gym/CartPole-v1")
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="dtype float64"):
        env.step(np.zeros(4))
    env.step(np.zeros(4, np.int8))


@pytest.mark.parametrize("value", [-1, 2, 2**40])
def test_a_discrete_action_out_of_range_names_slot_and_value(make_any, value):
    env = make_any("gym/CartPole-v1")
    env.reset(seed=0)
    actions = np.zeros(4, np.int64)
    actions[1] = value
    with pytest.raises(InvalidAction, match=rf"slot 1: action = {value} .*Discrete\(2\)"):
        env.step(actions)
    with pytest.raises(InvalidAction, match=rf"slot 1: action = {value}"):
        env.step_chunk(np.stack([actions, actions], axis=1))
    env.step(np.ones(4, np.int64))


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Discrete(3, start=-1), [-1, 1], [-2, 2]),
        (
            spaces.MultiDiscrete([2, 3], start=[0, 10]),
            [[1, 12], [0, 10]],
            [[0, 13], [0, 9], [2, 10]],
        ),
        (spaces.MultiDiscrete([[2], [3]]), [[[1], [2]]], [[[2], [0]], [[-1], [0]]]),
        (spaces.MultiBinary(2), [[0, 1]], [[0, 2], [-1, 0], [0, 300]]),
    ],
    ids=["Discrete", "MultiDiscrete", "nested MultiDiscrete", "MultiBinary"],
)
def test_integer_spaces_accept_what_they_contain_and_nothing_else(space, good, bad):
    check, slots = checker(space), np.array([7])
    for value in good:
        check(np.array([value]), slots, chunked=False)
    for value in bad:
        with pytest.raises(InvalidAction, match="slot 7"):
            check(np.array([value]), slots, chunked=False)


def test_a_nested_action_is_refused_with_its_path(make_any):
    env = make_any(DictActionEnv)
    env.reset(seed=0)
    actions = env.action_space.sample()
    for path, value in [
        (("arm", "delta"), np.nan),
        (("mode",), 2),
        (("tools",), 13),
        (("buttons",), 2),
    ]:
        broken = {**actions, "arm": dict(actions["arm"])}
        inner = broken
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = np.array(inner[path[-1]])
        inner[path[-1]][3] = value
        with pytest.raises(InvalidAction, match=rf"slot 3: action '{'.'.join(path)}'"):
            env.step(broken)
    missing = {**actions, "arm": {"delta": actions["arm"]["delta"]}}
    with pytest.raises(InvalidAction, match="gripper"):
        env.step(missing)
    obs, *_ = env.step(actions)
    assert obs["step"].tolist() == [1, 1, 1, 1]


def test_bounds_clip_only_if_asked(make_any):
    for clip, expected in [(False, 5.0), (True, 1.0)]:
        env = make_any(CountingEnv, clip_actions=clip)
        env.reset(seed=0)
        obs, *_ = env.step(batch(5.0))
        assert obs["state"][2, 3] == expected


def test_clipping_lets_no_infinity_through():
    check = checker(spaces.Box(-1, 1, (2,)), clip=True)
    with pytest.raises(InvalidAction, match="not finite"):
        check(np.array([[0, np.inf]]), np.array([0]), chunked=False)


def test_double_precision_is_cast_and_may_not_overflow():
    check = checker(spaces.Box(-np.inf, np.inf, (1,), np.float32))
    arrays, chunk = check(np.array([[0.1]]), np.array([0]), chunked=False)
    assert arrays[0].dtype == np.float32
    assert chunk is None
    assert arrays[0][0, 0, 0] == np.float32(0.1)
    with pytest.raises(InvalidAction, match="not finite"):
        check(np.array([[1e300]]), np.array([0]), chunked=False)


def test_an_integer_that_its_dtype_cannot_hold_is_refused_not_wrapped():
    check = checker(spaces.Box(-100, 100, (1,), np.int8))
    with pytest.raises(InvalidAction, match="300"):
        check(np.array([[300]]), np.array([0]), chunked=False)


def test_torch_tensors_are_actions(make):
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    env = make(CountingEnv)
    env.reset(seed=0)
    actions = torch.full((4, 2), 0.5, requires_grad=True)
    obs, *_ = env.step(actions)
    assert obs["state"][:, 2].tolist() == [0.5] * 4
    env.step_chunk(actions[:, None].repeat(1, 3, 1))
    assert counts(env) == (4, 4, 4, 4)
    obs, *_ = env.step(actions.to(torch.bfloat16))  # which NumPy lacks
    assert obs["state"][:, 2].tolist() == [2.5] * 4
    with pytest.raises(InvalidAction, match="slot 0"):
        env.step(actions * torch.nan)


def test_lists_are_actions(make_any):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    obs, *_ = env.step([[0.5, 1]] * 4)
    assert obs["state"][:, 3].tolist() == [1] * 4


def test_an_env_may_keep_and_change_its_action(make):
    class KeepingEnv(gymnasium.Env):
        observation_space = spaces.Box(-9, 9, (2,), np.float32)
        action_space = spaces.Box(-9, 9, (2,), np.float32)
        kept: list = []

        def reset(self, *, seed=None, options=None):
            self.kept = []
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.kept.append(action)
            action += 1
            return self.kept[0], 0.0, False, False, {}

    env = make(KeepingEnv)
    env.reset()
    actions = np.arange(8, dtype=np.float32).reshape(4, 2)
    first = np.array(env.step(actions)[0])
    second = np.array(env.step(actions * 0)[0])
    np.testing.assert_array_equal(first, actions + 1)
    np.testing.assert_array_equal(second, actions + 1)
    np.testing.assert_array_equal(actions, np.arange(8).reshape(4, 2))


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3), np.zeros(4, np.int64)),
        (spaces.Box(-1, 1, ()), np.zeros(4, np.float32)),
        (spaces.Dict(a=spaces.Discrete(3)), {"a": np.zeros(4, np.int64)}),
    ],
)
def test_a_chunk_without_its_steps_is_refused(space, actions):
    with pytest.raises(InvalidAction, match=r"has shape \(4,\), expected \(4, K"):
        checker(space)(actions, np.arange(4), chunked=True)


def test_what_is_out_of_bounds_is_clipped_before_it_is_cast():
    clipping = checker(spaces.Box(-1, 1, (1,)), clip=True)
    arrays, _ = clipping(np.array([[1e39]]), np.array([0]), chunked=False)
    assert arrays[0].tolist() == [[[1.0]]]
    for value in (np.inf, np.nan):
        with pytest.raises(InvalidAction, match="is not finite; nothing"):
            clipping(np.array([[value]]), np.array([0]), chunked=False)
    with pytest.raises(InvalidAction, match=r"1e\+39 .* is not finite as float32"):
        checker(spaces.Box(-1, 1, (1,)))(np.array([[1e39]]), np.array([0]), chunked=False)
