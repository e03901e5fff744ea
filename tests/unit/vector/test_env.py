from __future__ import annotations

import copy
import gc
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import polyarm
from polyarm import BuildError, ClosedEnv, InvalidCall, UnknownName, UnsupportedSpace
from polyarm.testing import BindingEnv, CountingEnv, CrashingEnv, DictActionEnv, NoisyEnv, NullEnv

NOTHING = np.zeros((4, 2), np.float32)
MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}
TAXI = max(task for task in gymnasium.registry if task.startswith("Taxi-"))
OURS = ("steps", "frame_valid", "final_frame_valid")


def without_ours(delivered):
    """What Gymnasium would have delivered: less the infos that only we add."""
    *parts, info = delivered
    own = {f"_{key}" for key in OURS} | set(OURS)
    return [*parts, {key: value for key, value in info.items() if key not in own}]


def assert_same(found, expected, *, infos=True):
    for step, (left, right) in enumerate(zip(found, expected, strict=True)):
        left, right = without_ours(left), list(right)
        if not infos:
            left, right = left[:-1], right[:-1]
        for place, (ours, theirs) in enumerate(zip(left, right, strict=True)):
            if isinstance(theirs, dict):
                ours = as_gymnasium_casts(ours, theirs)
            same = data_equivalence(ours, theirs, exact=True)
            assert same, f"step {step}, part {place}: {ours} is not {theirs}"


def as_gymnasium_casts(ours, theirs):
    """Our infos, cut to ints where Gymnasium cuts floats to the first env's dtype.

    FrozenLake's ``prob`` is the int 1 after a reset and 1/3 after a step: where one env has been
    reset, Gymnasium delivers 0 for the others. We deliver 1/3.
    """
    return {
        key: value.astype(theirs[key].dtype)
        if key in theirs and getattr(theirs[key], "dtype", None) == np.int64
        else value
        for key, value in ours.items()
    }


def sync(task, *, mode="next_step", num_envs=4):
    factory = partial(gymnasium.make, task) if isinstance(task, str) else task
    return SyncVectorEnv([factory] * num_envs, autoreset_mode=MODES[mode])


# Shapes, views and their lifetimes.


def test_observations_have_the_shapes_and_dtypes_of_the_batched_space(make_any):
    env = make_any(CountingEnv)
    obs, _ = env.reset(seed=0)
    assert obs["pixels/front"].shape == (4, 8, 8, 3)
    assert obs["pixels/front"].dtype == np.uint8
    assert obs["state"].shape == (4, 4)
    assert obs["state"].dtype == np.float32
    obs, rewards, terminated, truncated, info = env.step(NOTHING)
    assert env.observation_space.contains(obs)
    assert (rewards.shape, rewards.dtype) == ((4,), np.float64)
    for flags in (terminated, truncated, info["frame_valid"]):
        assert (flags.shape, flags.dtype) == ((4,), np.bool_)
    assert info["steps"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("size", [(84, 84), (7, 5)])
def test_the_ring_is_one_contiguous_tensor_at_any_image_size(make_any, size):
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    horizon = 5
    env = make_any("toy/count-50", cameras=("front", "wrist"), image_size=size, ring=horizon + 1)
    env.reset(seed=0)
    env.rewind()
    seen = [np.array(env.history()["obs"]["state"][0])]
    rewards = []
    for _ in range(horizon):
        obs, reward, *_ = env.step(NOTHING)
        assert obs["pixels/front"].flags.c_contiguous
        seen.append(np.array(obs["state"]))
        rewards.append(reward)
    history = env.history()
    for key, array in history["obs"].items():
        tensor = torch.from_numpy(array)
        assert tensor.is_contiguous(), key
        assert tensor.shape[:2] == (horizon + 1, 4)
    np.testing.assert_array_equal(history["obs"]["state"], np.stack(seen))
    np.testing.assert_array_equal(history["rewards"][1:], np.stack(rewards))
    assert torch.from_numpy(history["rewards"]).is_contiguous()
    assert history["row"] == horizon


def test_rewinding_keeps_the_newest_row(make_any):
    env = make_any(CountingEnv, ring=4)
    env.reset(seed=0)
    for _ in range(5):
        obs, *_ = env.step(NOTHING)
        newest = copy.deepcopy(obs)
    env.rewind()
    history = env.history()
    assert history["row"] == 0
    for key, value in newest.items():
        np.testing.assert_array_equal(history["obs"][key][0], value)
    obs, *_ = env.step(NOTHING)
    assert env.history()["row"] == 1
    assert obs["state"][:, 1].tolist() == [6] * 4


def test_a_view_is_valid_until_the_second_following_step(make_any):
    env = make_any(CountingEnv)
    obs, _ = env.reset(seed=0)
    for _ in range(6):
        kept = copy.deepcopy(obs)
        following, *_ = env.step(NOTHING)
        assert data_equivalence(obs, kept, exact=True)
        obs = following


@pytest.mark.parametrize("frames", ["last", "every"])
def test_a_checked_view_is_spoiled_by_the_second_following_step_and_not_before(make, frames):
    env = make(CountingEnv, check_lifetimes=True, frames=frames)
    views = [env.reset(seed=0)[0]]
    kept = [copy.deepcopy(views[0])]
    for _ in range(7):
        obs, *_ = env.step(NOTHING)
        views.append(obs)
        kept.append(copy.deepcopy(obs))
        for view, value in zip(views[-2:], kept[-2:], strict=True):
            assert data_equivalence(view, value, exact=True)
        for view in views[-3:-2]:
            assert np.isnan(view["state"]).all()
            assert (view["pixels/front"] == 0xDB).all()


@pytest.mark.parametrize("frames", ["last", "every"])
def test_a_reset_spoils_views_that_have_expired_as_a_step_does(make, frames):
    env = make(CountingEnv, check_lifetimes=True, frames=frames)
    first, _ = env.reset(seed=0)
    second, *_ = env.step(NOTHING)
    kept = copy.deepcopy(second)
    third, _ = env.reset(options={"reset_mask": np.array([True, False, False, True])})
    assert np.isnan(first["state"]).all()
    assert data_equivalence(second, kept, exact=True)
    kept = copy.deepcopy(third)
    env.send_reset([0, 1])
    env.recv(2)
    assert np.isnan(second["state"][:2]).all()
    assert not np.isnan(second["state"][2:]).any()
    assert data_equivalence(third, kept, exact=True)


def test_lifetimes_are_checked_for_each_slot_on_its_own(make):
    env = make(CountingEnv, check_lifetimes=True)
    obs, _ = env.reset(seed=0)
    kept = copy.deepcopy(obs)
    for _ in range(2):
        env.send(NOTHING[:1], [2])
        env.recv()
    assert np.isnan(obs["state"][2]).all()
    for slot in (0, 1, 3):
        np.testing.assert_array_equal(obs["state"][slot], kept["state"][slot])


def test_a_view_outlives_one_step_also_where_slots_have_gone_their_own_ways(make):
    env = make(CountingEnv)
    env.reset(seed=0)
    obs, *_ = env.step(NOTHING)
    kept = copy.deepcopy(obs)
    env.send(NOTHING[:1], [0])
    env.recv()
    env.step(NOTHING)  # the first send to slots 1 to 3 since the view was made
    np.testing.assert_array_equal(obs["state"][1:], kept["state"][1:])


def test_copies_are_independent_of_the_block(make):
    env = make(CountingEnv, copy=True)
    observations = [env.reset(seed=0)[0]]
    observations += [env.step(NOTHING)[0] for _ in range(5)]
    env.send(NOTHING)
    observations.append(env.recv(4).obs)
    env.send(NOTHING)
    env.recv(4)
    for step, obs in enumerate(observations):
        assert obs["state"][:, 1].tolist() == [step] * 4
    observations[-1]["state"][:] = 99
    assert env.step(NOTHING)[0]["state"][:, 1].tolist() == [8] * 4


def test_views_stay_readable_after_the_env_is_closed(make):
    env = make(CountingEnv)
    obs, _ = env.reset(seed=5)
    env.close()
    gc.collect()
    assert sorted(obs["state"][:, 0]) == [5, 6, 7, 8]
    del env
    gc.collect()
    assert obs["pixels/front"].sum() > 0


# Equal to Gymnasium.


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", TAXI])
def test_results_are_bit_equal_to_gymnasium(make, rollout, task):
    reference = sync(task)
    expected = rollout(reference, steps=320)
    env = make(f"gym/{task}", infos="full")
    assert env.single_observation_space == reference.single_observation_space
    assert env.observation_space == reference.observation_space
    assert env.action_space == reference.action_space
    assert_same(rollout(env, steps=320), expected)


@pytest.mark.parametrize("task", ["MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"])
def test_long_episodes_are_bit_equal_to_gymnasium(make_any, rollout, task):
    expected = rollout(sync(task), steps=520)
    env = make_any(f"gym/{task}", num_workers=2, infos="full")
    assert_same(rollout(env, steps=520), expected)


def test_numeric_infos_equal_gymnasiums_although_nothing_is_pickled(make, rollout):
    expected = rollout(sync(TAXI), steps=40)
    assert_same(rollout(make(f"gym/{TAXI}"), steps=40), expected)


@pytest.mark.parametrize("task", ["FrozenLake-v1", "CliffWalking-v1"])
def test_a_number_that_is_an_int_at_the_reset_and_a_float_later_is_not_lost(make_any, task):
    env, alone = make_any(f"gym/{task}", num_envs=1), gymnasium.make(task)
    _, info = env.reset(seed=0)
    assert info["prob"] == [alone.reset(seed=0)[1]["prob"]]
    for _ in range(3):
        *_, info = env.step(np.zeros(1, np.int64))
        *_, expected = alone.step(0)
        assert info["prob"] == [expected["prob"]]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("env_class", [NoisyEnv, partial(CountingEnv, length=4)])
def test_autoreset_modes_are_gymnasiums(make, rollout, mode, env_class):
    reference = sync(env_class, mode=mode)
    expected = rollout(reference, steps=60)
    env = make(env_class, autoreset=mode, infos="full")
    assert env.metadata["autoreset_mode"] is MODES[mode]
    assert_same(rollout(env, steps=60), expected)


def test_disabled_autoreset_is_gymnasiums(make):
    reference = sync(NoisyEnv, mode="disabled")
    env = make(NoisyEnv, autoreset="disabled")
    for each in (reference, env):
        each.action_space.seed(1)
    assert_same([env.reset(seed=1)], [reference.reset(seed=1)])
    for _ in range(60):
        found = env.step(env.action_space.sample())
        expected = reference.step(reference.action_space.sample())
        assert_same([found], [expected])
        if (ended := found[2] | found[3]).any():
            with pytest.raises(InvalidCall, match=rf"slots \[{np.flatnonzero(ended)[0]}"):
                env.step(NOTHING)
            found = env.reset(options={"reset_mask": ended})
            expected = reference.reset(options={"reset_mask": ended})
            assert_same([found], [expected])


def test_final_observations_are_copies_of_their_own(make):
    env = make(partial(CountingEnv, length=3), autoreset="same_step")
    env.reset(seed=0)
    for _ in range(2):
        env.step(NOTHING)
    obs, _, terminated, _, info = env.step(NOTHING)
    assert terminated.all()
    assert obs["state"][:, 1].tolist() == [0] * 4
    assert info["_final_obs"].all()
    finals = list(info["final_obs"])
    kept = copy.deepcopy(finals)
    assert [final["state"][1] for final in finals] == [3] * 4
    assert info["final_info"]["is_success"].all()
    assert info["final_info"]["step"].tolist() == [3] * 4
    expected = CountingEnv(length=3)
    expected.reset(seed=2)
    for _ in range(3):
        last, *_ = expected.step(NOTHING[0])
    np.testing.assert_array_equal(finals[2]["pixels/front"], last["pixels/front"])
    for _ in range(7):
        env.step(NOTHING)
    assert data_equivalence(finals, kept, exact=True)


def test_resetting_some_slots_leaves_the_others_alone(make):
    env = make(partial(CountingEnv, length=5))
    env.reset(seed=10)
    env.step(NOTHING)
    mask = np.array([False, True, False, True])
    obs, info = env.reset(seed=20, options={"reset_mask": mask})
    assert obs["state"][:, :2].tolist() == [[10, 1], [21, 0], [12, 1], [23, 0]]
    assert info["_step"].tolist() == mask.tolist()
    assert info["seed"].tolist() == [0, 21, 0, 23]
    for _ in range(3):
        obs, *_ = env.step(NOTHING)
    obs, _, terminated, *_ = env.step(NOTHING)
    assert terminated.tolist() == [True, False, True, False]
    assert obs["state"][:, 1].tolist() == [5, 4, 5, 4]


def test_infos_of_a_partial_reset_are_gymnasiums(make_any):
    class LabellingEnv(CountingEnv):
        def _info(self):
            return {"label": f"step {self.step_number}", "nested": {"who": "me", "n": 1}}

    options = {"reset_mask": np.array([False, True, False, True])}
    reference, env = sync(LabellingEnv), make_any(LabellingEnv)
    for each in (reference, env):
        each.reset(seed=0)
    found, expected = env.reset(options=dict(options)), reference.reset(options=dict(options))
    assert_same([found], [expected])


@pytest.mark.parametrize(
    "mask", [[True] * 3, np.zeros(4, bool), np.ones(4, int), np.ones((4, 1), bool)], ids=str
)
def test_a_mask_that_fits_not_is_refused(make_any, mask):
    env = make_any(CountingEnv)
    env.reset(seed=0)
    with pytest.raises(InvalidCall, match="reset_mask"):
        env.reset(options={"reset_mask": np.asarray(mask)})
    env.step(NOTHING)


def test_seeds_may_differ_from_slot_to_slot(make):
    env = make(CountingEnv)
    obs, info = env.reset(seed=[7, 5, 3, 1])
    assert obs["state"][:, 0].tolist() == [7, 5, 3, 1]
    obs, info = env.reset(seed=[9, None, 9, None])
    assert obs["state"][:, 0].tolist() == [9, 6, 9, 2]
    assert info["seed"].tolist() == [9, 5, 9, 1]
    with pytest.raises(InvalidCall, match="one per slot: 4, found 2"):
        env.reset(seed=[1, 2])
    with pytest.raises(InvalidCall, match="a seed must be from 0"):
        env.reset(seed=-1)
    env.step(NOTHING)


def test_the_seed_of_make_vec_is_the_default_of_the_first_reset(make_any, rollout):
    first, second = make_any(NoisyEnv, seed=11), make_any(NoisyEnv)
    obs, _ = first.reset()
    np.testing.assert_array_equal(obs, second.reset(seed=11)[0])
    np.testing.assert_array_equal(first.reset()[0], second.reset()[0])


def test_options_reach_the_envs(make):
    class OptionsEnv(CountingEnv):
        def reset(self, *, seed=None, options=None):
            obs, info = super().reset(seed=seed)
            return obs, {**info, "options": repr(options)}

    env = make(OptionsEnv)
    _, info = env.reset(options={"difficulty": 3})
    assert set(info["options"]) == {"{'difficulty': 3}"}
    _, info = env.reset()
    assert set(info["options"]) <= {"None", "{}"}


# What can be vectorized.


@pytest.mark.parametrize("frames", ["last", "every"])
def test_nested_actions_come_back_as_nested_observations(make, frames):
    env = make(DictActionEnv, frames=frames)
    obs, _ = env.reset(seed=0)
    assert obs["echo"]["mode"].tolist() == [-1] * 4
    env.action_space.seed(0)
    for step in range(1, 4):
        actions = env.action_space.sample()
        obs, rewards, *_ = env.step(actions)
        assert data_equivalence(_plain(obs["echo"]), _plain(actions), exact=True)
        assert obs["step"].tolist() == [step] * 4
        np.testing.assert_allclose(rewards, actions["arm"]["delta"].sum(axis=1), rtol=1e-6)
    env.send(actions)
    ready = env.recv(4)
    order = {key: value[ready.slots] for key, value in _plain(actions).items() if key != "arm"}
    for key, value in order.items():
        np.testing.assert_array_equal(ready.obs["echo"][key], value)


def _plain(value):
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else np.array(value)


def test_bound_envs_give_the_same_bits(make, rollout):
    expected = rollout(make(partial(CountingEnv, length=4)), steps=10)
    found = rollout(make(partial(BindingEnv, length=4)), steps=10)
    assert data_equivalence(found, expected, exact=True)


def test_an_env_may_return_the_same_arrays_again_and_again(make):
    env = make(partial(NullEnv, image_size=(4, 4)))
    first, _ = env.reset()
    second, *_ = env.step(np.zeros((4, 4), np.float32))
    assert first["pixels/front"][:, 0, 0, 0].tolist() == [0] * 4
    assert second["pixels/front"][:, 0, 0, 0].tolist() == [1] * 4


def test_a_space_without_a_layout_is_refused_by_name(make):
    with pytest.raises(UnsupportedSpace, match="observation space Tuple at <root>"):
        make("gym/Blackjack-v1")


def test_a_callable_may_be_a_string_a_lambda_a_partial_or_local(make):
    class LocalEnv(CountingEnv):
        pass

    length = 7
    tasks = ["polyarm.testing:CountingEnv", lambda: CountingEnv(length=length), LocalEnv]
    env = make([*tasks, partial(CountingEnv, length=2)])
    assert env.get_attr("length") == (10, 7, 10, 2)
    env.reset(seed=0)
    env.step(NOTHING)
    assert env.tasks[0] == "callable/polyarm.testing:CountingEnv"
    assert "LocalEnv" in env.tasks[2]


def test_tasks_are_dealt_to_the_slots_in_turn(make_any):
    env = make_any(["toy/count-3", "toy/count-50"], cameras=("front",), image_size=(4, 4))
    assert env.tasks == ("toy/count-3", "toy/count-50") * 2
    env.reset(seed=0)
    for _ in range(3):
        _, _, terminated, *_ = env.step(NOTHING)
    assert terminated.tolist() == [True, False] * 2


def test_a_set_of_tasks_is_spelled_out(make_any):
    env = make_any("toy/short")
    assert env.tasks == ("toy/count-3", "toy/count-10") * 2


@pytest.mark.parametrize("tasks", [["gym/CartPole-v1", "gym/Acrobot-v1"], [CountingEnv, NoisyEnv]])
def test_tasks_whose_spaces_differ_cannot_share_a_batch(make, tasks):
    with pytest.raises(BuildError, match=r"slots 0 \(.*\) and 1 \(.*\) cannot share") as caught:
        make(tasks)
    for task in tasks:
        assert (task if isinstance(task, str) else task.__name__) in str(caught.value)


def test_spaces_of_one_shape_that_mean_different_actions_cannot_share_a_batch(make_any):
    def two():
        env = gymnasium.make("FrozenLake-v1")
        env.action_space = spaces.Discrete(3)
        return env

    with pytest.raises(BuildError, match="cannot share"):
        make_any(["gym/FrozenLake-v1", two])


@pytest.mark.parametrize(
    ("tasks", "error", "message"),
    [
        ("gym/CartPol-v1", UnknownName, "CartPole-v1"),
        ("toys/count-3", UnknownName, "suite 'toys'"),
        ("toy/count-4", UnknownName, "count-3"),
        ([], InvalidCall, "no tasks"),
    ],
    ids=["id", "suite", "task", "empty"],
)
def test_a_name_that_is_unknown_is_refused(make_any, tasks, error, message):
    with pytest.raises(error, match=message):
        make_any(tasks, num_workers=2)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("polyarm.testing:CountEnv", "CountingEnv"),
        ("no.such.module:Env", "No module named 'no'"),
        (lambda: 3, "returned int"),
    ],
    ids=["callable", "module", "int"],
)
def test_a_task_that_cannot_be_built_is_refused(make, task, message):
    with pytest.raises(BuildError, match=message):
        make(task)


@pytest.mark.parametrize(
    "options",
    [
        {"num_envs": 0},
        {"num_workers": -1},
        {"ring": 1},
        {"start": "slow"},
        {"frames": "sometimes"},
        {"autoreset": "maybe"},
        {"infos": "some"},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(make_any, options):
    with pytest.raises(polyarm.PolyarmError, match=next(iter(options))):
        make_any(CountingEnv, **options)


def test_an_option_the_suite_does_not_know_is_refused(make_any):
    with pytest.raises(UnknownName, match="colour"):
        make_any("toy/count-3", colour="red")


class WrongEnv(CountingEnv):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def _observe(self):
        obs = super()._observe()
        return {**obs, "state": self.wrong(obs["state"])}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda state: state[:3], r"'state' has shape \(3,\), its space says \(4,\)"),
        (lambda state: state[None], r"shape \(1, 4\)"),
        (lambda state: state.astype(np.complex64), "dtype complex64, its space says float32"),
    ],
    ids=["shape", "dimensions", "dtype"],
)
def test_an_observation_outside_its_space_is_an_error(make_any, wrong, message):
    env = make_any(lambda: WrongEnv(wrong), max_restarts=0)
    with pytest.raises(polyarm.WorkerDied, match=message):
        env.reset(seed=0)


def test_an_observation_without_a_key_is_an_error(make_any):
    class ForgettingEnv(CountingEnv):
        def _observe(self):
            return {"pixels/front": super()._observe()["pixels/front"]}

    with pytest.raises(polyarm.WorkerDied, match="no 'state'"):
        make_any(ForgettingEnv, max_restarts=0).reset(seed=0)


def test_dtypes_are_cast_within_their_kind(make_any):
    env = make_any(lambda: WrongEnv(lambda state: state.astype(np.float64)))
    assert env.reset(seed=3)[0]["state"].dtype == np.float32
    env = make_any(lambda: WrongEnv(lambda state: state.astype(np.int64).tolist()))
    assert env.reset(seed=3)[0]["state"][:, 0].tolist() == [3, 4, 5, 6]


def test_scalar_and_empty_observations_travel(make):
    class OddEnv(gymnasium.Env):
        action_space = spaces.Box(-1, 1, (), np.float32)
        observation_space = spaces.Dict(
            {
                "empty": spaces.Box(0, 1, (0, 3), np.float32),
                "number": spaces.Discrete(10, start=5),
                "scalar": spaces.Box(-9, 9, (), np.float64),
            }
        )

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return {"empty": np.zeros((0, 3), np.float32), "number": 5, "scalar": 0.5}, {}

        def step(self, action):
            obs = {"empty": np.zeros((0, 3), np.float32), "number": 7, "scalar": float(action)}
            return obs, 1, False, False, {}

    env = make(OddEnv)
    obs, _ = env.reset(seed=0)
    assert obs["empty"].shape == (4, 0, 3)
    assert obs["number"].tolist() == [5] * 4
    obs, *_ = env.step(np.linspace(0, 0.75, 4))
    assert obs["scalar"].tolist() == [0, 0.25, 0.5, 0.75]
    assert obs["number"].dtype == np.int64
    env.send(np.linspace(0, 0.75, 4))
    ready = env.recv(4)
    assert ready.obs["empty"].shape == (4, 0, 3)
    assert ready.obs["scalar"].tolist() == (ready.slots * 0.25).tolist()


# The end.


def test_a_closed_env_refuses_every_call(make_everywhere):
    with make_everywhere(CountingEnv) as env:
        env.reset(seed=0)
    calls = [
        env.reset,
        lambda: env.step(NOTHING),
        lambda: env.step_chunk(NOTHING[:, None]),
        lambda: env.send(NOTHING),
        env.send_reset,
        env.recv,
        lambda: env.call("render"),
        lambda: env.get_attr("length"),
        lambda: env.set_attr("length", 3),
        env.render,
        env.rewind,
        lambda: env.switch_task([0], CountingEnv),
    ]
    for call in calls:
        with pytest.raises(ClosedEnv, match="closed"):
            call()
    env.close()
    env.close()
    assert env.closed


def test_stepping_before_a_reset_is_refused(make_any):
    env = make_any(CountingEnv)
    for call in (env.step, env.send):
        with pytest.raises(InvalidCall, match="reset"):
            call(NOTHING)
    env.reset(seed=0)
    env.step(NOTHING)


def test_an_env_that_is_forgotten_cleans_up_after_itself(engine):
    env = polyarm.make_vec(CountingEnv, num_envs=4, **engine)
    env.reset(seed=0)
    del env
    gc.collect()


def test_an_env_closed_with_sends_pending_cleans_up(make_everywhere):
    env = make_everywhere(CountingEnv)
    env.reset(seed=0)
    env.send(NOTHING)
    env.close()


def test_envs_are_closed_with_the_vector_env(make, tmp_path):
    class ClosingEnv(CountingEnv):
        def close(self):
            (tmp_path / f"{id(self)}-{self.np_random.integers(2**40)}").touch()

    make(ClosingEnv).close()
    assert len(list(tmp_path.iterdir())) == 4


def test_an_env_that_fails_to_close_is_dropped_all_the_same(make, tmp_path):
    class ClosingEnv(CrashingEnv):
        def close(self):
            (tmp_path / f"{id(self)}-{self.np_random.integers(2**40)}").touch()
            super().close()

    make(partial(ClosingEnv, where="close")).close()
    assert len(list(tmp_path.iterdir())) == 4


def test_an_env_that_failed_is_closed_before_it_is_replaced(make_everywhere, tmp_path):
    class ClosingEnv(CrashingEnv):
        def close(self):
            (tmp_path / f"{id(self)}-{self.np_random.integers(2**40)}").touch()

    env = make_everywhere(partial(ClosingEnv, at=2))
    env.reset(seed=0)
    env.step(NOTHING)
    _, _, _, truncated, _ = env.step(NOTHING)
    assert truncated.all()
    env.step(NOTHING)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_task_can_be_switched(make_everywhere):
    env = make_everywhere("toy/count-3", cameras=("front",), image_size=(4, 4))
    env.reset(seed=0)
    env.switch_task([1, 2], "toy/count-10")
    assert env.get_attr("length") == (3, 10, 10, 3)
    assert env.tasks[1] == "toy/count-10"
    env.reset()
    for _ in range(3):
        obs, _, terminated, *_ = env.step(NOTHING)
    assert terminated.tolist() == [True, False, False, True]
    assert obs["state"][:, 1].tolist() == [3] * 4


def test_a_switched_slot_is_reset_by_its_next_step(make):
    env = make("toy/count-10")
    env.reset(seed=0)
    env.step(NOTHING)
    env.switch_task([2], "toy/count-50")
    obs, rewards, _, _, info = env.step(NOTHING)
    assert obs["state"][:, 1].tolist() == [2, 2, 0, 2]
    assert rewards.tolist() == [2, 2, 0, 2]
    assert info["steps"].tolist() == [1, 1, 0, 1]


def test_a_slot_that_switches_in_mid_run_plays_its_new_task(make_everywhere):
    env = make_everywhere("toy/count-10")
    env.reset(seed=0)
    for _ in range(4):
        env.step(NOTHING)  # commands differ in their row alone by now
    env.switch_task([0, 3], "toy/count-50")
    rewards = [env.step(NOTHING)[1].tolist() for _ in range(3)]
    assert rewards == [[0, 5, 5, 0], [1, 6, 6, 1], [2, 7, 7, 2]]


def test_a_slot_may_switch_while_others_are_pending(make_any):
    env = make_any("toy/count-10", num_workers=2)
    env.reset(seed=0)
    env.send(NOTHING[:2], [1, 3])
    env.switch_task([0], "toy/count-50")
    ready = env.recv(2)
    assert sorted(ready.slots.tolist()) == [1, 3]
    assert ready.rewards.tolist() == [1, 1]
    assert env.step(NOTHING)[1].tolist() == [0, 2, 1, 2]


def test_a_reset_that_is_cut_short_before_it_is_sent_is_made_up_for(make, monkeypatch):
    env = make("toy/count-3")
    env.reset(seed=0)
    for _ in range(4):
        env.step(NOTHING)

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(env._episodes, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        env.step(NOTHING)
    for _ in range(4):
        obs, *_, info = env.step(NOTHING)
    assert info["steps"].tolist() == [0] * 4
    assert obs["state"][:, 0].tolist() == env.episodes.tolist()


def test_a_failure_in_a_longer_chunk_delivers_the_last_complete_observation(make_any):
    tasks = [partial(CrashingEnv, at=2, length=10), partial(CountingEnv, length=10)]
    for num_workers in (0, 2):
        env = make_any(tasks, num_envs=2, num_workers=num_workers, frames="every")
        env.reset(seed=5)
        obs, *_ = env.step(NOTHING[:2])
        last = obs["state"][0].tolist()
        env.send(np.zeros((1, 3, 2), np.float32), [0])
        ready = env.recv(1)
        assert ready.info["error"][0].kind == "exception"
        assert ready.obs["state"][0, 0].tolist() == last


def test_a_failure_after_a_chunk_of_which_all_was_delivered_delivers_its_last_step(make_any):
    tasks = [partial(CrashingEnv, at=4, length=10), partial(CountingEnv, length=10)]
    for num_workers in (0, 2):
        env = make_any(tasks, num_envs=2, num_workers=num_workers, frames="every")
        env.reset(seed=5)
        obs, *_ = env.step_chunk(np.zeros((2, 3, 2), np.float32))
        last = obs["state"][0, 2].tolist()
        obs, *_, info = env.step(NOTHING[:2])
        assert info["error"][0].kind == "exception"
        assert obs["state"][0].tolist() == last


def test_slots_that_are_not_reset_keep_the_last_step_of_a_chunk(make):
    env = make(partial(CountingEnv, length=10), frames="every")
    env.reset(seed=5)
    env.step_chunk(np.zeros((4, 3, 2), np.float32))
    mask = np.array([True, False, False, False])
    obs, _ = env.reset(options={"reset_mask": mask})
    assert obs["state"][:, 1].tolist() == [0, 3, 3, 3]


@pytest.mark.parametrize("frames", ["last", "every"])
@pytest.mark.parametrize("check_lifetimes", [False, True])
def test_a_failure_after_others_were_reset_delivers_the_last_complete_observation(
    make_any, frames, check_lifetimes
):
    tasks = [partial(CountingEnv, length=10), partial(CrashingEnv, at=2, length=10)]
    how = {"num_envs": 2, "frames": frames, "check_lifetimes": check_lifetimes}
    for num_workers in (0, 2):
        env = make_any(tasks, num_workers=num_workers, **how)
        env.reset(seed=5)
        obs, *_ = env.step(NOTHING[:2])
        last = obs["state"][1].tolist()
        env.reset(options={"reset_mask": np.array([True, False])})
        obs, *_, info = env.step(NOTHING[:2])
        assert info["error"][1].kind == "exception"
        assert obs["state"][1].tolist() == last


def test_a_failure_after_others_went_their_own_way_delivers_the_last_complete_observation(make_any):
    class HalfWritingEnv(CrashingEnv):
        """Spoils the arrays that it is to write into before it fails."""

        buffers = None

        def bind(self, buffers):
            self.buffers = buffers

        def step(self, action):
            try:
                return super().step(action)
            except Exception:
                self.buffers["state"][...] = -1
                raise

    tasks = [partial(CountingEnv, length=10), partial(HalfWritingEnv, at=3, length=10)]
    for num_workers in (0, 2):
        env = make_any(tasks, num_envs=2, num_workers=num_workers)
        env.reset(seed=5)
        env.step(NOTHING[:2])
        env.send(NOTHING[:1], [1])
        last = env.recv(1).obs["state"][0].tolist()
        obs, *_, info = env.step(NOTHING[:2])
        assert info["error"][1].kind == "exception"
        assert obs["state"][1].tolist() == last


def test_a_slot_cannot_switch_to_a_task_with_other_spaces(make_everywhere):
    env = make_everywhere(CountingEnv, max_restarts=0)
    env.reset(seed=0)
    with pytest.raises(polyarm.PolyarmError, match="spaces"):
        env.switch_task([1], NoisyEnv)
