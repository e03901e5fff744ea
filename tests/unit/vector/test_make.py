"""What `make_vec` is given: accepted as it is meant, or refused in one sentence, at once."""

from __future__ import annotations

import threading
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyarm import BuildError, InvalidCall, UnknownName, make_vec
from polyarm.testing import CountingEnv
from polyarm.vector.make import specify


@pytest.fixture
def refuse(monkeypatch):
    """The text of the error that `make_vec` raises, before it has made an engine."""

    def engine(*_, **__):
        raise AssertionError("an engine was made")

    monkeypatch.setattr("polyarm.vector.make.WorkerEngine", engine)

    def refused(error, tasks=CountingEnv, **arguments):
        with pytest.raises(error) as caught:
            make_vec(tasks, **{"num_envs": 2, **arguments})
        return str(caught.value)

    return refused


def test_a_single_camera_need_not_be_in_a_list(make_any):
    env = make_any("toy/count-3", cameras="wrist", image_size=(4, 4))
    assert env.specs[0].cameras == ("wrist",)


@pytest.mark.parametrize("size", [6, np.int64(6), [6, 6], np.array([6, 6])])
def test_an_image_size_may_be_one_int_or_any_pair(make_any, size):
    env = make_any("toy/count-3", cameras=("front",), image_size=size)
    assert env.single_observation_space["pixels/front"].shape == (6, 6, 3)
    assert type(env.specs[0].image_size[0]) is int


@pytest.mark.parametrize("size", [84.5, (84,), (0, 84), "84", True, (84, True)])
def test_another_image_size_is_refused(refuse, size):
    text = refuse(InvalidCall, "toy/count-3", image_size=size)
    assert text.startswith("image_size must be (height, width) in pixels, or one int, found")


@pytest.mark.parametrize("cameras", [None, 3, ["front", 3]])
def test_cameras_that_are_no_names_are_refused(refuse, cameras):
    text = refuse(InvalidCall, "toy/count-3", cameras=cameras)
    assert text == f"cameras must be a list of names, found {cameras}"


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("CartPole-v1", "unknown task 'CartPole-v1'; did you mean 'gym/CartPole-v1'? Valid: "),
        ("reach-v3", "unknown task 'reach-v3'; did you mean 'metaworld/reach-v3'? Valid: "),
        (["mt10"], "unknown task 'mt10'; did you mean 'metaworld/mt10'? Valid: "),
        ("nothing", "unknown task 'nothing'. Valid: gym/<task>, "),
    ],
    ids=["gym", "task", "set", "nowhere"],
)
def test_a_task_without_its_suite_is_found_there(refuse, tasks, message):
    assert refuse(UnknownName, tasks).startswith(message)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (CountingEnv(), "an instance of CountingEnv: pass a callable that builds the env"),
        ([CountingEnv, CountingEnv()], "an instance of CountingEnv: pass a callable"),
        (None, "found None"),
        ([None], "found None"),
    ],
    ids=["env", "list of envs", "none", "list of none"],
)
def test_what_is_no_task_is_refused(refuse, tasks, message):
    assert message in refuse(InvalidCall, tasks)


def test_an_env_cannot_be_switched_to(make_any):
    with pytest.raises(InvalidCall, match="an instance of CountingEnv"):
        make_any("toy/count-3").switch_task([0], CountingEnv())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_envs", 2.0, "must be an int of at least 1, found 2.0"),
        ("num_envs", True, "must be an int of at least 1, found True"),
        ("num_workers", False, "must be None or an int of at least 0, found False"),
        ("step_timeout_s", True, "must be a number of seconds above 0, found True"),
        ("num_workers", 1.0, "must be None or an int of at least 0, found 1.0"),
        ("max_restarts", -1, "must be an int of at least 0, found -1"),
        ("memory_limit", 0, "must be None or an int of at least 1, found 0"),
        ("step_timeout_s", None, "must be a number of seconds above 0, found None"),
        ("step_timeout_s", 0, "must be a number of seconds above 0, found 0"),
        ("build_timeout_s", float("nan"), "must be a number of seconds above 0, found nan"),
        ("step_timeout_s", 10**400, f"must be a number of seconds above 0, found {10**400}"),
        ("step_timeout_s", "3", "must be a number of seconds above 0, found '3'"),
        ("display", None, "must be a name, found None"),
        ("observer_options", 5, "must be a dict or None, found 5"),
        ("observed_slots", 5, "must be None or numbers of slots, 0 to 1, found 5"),
        ("observed_slots", [2], "must be None or numbers of slots, 0 to 1, found [2]"),
        ("observed_slots", [-1], "must be None or numbers of slots, 0 to 1, found [-1]"),
        ("observed_slots", ["a"], "must be None or numbers of slots, 0 to 1, found ['a']"),
        (
            "observed_slots",
            [True, False],
            "must be None or numbers of slots, 0 to 1, found [True, False]",
        ),
    ],
)
def test_counts_and_durations_that_cannot_be_are_refused(refuse, name, value, message):
    assert refuse(InvalidCall, **{name: value}) == f"{name} {message}"


def test_a_misspelt_argument_is_looked_for_among_make_vecs_own(refuse):
    text = refuse(UnknownName, num_worker=2)
    assert text.startswith("unknown option 'num_worker'; did you mean 'num_workers'")
    assert "factory" not in text
    text = refuse(UnknownName, "metaworld/reach-v3", sucess="last")
    assert "did you mean 'success'? Valid: success, " in text


@pytest.mark.parametrize("option", ["num_worker", "n_workers", "step_timeout", "max_restart"])
def test_a_misspelt_argument_is_not_passed_on_to_a_suite_that_takes_anything(refuse, option):
    text = refuse(UnknownName, "gym/CartPole-v1", **{option: 1})
    assert text.startswith(f"unknown option '{option}'; did you mean '")
    assert text.endswith("? If it is the env's own, pass a callable that makes the env.")


@pytest.mark.parametrize(
    "option",
    ["render_mode", "max_episode_steps", "frame_skip", "n_frames", "frame", "camera", "task",
     "host", "info", "width", "max_steps", "num_agents", "obs_type", "reset_noise_scale"],
)  # fmt: skip
def test_options_of_envs_are_passed_on_though_they_resemble_an_argument(option):
    assert option in specify("gym/CartPole-v1", (), None, {option: 1}).options


def test_an_option_that_an_env_is_known_to_take_is_passed_on(make_any):
    class OwnEnv(CountingEnv):
        def __init__(self, num_worker=0, **options):
            super().__init__()
            self.own = num_worker, options

    before = dict(gymnasium.registry)
    try:
        gymnasium.register("Own-v0", entry_point=OwnEnv, kwargs={"auto_reset": True})
        env = make_any("gym/Own-v0", num_worker=5, auto_reset=False)
        assert env.get_attr("own")[0] == (5, {"auto_reset": False})
    finally:
        gymnasium.registry.clear()
        gymnasium.registry.update(before)


@pytest.mark.parametrize("hosts", ["local:foo", "raying", "slurm"])
def test_hosts_that_there_are_not_are_refused(refuse, hosts):
    assert refuse(UnknownName, hosts=hosts).startswith(f"unknown hosts '{hosts}'")


@pytest.mark.parametrize("tasks", ["toy/count-3", CountingEnv], ids=["suite", "callable"])
def test_a_default_seed_that_cannot_be_is_refused(refuse, tasks):
    assert "must be from 0 to " in refuse(InvalidCall, tasks, seed=2**62)


def test_a_seed_of_a_suite_is_refused_before_anything_is_started(refuse):
    assert f"found {2**31}" in refuse(InvalidCall, "toy/count-3", seed=2**31)


def test_tasks_that_no_slot_plays_are_named():
    tasks = ["toy/count-3", "toy/count-10", "toy/count-50"]
    with pytest.warns(UserWarning, match="1 slots play 1 of 3 tasks; none is left for") as caught:
        env = make_vec(tasks, num_envs=1, num_workers=0)
    env.close()
    assert env.tasks == ("toy/count-3",)
    assert str(caught[0].message).endswith("for toy/count-10, toy/count-50")
    assert caught[0].filename == __file__, "it points at the caller's line"


@pytest.mark.parametrize("seconds", [np.float32(3), np.int64(3), Fraction(7, 2), 10**300])
def test_any_number_is_a_duration(make_any, seconds):
    env = make_any(CountingEnv, num_workers=1, step_timeout_s=seconds, reset_timeout_s=seconds)
    env.reset(seed=0)
    env.send(np.zeros((4, 2), np.float32))
    assert len(env.recv(4, timeout_s=seconds).slots) == 4


def test_calls_with_what_makes_no_sense_are_refused(make):
    env = make(CountingEnv)
    with pytest.raises(InvalidCall, match="options must be a dict or None, found 5"):
        env.reset(options=5)
    with pytest.raises(InvalidCall, match="recv waits for a number of slots, found '1'"):
        env.recv("1")
    env.reset(seed=0)


def test_a_callable_that_cannot_be_sent_says_so(refuse):
    lock = threading.Lock()

    def locked():
        return lock

    assert "locked cannot be sent to a worker: TypeError: cannot pickle" in refuse(
        InvalidCall, locked
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spaces.Discrete(3), spaces.Discrete(9)),
        (spaces.Discrete(3), spaces.Box(0, 3, (), np.int64)),
        (spaces.MultiBinary(2), spaces.Box(0, 1, (2,), np.int8)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2])),
    ],
)
def test_envs_whose_observations_mean_different_things_share_no_batch(one, other):
    def env(space):
        class Env(gymnasium.Env):
            observation_space, action_space = spaces.Dict(x=space), spaces.Discrete(2)

        return Env

    with pytest.raises(BuildError, match="cannot share a batch"):
        make_vec([env(one), env(other)], num_envs=2, num_workers=0)
    make_vec([env(one), env(one)], num_envs=2, num_workers=0).close()
