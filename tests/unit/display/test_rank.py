"""Which rank this is, which screen and which GPU are its."""

from __future__ import annotations

import pytest

from polyarm.display.external import display_name, wanted
from polyarm.display.rank import cuda_index, local_rank, local_ranks


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"LOCAL_RANK": "2"}, 2),
        ({"SLURM_LOCALID": "3"}, 3),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),
        ({"LOCAL_RANK": "x"}, None),
    ],
)
def test_the_launcher_says_which_rank_this_is(environment, rank):
    assert local_rank(environment) == rank


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, 1),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "3"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2"}, 1),
        # A step of one task in a job of several.
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NTASKS_PER_NODE": "4"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "LOCAL_WORLD_SIZE": "8"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "many", "SLURM_NTASKS_PER_NODE": "none"}, 1),
    ],
)
def test_slurm_says_how_many_ranks_share_a_node(variables, ranks):
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    assert local_ranks({**step, **variables}) == ranks
    assert local_ranks({**variables, "SLURM_STEP_ID": ""}) == (8 if ranks == 8 else 1)


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        ({}, None),
        ({"LOCAL_RANK": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "5"}, 5),
        ({"CUDA_VISIBLE_DEVICES": "5,7", "LOCAL_RANK": "1"}, 7),
        # A launcher that shows every rank its own GPU alone.
        ({"CUDA_VISIBLE_DEVICES": "7", "LOCAL_RANK": "1"}, 7),
        # Names instead of numbers: the place among them.
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f3a,GPU-11c2", "LOCAL_RANK": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f3a", "LOCAL_RANK": "1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "", "LOCAL_RANK": "0"}, 0),
    ],
)
def test_a_rank_renders_on_the_gpu_it_computes_on(environment, index):
    assert cuda_index(environment) == index


@pytest.mark.parametrize(
    ("asked", "rank", "environment", "name"),
    [
        (":99", 2, {}, ":99.2"),
        (":99", None, {}, ":99.0"),
        (":99.1", 2, {}, ":99.1"),
        ("host:3", 1, {}, "host:3.1"),
        ("", 2, {"POLYARM_BASE_DISPLAY": ":7"}, ":7.2"),
        ("", 2, {"RLBENCH_BASE_DISPLAY": ":8", "DISPLAY": ":1"}, ":8.2"),
        ("", 2, {"DISPLAY": ":1"}, ":1"),
        ("", 2, {}, ""),
    ],
)
def test_a_base_display_has_a_screen_for_every_rank(asked, rank, environment, name):
    assert display_name(asked, rank, environment) == name


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"RLBENCH_PER_PROCESS_XVFB": "1"}, False),
        ({"RLBENCH_PER_PROCESS_XVFB": "0"}, True),
        ({"RLBENCH_BASE_DISPLAY": ":99"}, True),
    ],
)
def test_the_environment_may_ask_for_somebody_elses_server(environment, expected):
    assert wanted(environment) is expected
