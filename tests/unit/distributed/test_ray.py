"""Who plays what, with how much of a node, and how parts of a batch become one; without Ray."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from ray_cluster import fail_on_remains

import polyarm
from polyarm.contracts import EpisodeKey
from polyarm.distributed.ray.cluster import Cluster
from polyarm.distributed.ray.dealing import Deal, Pace
from polyarm.distributed.ray.guard import MARK
from polyarm.distributed.ray.placement import Node, deal_slots, emptiest, place
from polyarm.distributed.ray.player import RayPlayer
from polyarm.distributed.ray.trees import concatenated, merged_infos, rows
from polyarm.errors import (
    HostLimit,
    InvalidCall,
    MissingExtra,
    UnknownName,
)
from polyarm.rollout.schedule import Schedule
from polyarm.vector.episodes import Episodes


def keys(*tasks, count=6):
    return [EpisodeKey("toy", task, index) for task in tasks for index in range(count)]


def tasks(dealt):
    return sorted(key.task for key in dealt)


# Dealing.


def test_a_slot_that_has_played_an_episode_gets_another_of_its_task():
    deal = Deal(keys("a", "b", "c", "d"), max_attempts=3)
    first = deal.deal("one", 2, 0, 2)
    second = deal.deal("two", 2, 0, 2)
    assert tasks(first) == ["a", "b"]
    assert tasks(second) == ["c", "d"]
    for key in second:
        assert deal.finish("two", key) == 0
        (following,) = deal.deal("two", 2, 0, 2)
        assert following.task == key.task
    assert tasks(deal.deal("two", 2, 2, 2)) == ["c", "d"]


def test_a_node_goes_over_to_another_task_when_its_own_has_no_more():
    deal = Deal(keys("a", count=2) + keys("b", count=3), max_attempts=3)
    assert tasks(deal.deal("one", 2, 0, 1)) == ["a", "b"]
    assert tasks(deal.deal("one", 2, 3, 1)) == ["a", "b", "b"]


def test_nodes_share_what_is_left_at_the_end():
    deal = Deal(keys("a", count=5), max_attempts=3)
    assert len(deal.deal("one", 8, 4, 2)) == 3
    assert len(deal.deal("two", 8, 4, 2)) == 1
    assert len(deal.deal("two", 8, 4, 2)) == 1
    assert deal.waiting == 0
    assert deal.open == 5


def test_episodes_of_a_lost_node_are_dealt_again_first_and_count_once():
    deal = Deal(keys("a", count=3), max_attempts=1)
    (first,) = deal.deal("one", 1, 0, 1)
    assert deal.lose("one") == []
    assert deal.deal("two", 1, 0, 1) == [first]
    assert deal.finish("one", first) is None
    assert deal.finish("two", first) == 1
    assert deal.finish("two", first) is None
    assert deal.open == 2


def test_an_episode_that_all_nodes_die_of_is_given_up():
    deal = Deal(keys("a", count=1), max_attempts=1)
    lost = []
    for life in range(20):
        if deal.deal(f"node {life}", 1, 0, 1):
            lost += deal.lose(f"node {life}")
    assert lost == keys("a", count=1)
    assert deal.open == 0


class Slots:
    """Plays episodes of a fifth of a second or so; counts how often a slot changes its task."""

    def __init__(self, schedule, tasks):
        self.schedule = schedule
        self.tasks = tasks
        self.ends = {}
        self.now = 0.0
        self.switches = 0
        self.random = random.Random(1)

    def fill(self):
        for slot, task in enumerate(self.tasks):
            if slot not in self.ends and (key := self.schedule.next(task)) is not None:
                self.switches += key.name != task
                self.tasks[slot] = key.name
                self.ends[slot] = (self.now + self.random.uniform(0.1, 0.3), key)

    def play(self, until):
        """What ends until then."""
        finished = []
        self.fill()
        while self.ends and (first := min(self.ends.items(), key=lambda each: each[1][0])):
            slot, (end, key) = first
            if end > until:
                break
            self.now = end
            finished.append(key)
            del self.ends[slot]
            self.schedule.finished(key)
            self.fill()
        self.now = until
        return finished


def test_a_fast_node_changes_tasks_hardly_more_often_than_one_machine():
    episodes = keys(*"abcdefghij", count=100)
    names = list(dict.fromkeys(key.name for key in episodes))
    alone = Slots(Schedule(episodes), names[:8])
    assert len(alone.play(1000.0)) == len(episodes)
    node, deal, pace = Slots(Schedule([]), names[:8]), Deal(episodes, max_attempts=3), Pace()
    calls = deque()
    while deal.open:
        while len(calls) < 2:
            calls.append(deal.deal("one", 8, pace.ahead(8, 10), 1))
        node.schedule.add(calls.popleft())
        finished = node.play(node.now + 0.25)
        pace.finished(len(finished), node.now)
        assert all(deal.finish("one", key) == 0 for key in finished)
    assert node.switches <= alone.switches + 10
    assert node.now < 1.1 * len(episodes) * 0.2 / 8


def test_a_slow_node_is_given_no_more_than_one_episode_ahead_for_each_slot():
    pace = Pace()
    pace.finished(40, 1.0)
    assert pace.ahead(4, 2) > 40
    pace.finished(0, 60.0)
    assert pace.ahead(4, 2) == 4
    assert Pace().ahead(4, 2) == 4
    assert Pace().ahead(4, 1) == 1


# Placement.


def node(cpus=4.0, gpus=0.0, memory=8 << 30):
    return Node("0123456789ab", "10.0.0.1", cpus, gpus, memory)


def test_a_node_is_asked_for_what_its_envs_need():
    asked = place(node(), 8, 100 << 20, policy=True, frames=True)
    assert (asked.num_envs, asked.num_cpus, asked.num_gpus) == (8, 4.0, 0.0)
    assert asked.memory == 8 * (100 << 20)
    assert place(node(), None, 0, policy=True, frames=True).num_envs == 8
    assert place(node(), 2, 0, policy=True, frames=True).num_cpus == 2.0


@pytest.mark.parametrize(
    ("policy", "frames", "share"), [(True, False, 1.0), (False, True, 0.25), (False, False, 0.0)]
)
def test_a_gpu_is_for_the_policy_or_for_rendering(policy, frames, share):
    assert place(node(gpus=2.0), 4, 0, policy=policy, frames=frames).num_gpus == share


def test_no_more_envs_than_fit_into_a_node():
    assert place(node(memory=10 << 30), 64, 1 << 30, policy=False, frames=False).num_envs == 8
    with pytest.raises(HostLimit, match="1024 MiB, one env takes 2048 MiB"):
        place(node(memory=1 << 30), 64, 2 << 30, policy=False, frames=False)


def test_a_node_that_does_not_say_how_much_memory_it_has_is_asked_for_none():
    asked = place(node(memory=0), 4, 1 << 30, policy=False, frames=False)
    assert (asked.num_envs, asked.memory) == (4, 0)


def test_slots_are_dealt_by_cores():
    assert deal_slots(5, [node(1.0), node(1.0)], 0) == [(0, 3), (3, 5)]
    assert deal_slots(8, [node(1.0), node(3.0)], 0) == [(0, 2), (2, 8)]
    assert deal_slots(1, [node(1.0), node(9.0)], 0) == [(0, 0), (0, 1)]


def test_slots_that_do_not_fit_into_a_node_are_dealt_to_the_others():
    tight, roomy, small = node(8.0, memory=5 << 30), node(1.0), node(1.0, memory=1 << 30)
    assert deal_slots(9, [tight, roomy, small], 1 << 30) == [(0, 4), (4, 9), (9, 9)]
    assert deal_slots(9, [tight, node(1.0, memory=0)], 1 << 30) == [(0, 4), (4, 9)]
    with pytest.raises(HostLimit, match=r"11 envs of 1024 MiB do not fit .* 10 do"):
        deal_slots(11, [tight, roomy, small], 1 << 30)


def test_lost_slots_go_where_their_memory_is_and_else_to_the_fewest_per_core():
    busy, idle, small = node(1.0), node(4.0), node(8.0, memory=3 << 30)
    held = {busy: 1, idle: 3, small: 1}
    assert emptiest(held, 1, 1 << 30) is small
    assert emptiest(held, 2, 1 << 30) is idle
    assert emptiest(held, 2, 0) is small
    assert emptiest(held, 99, 1 << 30) is small


@pytest.mark.parametrize(
    ("gpus", "policy", "central"),
    [
        ((0, 1), "polyarm.testing:SleepyPolicy", True),
        ((1, 1), "polyarm.testing:SleepyPolicy", False),
        ((0, 0), "polyarm.testing:SleepyPolicy", False),
        ((0, 1), "expert", False),
    ],
)
def test_a_policy_is_central_if_some_nodes_have_a_gpu_and_it_may_use_one(gpus, policy, central):
    cluster = SimpleNamespace(nodes=lambda: [node(gpus=float(each)) for each in gpus])
    options = {"policy": policy, "ray": "auto"}
    assert RayPlayer(polyarm.EvalOptions(**options))._is_central(cluster) == central
    for asked in ("central", "replicate"):
        player = RayPlayer(polyarm.EvalOptions(**options, ray_policy=asked))
        assert player._is_central(cluster) == (asked == "central")


# Batches.


def test_parts_of_a_batch_become_one_and_come_apart_again():
    whole = {"a": np.arange(6).reshape(3, 2), "b": (np.arange(3.0), {"c": np.arange(3)})}
    parts = [rows(whole, 0, 1), rows(whole, 1, 3)]
    again = concatenated(parts)
    np.testing.assert_array_equal(again["a"], whole["a"])
    np.testing.assert_array_equal(again["b"][1]["c"], whole["b"][1]["c"])


def test_infos_that_only_some_parts_have_are_masked_in_the_others():
    words = np.array(["x", None], dtype=object)
    one = {"speed": np.array([1.0]), "_speed": np.array([True])}
    other = {"word": words, "_word": np.array([True, False]), "in": {"n": np.array([1, 2])}}
    merged = merged_infos([one, other], [1, 2])
    assert merged["speed"].tolist() == [1.0, 0.0, 0.0]
    assert merged["_speed"].tolist() == [True, False, False]
    assert merged["word"].tolist() == [None, "x", None]
    assert merged["in"]["n"].tolist() == [0, 1, 2]


def test_infos_that_only_some_parts_have_nested_become_objects():
    one = {"a": {"x": np.array([1, 2]), "_x": np.array([True, False])}, "_a": np.array([True] * 2)}
    other = {"a": np.array([2.5]), "_a": np.array([True])}
    merged = merged_infos([one, other, {}], [2, 1, 1])
    assert merged["a"].tolist() == [{"x": 1}, {}, 2.5, None]
    assert merged["_a"].tolist() == [True] * 3 + [False]


def test_a_part_of_a_batch_plays_the_episodes_and_seeds_of_the_whole():
    whole = Episodes(5, episodic=True, seed=3, scatter=False)
    part = Episodes(2, episodic=True, seed=3, scatter=False)
    part.take_part(3, 5)
    everyone, two = np.arange(5), np.arange(2)
    assert part.next.tolist() == whole.next[3:].tolist()
    for seed in (None, 4, None):
        whole.begin(everyone, seed, {})
        part.begin(two, seed, {})
        assert part.next.tolist() == whole.next[3:].tolist()
        whole.consumed(everyone)
        part.consumed(two)
    part.failed(0, resetting=True)
    whole.failed(3, resetting=True)
    assert part.next.tolist() == whole.next[3:].tolist()


# What is left of a cluster.


def test_what_is_left_of_a_cluster_is_named_and_ended(tmp_path):
    (tmp_path / "logs").mkdir()
    marked = {**os.environ, MARK: str(tmp_path)}
    with (tmp_path / "logs" / "raylet.out").open("w") as log:
        left = [
            subprocess.Popen(["sleep", "101"], env=marked, start_new_session=True),
            subprocess.Popen(["sleep", "102"], stdout=log, start_new_session=True),
        ]
    try:
        with pytest.raises(pytest.fail.Exception, match="left behind") as failure:
            fail_on_remains(str(tmp_path), within_s=0.1)
        assert all(f"{process.pid} sleep 10" in str(failure.value) for process in left)
        assert [process.wait(5) for process in left] == [-signal.SIGKILL, -signal.SIGKILL]
    finally:
        for process in left:
            process.kill()
            process.wait()
    fail_on_remains(str(tmp_path), within_s=0.1)


# What is asked for.


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'polyarm\[ray\]'"):
        Cluster("auto")


def test_what_a_cluster_cannot_do_is_refused_before_it_is_looked_for(tmp_path):
    with pytest.raises(UnknownName, match="replicate"):
        polyarm.EvalOptions(ray="auto", ray_policy="replicated")
    with pytest.raises(UnknownName, match="hosts"):
        polyarm.make_vec("toy/count-3", num_envs=2, hosts="slurm")
    with pytest.raises(InvalidCall, match="frames='every'"):
        polyarm.make_vec("toy/count-3", num_envs=2, hosts="ray", frames="every")
    with pytest.raises(InvalidCall, match="observers"):
        polyarm.make_vec("toy/count-3", num_envs=2, hosts="ray", observer="a:b")
    with pytest.raises(InvalidCall, match="seed of a suite"):
        polyarm.make_vec("toy/count-3", num_envs=2, hosts="ray", seed=2**31)
    with pytest.raises(UnknownName, match="num_workers"):
        polyarm.make_vec("gym/CartPole-v1", num_envs=2, hosts="ray", num_worker=2)
    with pytest.raises(UnknownName, match="back"):
        polyarm.make_vec("toy/count-3", num_envs=2, hosts="ray", cameras=("back",))
    how = {"ray": "auto", "save_dataset": str(tmp_path / "data"), "cameras": ("front",)}
    with pytest.raises(InvalidCall, match="datasets cannot be saved on a Ray cluster"):
        polyarm.evaluate("zero", "toy/count-3", out=tmp_path / "out", **how)
