"""Gymnasium envs by id and from callables."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import gymnasium
import pytest

from polyarm.contracts import EnvSpec
from polyarm.errors import BuildError, InvalidCall, UnknownName
from polyarm.suites.gymnasium import CallableSuite, GymnasiumSuite

GYM = GymnasiumSuite()
CALLABLE = CallableSuite()
CARTPOLE = "gymnasium.envs.classic_control.cartpole"


def callable_spec(factory: object, **options: object) -> EnvSpec:
    return EnvSpec("callable", "mine", options={"factory": factory, **options})


def test_every_registered_id_is_a_task_with_its_horizon() -> None:
    tasks = {task.name: task.max_steps for task in GYM.tasks()}
    assert tasks["gym/CartPole-v1"] == 500
    assert len(tasks) == len(gymnasium.registry)


@pytest.mark.filterwarnings("ignore:.*latest versioned environment")
@pytest.mark.parametrize("task", ["CartPole-v1", "CartPole", f"{CARTPOLE}:CartPole-v1"])
def test_an_id_that_gymnasium_accepts_is_accepted_and_made(task: str) -> None:
    spec = GYM.check(EnvSpec("gym", task))
    GYM.preload(spec)
    env = GYM.make(spec)
    assert env.unwrapped.spec is not None
    assert env.unwrapped.spec.id == "CartPole-v1"
    env.close()


@pytest.mark.parametrize("task", ["CartPole-v99", "CartPol", "not an id"])
def test_an_unknown_id_is_refused(task: str) -> None:
    with pytest.raises(UnknownName, match="unknown task 'gym/"):
        GYM.check(EnvSpec("gym", task))


@pytest.fixture
def registered() -> Iterator[None]:
    """What is registered in a test is gone after it."""
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_an_id_that_a_script_has_registered_is_made_where_nobody_knows_it(registered: None) -> None:
    import gymnasium.envs.classic_control.cartpole as cartpole

    class Mine(cartpole.CartPoleEnv):
        pass

    gymnasium.register("Mine-v0", entry_point=Mine, max_episode_steps=7)
    spec = GYM.check(EnvSpec("gym", "Mine-v0", options={"sutton_barto_reward": True}))
    assert GYM.check(spec) == spec
    assert GYM.make(spec).unwrapped.__class__ is Mine
    del gymnasium.registry["Mine-v0"]
    GYM.preload(spec)
    env = GYM.make(spec)
    assert env.unwrapped.__class__.__name__ == "Mine"
    assert env.unwrapped._sutton_barto_reward is True
    assert env.spec is not None
    assert (env.spec.id, env.spec.max_episode_steps) == ("Mine-v0", 7)


def test_an_entry_point_in_the_script_itself_travels(
    registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import __main__

    def entry() -> Any:
        return gymnasium.make("CartPole-v1")

    monkeypatch.setattr(__main__, "entry", entry, raising=False)
    gymnasium.register("Main-v0", entry_point="__main__:entry")
    spec = pickle.loads(pickle.dumps(GYM.check(EnvSpec("gym", "Main-v0"))))
    monkeypatch.delattr(__main__, "entry")
    del gymnasium.registry["Main-v0"]
    assert type(GYM.make(spec).unwrapped).__name__ == "CartPoleEnv"


def test_an_id_that_cannot_travel_is_made_here_and_answered_with_a_hint_elsewhere(
    registered: None,
) -> None:
    lock = threading.Lock()

    def entry() -> Any:
        with lock:
            return gymnasium.make("CartPole-v1")

    gymnasium.register("Locked-v0", entry_point=entry)
    spec = GYM.check(EnvSpec("gym", "Locked-v0"))
    assert type(GYM.make(spec).unwrapped).__name__ == "CartPoleEnv"
    del gymnasium.registry["Locked-v0"]
    with pytest.raises(UnknownName, match="gym/module:EnvId-v0"):
        GYM.make(spec)


def test_an_id_whose_kwargs_refuse_to_be_pickled_is_made_here(registered: None) -> None:
    class Refusing:
        def __reduce__(self) -> Any:
            raise ValueError("not me")

        def __deepcopy__(self, memo: Any) -> Any:
            return self  # `gymnasium.make` copies kwargs

    def entry(held: Any) -> Any:
        return gymnasium.make("CartPole-v1")

    gymnasium.register("Refusing-v0", entry_point=entry, kwargs={"held": Refusing()})
    spec = GYM.check(EnvSpec("gym", "Refusing-v0"))
    assert type(GYM.make(spec).unwrapped).__name__ == "CartPoleEnv"


@pytest.mark.parametrize(
    ("task", "mode", "renders"),
    [
        ("CartPole-v1", None, False),
        ("CartPole-v1", "rgb_array", False),
        ("InvertedPendulum-v5", None, False),
        ("InvertedPendulum-v5", "rgb_array", True),
        ("InvertedPendulum-v5", "human", False),
        ("module_of_somebody:Env-v0", None, True),
    ],
)
def test_an_env_that_is_not_gymnasiums_may_render_and_its_mujoco_envs_where_asked_to(
    task: str, mode: str | None, renders: bool
) -> None:
    options = {} if mode is None else {"render_mode": mode}
    assert GYM.renders(EnvSpec("gym", task, options=options)) is renders


def test_options_reach_the_env() -> None:
    env = GYM.make(EnvSpec("gym", "CartPole-v1", options={"max_episode_steps": 7}))
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7
    env.close()


@pytest.mark.parametrize("suite", [GYM, CALLABLE])
def test_cameras_are_refused(suite: GymnasiumSuite | CallableSuite) -> None:
    spec = EnvSpec("gym", "CartPole-v1", cameras=("front",), options={"factory": b""})
    with pytest.raises(UnknownName, match=r"camera.*'front'.*leave cameras empty"):
        suite.check(spec)


def test_a_pickled_callable_builds_its_env() -> None:
    factory = cloudpickle.dumps(lambda: gymnasium.make("CartPole-v1"))
    spec = CALLABLE.check(callable_spec(factory))
    CALLABLE.preload(spec)
    env = CALLABLE.make(spec)
    assert isinstance(env, gymnasium.Env)
    env.close()


def test_a_named_callable_builds_its_env() -> None:
    spec = CALLABLE.check(callable_spec(f"{CARTPOLE}:CartPoleEnv"))
    CALLABLE.preload(spec)
    assert type(CALLABLE.make(spec)).__name__ == "CartPoleEnv"


def test_a_named_callable_that_is_not_there_is_answered_with_the_closest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'CartPoleEnv'"):
        CALLABLE.make(callable_spec(f"{CARTPOLE}:CartPoleEnw"))


@pytest.mark.parametrize("factory", [None, "no_colon", 3])
def test_something_that_is_no_factory_is_refused(factory: object) -> None:
    with pytest.raises(InvalidCall, match="zero-argument callable"):
        CALLABLE.check(callable_spec(factory))


def test_options_beside_the_factory_are_refused() -> None:
    with pytest.raises(UnknownName, match="'speed'"):
        CALLABLE.check(callable_spec(b"", speed=2))


def test_a_factory_that_returns_no_env_says_so() -> None:
    with pytest.raises(BuildError, match="returned dict"):
        CALLABLE.make(callable_spec("builtins:dict"))
