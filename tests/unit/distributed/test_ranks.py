"""Ranks of torchrun share envs, folders and GPUs without stepping on one another."""

import pytest

from polyarm.bench.options import BenchOptions
from polyarm.bench.plan import make_plan
from polyarm.display.egl import ranks_share_gpus
from polyarm.display.rank import cuda_index
from polyarm.distributed.ranks import (
    Rank,
    Share,
    bind_gpu,
    envs_per_rank,
    gpu_list,
    mark,
    separate_gpus,
    why_unbound,
)
from polyarm.errors import InvalidCall


@pytest.mark.parametrize(
    ("total", "world", "shares"),
    [
        (64, 4, (16, 16, 16, 16)),
        (66, 4, (17, 17, 16, 16)),
        (4, 4, (1, 1, 1, 1)),
        (5, 1, (5,)),
    ],
)
def test_a_total_is_split_evenly(total, world, shares):
    assert envs_per_rank(BenchOptions(num_envs_total=total), world) == shares


def test_without_a_total_each_rank_has_num_envs():
    assert envs_per_rank(BenchOptions(num_envs=3), 2) == (3, 3)


@pytest.mark.parametrize("total", [3, 0, -1])
def test_a_rank_without_an_env_is_refused(total):
    with pytest.raises(InvalidCall, match=r"of 4 ranks without an env; give at least 4"):
        envs_per_rank(BenchOptions(num_envs_total=total), 4)


def test_a_process_alone_is_the_only_rank():
    assert Rank.current({}) == Rank(0, 1)
    assert Rank.current({"RANK": "3"}) == Rank(0, 1)


@pytest.mark.parametrize("told", [("4", "4"), ("x", "4"), ("-1", "4")])
def test_a_rank_that_cannot_be_is_refused(told):
    with pytest.raises(InvalidCall, match="RANK below WORLD_SIZE"):
        Rank.current({"RANK": told[0], "WORLD_SIZE": told[1]})


def test_ranks_have_folders_of_their_own():
    assert Rank(2, 4).folder("runs/bench") == "runs/bench/rank2"
    assert Rank(0, 1).folder("runs/bench") == "runs/bench"


def test_ranks_have_their_share_and_play_other_episodes(monkeypatch):
    options = BenchOptions(task="toy/count-3", num_envs_total=5, seed=10, record=True)
    plans = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert Share.current(options).before == 3 * rank
        plans.append(make_plan(options))
    assert [plan.options.num_envs for plan in plans] == [3, 2]
    assert [plan.seed for plan in plans] == [10, 13]
    assert [plan.film.folder.name for plan in plans] == ["rank0", "rank1"]


@pytest.mark.parametrize(
    ("environment", "bound"),
    [
        ({"LOCAL_RANK": "2"}, "2"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,6"}, "6"),
        ({"LOCAL_RANK": "5", "CUDA_VISIBLE_DEVICES": "4,6"}, "6"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}, "GPU-b"),
    ],
)
def test_a_rank_is_bound_to_its_gpu_once_and_for_all(environment, bound):
    assert why_unbound(environment) is None
    assert bind_gpu(environment) == bound
    assert environment["CUDA_VISIBLE_DEVICES"] == bound
    assert bind_gpu(environment) == bound


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "no launcher"),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, "no launcher"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES='' hides all"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": " "}, "hides all GPUs"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "-1"}, "hides all GPUs"),
    ],
)
def test_without_a_rank_or_a_gpu_in_sight_nothing_is_bound(environment, why):
    before = dict(environment)
    assert why in why_unbound(environment)
    assert bind_gpu(environment) is None
    assert environment == before


def test_the_gpu_that_a_rank_is_bound_to_is_the_one_that_renders():
    for visible in ({}, {"CUDA_VISIBLE_DEVICES": "4,6"}):
        environment = {"LOCAL_RANK": "1", **visible}
        before = cuda_index(environment)
        bind_gpu(environment)
        assert cuda_index(environment) == before


def test_a_rank_says_which_it_is_where_there_are_several():
    assert mark({}) == ""
    assert mark({"RANK": "2", "WORLD_SIZE": "4"}) == "rank=2 "
    assert mark({"RANK": "x", "WORLD_SIZE": "4"}) == ""


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("0-3", (0, 1, 2, 3)), ("5", (5,)), ("0-1, 6,4 - 5", (0, 1, 6, 4, 5)), ("7,7", (7, 7))],
)
def test_gpus_are_given_as_numbers_and_ranges(text, gpus):
    assert gpu_list(text) == gpus


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0,,2", "3-1", "0-3-5", "1.5"])
def test_what_is_no_list_of_gpus_is_refused(text):
    with pytest.raises(InvalidCall, match="GPUs are given"):
        gpu_list(text)


@pytest.mark.parametrize(
    ("rank", "policy", "render"), [("0", "0", "4"), ("3", "3", "6"), ("5", "1", "6")]
)
def test_gpus_are_dealt_to_the_ranks_of_a_host_in_turn(rank, policy, render):
    environment = {"LOCAL_RANK": rank}
    separate_gpus("0-3", "4,6", environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == policy
    assert cuda_index(environment) == int(render)
    assert not ranks_share_gpus(environment)


def test_a_gpu_to_render_on_need_not_be_one_to_compute_on():
    environment = {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
    separate_gpus(None, "2", environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert cuda_index(environment) == 2


@pytest.mark.parametrize(
    ("visible", "message"),
    [("0,1", "--policy-gpus names GPU 2, which CUDA_VISIBLE_DEVICES=0,1 hides"),
     ("", "hides"), ("GPU-a,GPU-b", "give numbers there too")],
)  # fmt: skip
def test_gpus_that_are_hidden_are_refused(visible, message):
    environment = {"CUDA_VISIBLE_DEVICES": visible}
    with pytest.raises(InvalidCall, match=message):
        separate_gpus("1-2", None, environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": visible}


@pytest.mark.parametrize("shares", [(5, 5), (4, 3, 3), (10,), (1,) * 10])
def test_tasks_are_dealt_to_the_envs_of_all_ranks_together(shares):
    """Every rank began with the first: two ranks of five envs each played one half of mt10."""
    tasks = [f"task-{place}" for place in range(10)]
    ranks = [Share(Rank(number, len(shares)), shares) for number in range(len(shares))]
    assert [task for rank in ranks for task in rank.deal(tasks)] == tasks
    assert all(len(rank.deal(tasks)) == rank.num_envs for rank in ranks)


def test_few_tasks_are_dealt_to_many_envs_in_turn():
    ranks = [Share(Rank(number, 2), (3, 2)) for number in range(2)]
    assert [rank.deal("ab") for rank in ranks] == [["a", "b", "a"], ["b", "a"]]
