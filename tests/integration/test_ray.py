"""On a real Ray cluster of several nodes: the same episodes as on one machine, whatever happens.

The cluster has two nodes; one more joins, then two are lost. Tests come in that order, because
starting a node takes seconds. The third says that it has a GPU and little memory, which is all that
Ray needs to know for placing something there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import ray
from ray_cluster import ray_cluster
from ray_policies import Deadly, Leaning, Mortal, Patient, Placed, Stuck

import polyarm
from polyarm.errors import HostLimit, InvalidCall, PolicyError, WorkerError
from polyarm.testing import SleepyPolicy

TOYS = ["toy/count-3", "toy/count-10", "toy/count-50"]
SAWYERS = ["metaworld/reach-v3", "metaworld/drawer-close-v3"]
SAWYER_NBYTES = 110 << 20
LITTLE_NBYTES = 200 << 20


@pytest.fixture(scope="module")
def nodes():
    with ray_cluster() as nodes:
        nodes.add()
        yield nodes


@pytest.fixture(autouse=True)
def no_leaks(nodes):
    """Ray keeps processes and connections of its own until the cluster ends; ours may not stay."""
    yield
    assert not nodes.playing()


def facts(results):
    return {e.key: (e.outcome, e.steps, e.action_hash, e.total_reward) for e in results.episodes}


def test_a_program_that_is_connected_is_told_so_when_it_asks_for_another_cluster(nodes):
    with pytest.raises(InvalidCall, match=f"already, at {nodes.address}"):
        polyarm.evaluate("zero", "toy/count-3", ray="local")


@pytest.mark.simulator
def test_a_policy_of_ours_acts_alike_on_all_nodes_or_for_all_of_them():
    how = {"episodes": 3, "num_envs": 2, "suite_options": ("max_steps=30",)}
    alone = facts(polyarm.evaluate(Leaning(), SAWYERS, **how))
    for where in ("replicate", "central"):
        ours = polyarm.evaluate(Leaning(), SAWYERS, ray="auto", ray_policy=where, **how)
        assert facts(ours) == alone, where
    experts = facts(polyarm.evaluate("expert", SAWYERS, ray="auto", **how))
    assert experts == facts(polyarm.evaluate("expert", SAWYERS, **how))


def test_a_policy_that_hangs_on_a_node_ends_the_run_with_its_error():
    with pytest.raises(PolicyError, match=r"not answered for 1 s.*toy/count-3"):
        polyarm.evaluate(Stuck(), "toy/count-3", ray="auto", policy_timeout="1s", num_envs=2)


def test_a_central_policy_that_is_lost_again_and_again_ends_the_run_with_its_error():
    with pytest.raises(PolicyError, match="the central policy was lost 3 times in a row"):
        polyarm.evaluate(Deadly(), "toy/count-3", ray="auto", ray_policy="central", num_envs=2)


def test_episodes_of_a_central_policy_that_was_lost_are_dealt_again(tmp_path):
    how = {"episodes": 4, "num_envs": 1}
    options = {"ray": "auto", "ray_policy": "central", **how}
    ours = polyarm.evaluate(Mortal(tmp_path), TOYS, out=tmp_path / "out", **options)
    assert facts(ours) == facts(polyarm.evaluate(Mortal(tmp_path), TOYS, **how))
    assert {episode.attempts for episode in ours.episodes} == {1, 2}
    lines = [*map(json.loads, (tmp_path / "out" / "episodes.jsonl").read_text().splitlines())]
    assert len(lines) == len({(line["task"], line["index"]) for line in lines}) == 12


def test_videos_and_trajectories_come_to_the_folder_of_the_run(tmp_path):
    how = {"episodes": 2, "num_envs": 2, "cameras": ("front",), "image_size": (32, 32)}
    how |= {"record": "all", "save_trajectories": True}
    ours = polyarm.evaluate("random", TOYS[:2], ray="auto", out=tmp_path / "ray", **how)
    alone = polyarm.evaluate("random", TOYS[:2], out=tmp_path / "alone", **how)
    assert facts(ours) == facts(alone)
    for one, other in zip(ours.episodes, alone.episodes, strict=True):
        assert one.videos == other.videos
        for name in (*one.videos, one.trajectory):
            mine, theirs = (tmp_path / "ray" / name, tmp_path / "alone" / name)
            assert mine.read_bytes() == theirs.read_bytes()


def assert_same(ours, theirs):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_same(ours[name], theirs[name])
    elif isinstance(theirs, tuple | list):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert ours.dtype == object
        assert_same(list(ours), list(theirs))
    elif not isinstance(theirs, np.ndarray):
        assert ours == theirs
    else:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("tasks", "options"),
    [
        (
            ["toy/count-3", "toy/count-10"],
            {"cameras": ("front",), "image_size": (8, 8), "autoreset": "same_step"},
        ),
        (SAWYERS, {"max_steps": 4}),
        ("gym/CartPole-v1", {"seed": 7}),
    ],
)
def test_a_vector_env_on_two_nodes_is_one_of_one_machine(tasks, options):
    with (
        polyarm.make_vec(tasks, num_envs=5, hosts="ray", **options) as ours,
        polyarm.make_vec(tasks, num_envs=5, num_workers=1, **options) as theirs,
    ):
        assert [count for _, count in ours.nodes] == [3, 2]
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.tasks == theirs.tasks
        for seed in (3, None):
            assert_same(ours.reset(seed=seed), theirs.reset(seed=seed))
            theirs.action_space.seed(0)
            for _ in range(6):
                actions = theirs.action_space.sample()
                assert_same(ours.step(actions), theirs.step(actions))
        chunk = np.stack([theirs.action_space.sample() for _ in range(3)], axis=1)
        for _ in range(3):
            assert_same(ours.step_chunk(chunk), theirs.step_chunk(chunk))
        assert ours.episodes.tolist() == theirs.episodes.tolist()
        mask = np.array([False, False, True, False, True])
        again = {"reset_mask": mask}
        assert_same(ours.reset(options=again), theirs.reset(options=again))


def refusal(call):
    with pytest.raises(InvalidCall) as caught:
        call()
    return str(caught.value)


def test_what_one_machine_refuses_nodes_refuse_in_the_same_words_and_do_nothing():
    options = {"num_envs": 5, "autoreset": "disabled"}
    with (
        polyarm.make_vec("toy/count-3", hosts="ray", **options) as ours,
        polyarm.make_vec("toy/count-3", num_workers=1, **options) as theirs,
    ):
        said = []
        for envs in (ours, theirs):
            envs.reset()
            mask = np.array([False, False, True, True, False])
            refused = [
                refusal(lambda envs=envs: envs.reset(seed=[1] * 6)),
                refusal(lambda envs=envs: envs.reset(seed=[1] * 3)),
                refusal(lambda envs=envs: envs.reset(seed=(1 for _ in range(5)))),
                refusal(lambda envs=envs: envs.reset(options={"episodes": [0, 1]})),
            ]
            actions = np.zeros((5, 2), np.float32)
            for _ in range(2):
                envs.step(actions)
            envs.reset(options={"reset_mask": mask})
            envs.step(actions)  # slots 0, 1 and 4 end
            refused.append(refusal(lambda envs=envs, actions=actions: envs.step(actions)))
            envs.reset(options={"reset_mask": ~mask})
            said.append(refused)
            assert envs.step(actions)[-1]["steps"].all()
        for one, other in zip(*said, strict=True):
            assert one.partition("<")[0] == other.partition("<")[0]
        assert "slots [0, 1, 4] have ended" in said[0][-1]
        assert_same(ours.step(actions), theirs.step(actions))
        assert ours.episodes.tolist() == theirs.episodes.tolist()
    assert ours.tasks == theirs.tasks
    assert ours.episodes.tolist() == theirs.episodes.tolist()
    assert ours.episodic


def test_slots_of_a_lost_actor_deliver_an_error_and_go_on_with_their_next_episodes():
    with polyarm.make_vec("toy/count-10", num_envs=4, hosts="ray") as envs:
        envs.set_attr("length", [10, 10, 11, 11])
        envs.reset(seed=1)
        actions = np.zeros((4, 2), np.float32)
        before = envs.step(actions)[0]["state"]
        os.kill(envs._shards[1].about["pid"], signal.SIGKILL)
        obs, rewards, terminated, truncated, info = envs.step(actions)
        assert [error and (error.slot, error.kind) for error in info["error"]] == [
            None, None, (2, "died"), (3, "died"),
        ]  # fmt: skip
        assert truncated.tolist() == [False, False, True, True]
        assert not terminated.any()
        assert rewards.tolist() == [2.0, 2.0, 0.0, 0.0]
        assert envs.call("length") == (10, 10, 11, 11)
        np.testing.assert_array_equal(obs["state"][2:], before[2:])
        obs, _, _, truncated, info = envs.step(actions)
        assert not truncated.any()
        assert "error" not in info
        assert info["steps"].tolist() == [1, 1, 0, 0]
        stream = 2**32
        assert (envs.episodes - stream).tolist() == [0, 1, 6, 7]
        assert obs["state"][:, 1].tolist() == [3, 3, 0, 0]


def test_a_call_that_finds_an_actor_lost_says_so_once_and_the_next_step_ends_its_episodes():
    with polyarm.make_vec("toy/count-10", num_envs=4, hosts="ray") as envs:
        envs.set_attr("length", [10, 10, 11, 11])
        envs.reset(seed=1)
        actions = np.zeros((4, 2), np.float32)
        before = envs.step(actions)[0]["state"]
        os.kill(envs._shards[1].about["pid"], signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"slots \[2, 3\] were lost .* builds them again"):
            envs.get_attr("length")
        assert envs.get_attr("length") == (10, 10, 11, 11)
        obs, rewards, terminated, truncated, info = envs.step_chunk(np.stack([actions] * 3, 1))
        assert [error and error.kind for error in info["error"]] == [None, None, "died", "died"]
        assert truncated.tolist() == [False, False, True, True]
        assert not terminated.any()
        assert rewards.tolist() == [[2.0, 3.0, 4.0]] * 2 + [[0.0] * 3] * 2
        np.testing.assert_array_equal(obs["state"][2:], before[2:])
        obs, _, _, truncated, info = envs.step(actions)
        assert "error" not in info
        assert not truncated.any()
        assert obs["state"][:, 1].tolist() == [5, 5, 0, 0]


def test_an_actor_that_dies_is_started_again_and_its_episodes_are_dealt_again(tmp_path):
    how = {"episodes": 10, "num_envs": 2}
    options = polyarm.EvalOptions(ray="auto", **how)
    killed = []

    def kill(progress):
        hosts = [host for host in evaluator._player._hosts or () if host.report.running]
        if not killed and len(hosts) == 2:
            killed.append(ray.get(hosts[0].actor.pid.remote()))
            os.kill(killed[0], signal.SIGKILL)

    policy = SleepyPolicy(0.005, (2,))
    with polyarm.Evaluator(TOYS, options, tmp_path) as evaluator:
        results = evaluator.run({"": policy}, kill)
    assert killed
    assert facts(results) == facts(polyarm.evaluate(policy, TOYS, **how))
    assert {episode.attempts for episode in results.episodes} == {1, 2}
    lines = [*map(json.loads, (tmp_path / "episodes.jsonl").read_text().splitlines())]
    assert len(lines) == len({(line["task"], line["index"]) for line in lines}) == 30


def test_a_node_that_joins_is_used(nodes):
    options = polyarm.EvalOptions(ray="auto", episodes=5000, num_envs=2)
    joined = []

    def watch(progress):
        if not joined:
            joined.append(nodes.add(num_gpus=1, memory=LITTLE_NBYTES))
        for host in evaluator._player._hosts or ():
            if host.node.id == joined[0].node_id and host.report.results:
                evaluator.stop()

    with polyarm.Evaluator(TOYS[2:], options) as evaluator:
        results = evaluator.run({"": "zero"}, watch)
    assert 0 < len(results.episodes) < 5000
    assert {episode.outcome for episode in results.episodes} == {"success"}


def test_nothing_of_a_run_that_is_killed_stays_on_a_cluster_that_goes_on(nodes, tmp_path):
    """Its actors, the central policy among them, and their workers end with it."""
    command = [sys.executable, "-m", "polyarm", "eval", "--policy", "zero", "--task", TOYS[2]]
    command += ["--episodes", "5000", "--num-envs", "2", "--out", str(tmp_path / "out")]
    command += ["--ray", nodes.address, "--ray-policy", "central"]
    journal = tmp_path / "out" / "episodes.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            while not journal.exists() or not journal.read_bytes():
                assert run.poll() is None
                time.sleep(0.05)
            there = " ".join(nodes.playing(within_s=0).values())
            assert all(name in there for name in ("EvalNode", "PolicyServer", "forkserver"))
        finally:
            run.kill()
    left = nodes.playing()
    assert not left, left


def notes(folder):
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


@pytest.mark.simulator
def test_where_only_some_nodes_have_a_gpu_the_policy_is_there_and_acts_for_all(nodes, tmp_path):
    how = {"episodes": 3, "num_envs": 1, "suite_options": ("max_steps=30",)}
    results = polyarm.evaluate(Placed(tmp_path), SAWYERS, ray="auto", **how)
    assert notes(tmp_path) == {nodes.added[-1].node_id: {"GPU": 0.5}}
    assert not results.errors


def test_a_policy_that_only_envs_can_tell_its_space_is_where_they_are(nodes):
    results = polyarm.evaluate(
        "ray_policies:push_right", "gym/CartPole-v1", ray="auto", episodes=2, num_envs=1
    )
    assert not results.errors


def given(envs):
    """How many slots each node has of a vector env, and what was given for them."""

    def assigned(_):
        return ray.get_runtime_context().get_assigned_resources()

    return {
        shard.node.id: (shard.count, ray.get(shard.actor.__ray_call__.remote(assigned)))
        for shard in envs._shards
    }


@pytest.mark.simulator
def test_envs_of_a_batch_are_placed_by_cores_and_memory(nodes):
    with polyarm.make_vec(SAWYERS[0], num_envs=6, num_workers=1, hosts="ray") as envs:
        placed = given(envs)
    assert placed[nodes.added[-1].node_id][0] == 1  # two would be its share by cores
    assert sorted(count for count, _ in placed.values()) == [1, 2, 3]
    for count, share in placed.values():
        assert share == {"CPU": 1.0, "memory": count * SAWYER_NBYTES}
    with pytest.raises(HostLimit, match="1000000 envs of 110 MiB do not fit"):
        polyarm.make_vec(SAWYERS[0], num_envs=10**6, hosts="ray")


def test_a_node_that_renders_for_a_batch_gives_a_share_of_its_gpu(nodes):
    how = {"cameras": ("front",), "image_size": (8, 8), "hosts": "ray"}
    with polyarm.make_vec("toy/count-3", num_envs=3, **how) as envs:
        gpus = {node: share.get("GPU") for node, (_, share) in given(envs).items()}
    assert [gpus[node.node_id] for node in nodes.added] == [None, None, 0.25]


@pytest.mark.simulator
def test_a_node_killed_in_mid_run_changes_no_score(nodes, tmp_path):
    how = {"episodes": 8, "num_envs": 2, "suite_options": ("max_steps=60",)}
    options = polyarm.EvalOptions(ray="auto", ray_policy="replicate", **how)
    (tmp_path / "notes").mkdir()
    policy = Patient(tmp_path / "notes")
    killed = []

    def kill(progress):
        hosts = [host for host in evaluator._player._hosts or () if host.report.running]
        last = [host for host in hosts if host.node.id == nodes.added[-1].node_id]
        if last and not killed:
            killed.append(last[0].name)
            pid = ray.get(last[0].actor.pid.remote())
            nodes.kill(nodes.added[-1])
            os.kill(pid, signal.SIGKILL)  # Ray would leave it a moment to notice
            policy.gate.touch()

    with polyarm.Evaluator(SAWYERS, options) as evaluator:
        results = evaluator.run({"": policy}, kill)
        assert killed
        assert killed[0] not in [host.name for host in evaluator._player._hosts]
    first, second, little = [node.node_id for node in nodes.added]
    two = {"CPU": 1.0, "memory": 2.0 * SAWYER_NBYTES}
    one = {"CPU": 1.0, "memory": 1.0 * SAWYER_NBYTES, "GPU": 1.0}
    assert notes(tmp_path / "notes") == {first: two, second: two, little: one}
    assert facts(results) == facts(polyarm.evaluate(Leaning(), SAWYERS, **how))
    assert max(episode.attempts for episode in results.episodes) == 2


def test_slots_of_a_lost_node_are_built_again_on_one_that_is_left(nodes):
    with polyarm.make_vec("toy/count-10", num_envs=2, hosts="ray") as envs:
        envs.reset(seed=1)
        lost = next(shard for shard in envs._shards if shard.node.id == nodes.added[1].node_id)
        nodes.kill(nodes.added[1])
        os.kill(lost.about["pid"], signal.SIGKILL)
        actions = np.zeros((2, 2), np.float32)
        *_, info = envs.step(actions)
        assert [error and error.kind for error in info["error"]].count("died") == 1
        *_, info = envs.step(actions)
        assert "error" not in info
        assert {shard.node.id for shard in envs._shards} == {nodes.added[0].node_id}


def test_a_central_policy_that_is_lost_with_its_node_goes_on_elsewhere(nodes, tmp_path):
    how = {"episodes": 4, "num_envs": 2}
    options = polyarm.EvalOptions(ray="auto", ray_policy="central", **how)
    (tmp_path / "notes").mkdir()
    policy, alike = Patient(tmp_path / "notes"), Leaning()
    policy.size = alike.size = 2
    first = nodes.add(num_gpus=1)
    others = []

    def kill(progress):
        hosts = [host for host in evaluator._player._hosts or () if host.report.running]
        last = [host for host in hosts if host.node.id == first.node_id]
        if last and not others and (policy.folder / first.node_id).exists():
            actors = [evaluator._player._served._server, last[0].actor]
            pids = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors])
            others.append(nodes.add(num_gpus=1))
            nodes.kill(first)
            for pid in pids:  # Ray would leave them a moment to notice
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            policy.gate.touch()

    with polyarm.Evaluator(TOYS, options) as evaluator:
        results = evaluator.run({"": policy}, kill)
    assert notes(policy.folder) == {node.node_id: {"GPU": 0.5} for node in (first, *others)}
    assert facts(results) == facts(polyarm.evaluate(alike, TOYS, **how))
    assert max(episode.attempts for episode in results.episodes) > 1
