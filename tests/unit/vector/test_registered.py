"""Gymnasium ids that a script has registered, and no module that workers could import."""

from __future__ import annotations

import cloudpickle
import gymnasium
import numpy as np
import pytest

from polyarm.testing import CountingEnv


@pytest.fixture
def register():
    """`gymnasium.register`, undone after the test."""
    before = dict(gymnasium.registry)
    yield gymnasium.register
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_an_id_that_the_script_has_registered_is_known_to_every_engine(make, register):
    class ScriptEnv(CountingEnv):
        def __init__(self, start=0, **options):
            super().__init__(**options)
            self.start = start

        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, float(self.start + self.step_number), *rest

    register("Script-v3", entry_point=ScriptEnv, kwargs={"start": 10}, max_episode_steps=2)
    env = make("gym/Script-v3", length=50)
    env.reset()
    assert env.step(np.zeros((4, 2), np.float32))[1].tolist() == [11] * 4
    assert env.step(np.zeros((4, 2), np.float32))[3].all()
    assert env.provenance[0]["task"] == "gym/Script-v3"


def test_an_id_of_gymnasium_is_what_the_script_has_made_of_it(make, register):
    pole = gymnasium.registry["CartPole-v1"].entry_point
    del gymnasium.registry["CartPole-v1"]
    register("CartPole-v1", entry_point=lambda: CountingEnv(length=3))
    register("ShortPole-v0", entry_point=pole, max_episode_steps=1)
    assert make("gym/CartPole-v1").reset(seed=7)[0]["state"][:, 0].tolist() == [7, 8, 9, 10]
    env = make("gym/ShortPole-v0")
    env.reset()
    assert env.step(np.zeros(4, np.int64))[3].all()


def test_the_slots_of_a_registered_id_share_its_registration(make_any, register, monkeypatch):
    packed = []
    dumps = cloudpickle.dumps
    monkeypatch.setattr(cloudpickle, "dumps", lambda value: packed.append(value) or dumps(value))

    class TableEnv(CountingEnv):
        def __init__(self, table):
            super().__init__()
            self.table = table

    table = np.zeros(1000)
    register("Table-v0", entry_point=TableEnv, kwargs={"table": table})
    env = make_any("gym/Table-v0", num_envs=16)
    env.switch_task([3], "gym/Table-v0")
    assert len({id(spec.options["_registration"][1]) for spec in env.specs}) == 1
    assert len(packed) <= 5
    table[0] = 1
    changed = make_any("gym/Table-v0", num_workers=1, num_envs=2)
    assert [one[0] for one in changed.get_attr("table")] == [1, 1]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_each_env_has_options_of_its_own(make_any, register, num_workers):
    class Hoarding(CountingEnv):
        def __init__(self, held):
            super().__init__()
            self.held = held
            held.append(len(held))

    register("Hoarding-v0", entry_point=Hoarding)
    given = []
    env = make_any("gym/Hoarding-v0", num_workers=num_workers, held=given)
    assert env.get_attr("held") == ([0],) * 4
    assert given == []
