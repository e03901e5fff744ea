"""What a batch on many nodes remembers and says of those that are lost; without Ray."""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace

import pytest

from polyarm.distributed.ray.attributes import Attributes
from polyarm.distributed.ray.envs import RayVectorEnv
from polyarm.distributed.ray.placement import Node
from polyarm.distributed.ray.shard import Shard
from polyarm.errors import EnvCallError, SlotError, WorkerError


class Gone(Exception):
    """As Ray's error for an actor that died."""


class Raised(Gone):
    """As Ray's error for what was raised there."""

    @property
    def cause(self):
        return self.__cause__


class NodeEnvs:
    """Two slots as their node has them; an env refuses what is to be "refused"."""

    def __init__(self):
        self.gone = ""
        self.labels = ["", ""]
        self.ask = SimpleNamespace(remote=lambda *call: partial(self.answer, *call))

    def answer(self, method, name, values):
        if self.gone:
            raise Gone(self.gone)
        failures = []
        for slot, value in enumerate(values):
            if value == "refused":
                failures.append(SlotError("exception", slot, "toy", "call", 0, "not this one"))
            else:
                self.labels[slot] = value
        if failures:
            raise Raised from pickle.loads(pickle.dumps(EnvCallError(name, failures)))


@pytest.fixture
def envs(monkeypatch):
    """Two nodes with two slots each."""
    pytest.importorskip("ray", reason="pip install 'polyarm[ray]'")
    envs = RayVectorEnv.__new__(RayVectorEnv)
    places = [Node(name * 8, f"10.0.0.{number}", 1.0, 0.0, 0) for number, name in enumerate("ab")]
    envs._shards = [Shard(2 * each, 2 * each + 2, places[each], NodeEnvs()) for each in (0, 1)]
    envs._ray = SimpleNamespace(
        get=lambda call: call(),
        exceptions=SimpleNamespace(RayError=Gone, RayTaskError=Raised),
    )
    envs._arguments = {"max_restarts": 3}
    envs._attributes = Attributes()
    envs._builder = SimpleNamespace(
        build_again=lambda shard: setattr(shard, "actor", NodeEnvs()),
    )
    envs.num_envs, envs.closed = 4, False
    return envs


def labels(envs):
    return [label for shard in envs._shards for label in shard.actor.labels]


def build_again(envs):
    for shard in envs._shards:
        shard.lost = "power cut"
    envs._revive()


def test_a_value_that_one_env_refuses_stays_with_the_others_when_all_are_built_again(envs):
    with pytest.raises(EnvCallError, match=r"slot 2 .*not this one"):
        envs.set_attr("label", ["a", "b", "refused", "d"])
    assert labels(envs) == ["a", "b", "", "d"]
    build_again(envs)
    assert labels(envs) == ["a", "b", "", "d"]
    envs.set_attr("label", "all")
    with pytest.raises(EnvCallError, match=r"slot 1 .*not this one"):
        envs.set_attr("label", ["e", "refused", "g", "h"])
    build_again(envs)
    assert labels(envs) == ["e", "all", "g", "h"]


def test_new_envs_that_refuse_what_the_lost_ones_took_say_so(envs):
    envs.set_attr("label", "first")
    envs._attributes.note(envs._shards[0], "label", ["a", "refused", "c", "d"], None)
    with pytest.raises(EnvCallError, match=r"slot 1 .*not this one"):
        build_again(envs)


def test_a_value_that_a_lost_node_has_not_taken_is_the_others_alone(envs):
    envs._shards[0].actor.gone = "power cut"
    with pytest.raises(WorkerError, match=r"slots \[0, 1\] were lost"):
        envs.set_attr("label", "new")
    build_again(envs)
    assert labels(envs) == ["", "", "new", "new"]


def test_each_lost_node_is_named_with_its_slots_and_its_reason(envs):
    for shard, reason in zip(envs._shards, ("out of memory", "power cut"), strict=True):
        shard.actor.gone = reason
    with pytest.raises(WorkerError) as lost:
        envs.set_attr("label", "new")
    assert str(lost.value) == (
        "slots [0, 1] were lost with node 10.0.0.0 (aaaaaaaa): out of memory;"
        " slots [2, 3] were lost with node 10.0.0.1 (bbbbbbbb): power cut;"
        " the next call builds them again"
    )
