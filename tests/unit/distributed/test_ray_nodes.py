"""One policy for all nodes, and nodes that cannot play; without Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

import polyarm
from polyarm.contracts import Batch, EpisodeKey, PolicyOutput
from polyarm.distributed.ray import hosts as hosts_module
from polyarm.distributed.ray import serving
from polyarm.distributed.ray.central import PolicyServer
from polyarm.distributed.ray.hosts import Host, Hosts
from polyarm.distributed.ray.node import Facts
from polyarm.distributed.ray.placement import Node, place
from polyarm.distributed.ray.serving import ServedPolicy
from polyarm.errors import HostLimit, InvalidCall, MissingExtra, RunConflict, WorkerError
from polyarm.rollout.plan import group_tasks


def node(cpus=4.0, gpus=0.0, memory=8 << 30):
    return Node("0123456789ab", "10.0.0.1", cpus, gpus, memory)


# One policy for all nodes.


class Recording:
    """Acts by noise; remembers what it was asked about."""

    def __init__(self):
        self.begun, self.batches = [], []

    def begin(self, episodes):
        self.begun += episodes

    def act(self, batch):
        self.batches.append(batch.keys)
        return PolicyOutput(batch.noise(2, 4), {"row": np.arange(len(batch))})


def question(count, first):
    chosen = tuple(EpisodeKey("toy", "count-3", first + row) for row in range(count))
    return Batch(
        {"state": np.zeros((count, 4), np.float32)},
        chosen,
        ("",) * count,
        np.zeros(count, np.int64),
        tuple(key.generator() for key in chosen),
    )


def toy_group():
    return group_tasks(["toy/count-3"], polyarm.EvalOptions())[0]


def test_what_all_playing_nodes_ask_is_decided_at_once():
    policy, one, two = Recording(), question(2, 0), question(3, 10)

    async def play():
        server = PolicyServer(1, 60.0, str(Path.cwd()))
        await server.load(policy, toy_group())
        await server.begin("one", one.keys)
        await server.begin("two", two.keys)
        await server.begin("three", two.keys)
        await server.forget("three")
        return await asyncio.gather(server.act("one", one), server.act("two", two))

    first, second = asyncio.run(play())
    assert policy.batches == [one.keys + two.keys]
    assert second.extras["row"].tolist() == [2, 3, 4]
    noise = one.keys[1].generator().standard_normal((2, 4), dtype=np.float32)
    np.testing.assert_array_equal(first.actions[1], noise)


def test_a_node_that_was_given_up_is_not_answered():
    async def play():
        server = PolicyServer(1, 60.0, str(Path.cwd()))
        await server.load(Recording(), toy_group())
        await server.forget("one")
        await server.act("one", question(1, 0))

    with pytest.raises(InvalidCall, match="given up"):
        asyncio.run(play())


def test_observations_of_several_parts_share_a_batch_too():
    policy = Recording()
    one, two = (
        replace(each, obs=(each.obs, each.steps)) for each in (question(1, 0), question(2, 5))
    )

    async def play():
        server = PolicyServer(1, 60.0, str(Path.cwd()))
        await server.load(policy, toy_group())
        await server.begin("one", one.keys)
        await server.begin("two", two.keys)
        async with asyncio.timeout(10):
            await asyncio.gather(server.act("one", one), server.act("two", two))

    asyncio.run(play())
    assert policy.batches == [one.keys + two.keys]


def test_a_question_that_cannot_be_put_to_the_policy_is_refused_and_the_next_one_answered():
    unreadable = replace(question(1, 0), obs="no array")

    async def play():
        server = PolicyServer(1, 60.0, str(Path.cwd()))
        await server.load(Recording(), toy_group())
        await server.begin("one", unreadable.keys)
        async with asyncio.timeout(10):
            with pytest.raises(AttributeError, match="'str' object has no attribute"):
                await server.act("one", unreadable)
            return await server.act("one", question(1, 0))

    assert asyncio.run(play()).extras["row"].tolist() == [0]


def test_a_central_policy_that_no_gpu_is_left_for_ends_the_run(monkeypatch):
    monkeypatch.setattr(serving, "LONG_S", 0.0)
    there = [node(gpus=1.0)]
    ray = MagicMock()
    ray.exceptions = Mortal.exceptions
    ray.wait = lambda answers, timeout: (there.clear() or [], answers)
    cluster = SimpleNamespace(ray=ray, nodes=lambda: there)
    served = ServedPolicy(cluster, polyarm.EvalOptions(), lambda: False)
    with pytest.raises(WorkerError, match="no node with a GPU is left"):
        served.load(None, toy_group())
    assert ray.remote().options.call_args.kwargs["num_gpus"] == 0.5


def test_a_stop_ends_the_wait_for_a_gpu_that_others_have():
    ray = MagicMock()
    ray.exceptions = Mortal.exceptions
    waited = []
    ray.wait = lambda answers, timeout: waited.append(timeout) or ([], answers)
    cluster = SimpleNamespace(ray=ray, nodes=lambda: [node(gpus=1.0)])
    served = ServedPolicy(cluster, polyarm.EvalOptions(), lambda: len(waited) > 2)
    served.load(None, toy_group())
    assert len(waited) == 3
    assert max(waited) < 1
    assert not served.lost


# Nodes that cannot play.


class Answers:
    """Stands for Ray where a node has answered."""

    def __init__(self, facts):
        self.facts = facts

    def wait(self, answers, timeout):
        return answers, []

    def get(self, answer):
        return self.facts


@pytest.mark.parametrize(
    ("facts", "error", "said"),
    [
        (Facts({"tasks": {}}, ["mujoco for metaworld (pip install it)"]), MissingExtra, "mujoco"),
        (Facts({"tasks": {"a": {"mujoco": "3.4"}}}, []), RunConflict, "'3.3' here, '3.4' there"),
    ],
)
def test_a_node_whose_episodes_would_be_others_is_refused_by_name(facts, error, said):
    options = polyarm.EvalOptions(ray="auto")
    cluster = SimpleNamespace(ray=Answers(facts))
    hosts = Hosts(cluster, options, [], policy=False)
    host = Host(node(), "one", None, place(node(), 2, 0, policy=False, frames=False), "answer")
    with pytest.raises(error, match=said) as refused:
        hosts.examine(host, {"tasks": {"a": {"mujoco": "3.3", "env": "source"}}})
    assert "10.0.0.1 (01234567)" in str(refused.value)
    assert not host.ready


class Gone(Exception):
    """As Ray's error for an actor that died."""


class Raised(Gone):
    """As Ray's error for what was raised there."""

    @property
    def cause(self):
        return self.__cause__


class Mortal(Answers):
    """Stands for Ray where actors die, or raise, before they have answered."""

    exceptions = SimpleNamespace(RayError=Gone, RayTaskError=Raised)

    def __init__(self):
        pass

    def kill(self, actor):
        pass

    def get(self, answer):
        if isinstance(answer, Exception):
            raise answer if isinstance(answer, Gone) else Raised from answer
        return answer


def hosts_that_say(monkeypatch, *answers):
    """One node, whose actors answer so in turn."""
    said = list(answers)

    def start(self, node):
        name = f"actor {len(said)}"
        self._hosts[name] = Host(node, name, None, None, said.pop(0))

    monkeypatch.setattr(Hosts, "_start", start)
    cluster = SimpleNamespace(ray=Mortal(), nodes=lambda: [node()])
    return Hosts(cluster, polyarm.EvalOptions(ray="auto"), [], policy=False)


def test_an_actor_that_dies_before_it_has_said_anything_is_started_again(monkeypatch):
    facts = Facts({"tasks": {}}, [])
    assert hosts_that_say(monkeypatch, Gone("oom"), Gone("oom"), facts).first_facts() is facts
    with pytest.raises(WorkerError, match="died 3 times in a row: out of memory"):
        hosts_that_say(monkeypatch, *[Gone("…\nout of memory")] * 3).first_facts()


def test_what_a_node_raises_before_the_run_ends_it_unless_it_is_its_own_fault(monkeypatch):
    with pytest.raises(WorkerError, match=r"node 10.0.0.1 \(01234567\) failed: no luck"):
        hosts_that_say(monkeypatch, OSError("no luck")).first_facts()
    hosts = hosts_that_say(monkeypatch, ImportError("no luck"))
    with pytest.raises(ImportError, match="no luck"):
        hosts.first_facts()
    assert len(hosts.unfit) == 1


def test_a_node_in_which_not_even_one_env_fits_is_left_out(caplog):
    """Videos cost memory, too, where the policy sees none of them."""
    small = node(memory=200 << 20)  # Meta-World's envs take 110 MiB, or 290 with a camera
    cluster = SimpleNamespace(ray=None, nodes=lambda: [small])
    options = polyarm.EvalOptions(record="all")
    hosts = Hosts(cluster, options, group_tasks(["metaworld/reach-v3"], options), policy=False)
    hosts.look()
    assert "node 10.0.0.1 (01234567) is left out" in caplog.text
    with pytest.raises(HostLimit, match="200 MiB, one env takes 290 MiB"):
        hosts.require_some()


def test_who_waits_long_for_cores_is_told_so_once_each_time(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(hosts_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cluster = SimpleNamespace(ray=None, nodes=list)
    hosts = Hosts(cluster, polyarm.EvalOptions(), [], policy=False)
    placement = place(node(), 2, 0, policy=False, frames=False)
    playing = hosts._hosts["one"] = Host(node(), "one", None, placement, None, ready=True)

    def look(at):
        now[0] = at
        hosts.look()
        return caplog.text.count("ray status")

    assert look(100) == 0
    playing.ready = False  # as after a loss of all of them
    assert look(105) == 0
    assert [look(111), look(200)] == [1, 1]
    playing.ready = True
    assert look(300) == 1
    playing.ready = False
    assert [look(305), look(311), look(400)] == [1, 2, 2]
