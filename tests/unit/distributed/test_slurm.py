"""What SLURM's variables mean, and where they mean nothing."""

import pytest

from polyarm.display.rank import local_rank
from polyarm.distributed import slurm
from polyarm.distributed.members import member, starter_of, succession, why_not_fresh
from polyarm.distributed.ranks import Rank

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
}
ARRAY = {
    "SLURM_JOB_ID": "4713",
    "SLURM_ARRAY_JOB_ID": "4711",
    "SLURM_ARRAY_TASK_ID": "12",
    "SLURM_ARRAY_TASK_MIN": "10",
    "SLURM_ARRAY_TASK_COUNT": "3",
}


def without(*names):
    return {name: value for name, value in STEP.items() if name not in names}


def test_a_process_of_srun_is_a_rank():
    assert Rank.current(STEP) == Rank(3, 4)
    assert local_rank(STEP) == 1
    assert Rank.current(without("SLURM_STEP_NUM_TASKS")) == Rank(3, 4)


@pytest.mark.parametrize(
    "environment",
    [
        without("SLURM_STEP_ID"),
        {**STEP, "SLURM_STEP_ID": "4294967291"},
        {**STEP, "SLURM_STEP_ID": "4294967290"},
        {**STEP, "SLURM_STEP_ID": "batch"},
        {**STEP, "SLURM_PTY_PORT": "40123"},
        {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        without("SLURM_PROCID"),
    ],
    ids=["batch script", "batch step", "salloc", "named", "srun --pty", "srun -n1", "no number"],
)
def test_a_script_or_a_shell_in_a_job_of_several_tasks_is_alone(environment):
    assert Rank.current(environment) == Rank(0, 1)
    assert member(Rank.current(environment), environment) is None


def test_torchrun_in_a_job_of_slurms_knows_better():
    both = {**STEP, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert Rank.current(both) == Rank(1, 2)
    assert local_rank(both) == 0


def test_tasks_of_an_array_share_a_folder_without_one_number_twice():
    assert member(Rank(0, 1), ARRAY) == member(Rank.current(ARRAY), ARRAY)
    assert member(Rank(0, 1), ARRAY).number == 2
    assert member(Rank(0, 1), ARRAY).world == 3
    numbers = set()
    for task in ("10", "11", "12"):
        for procid in ("0", "1"):
            both = {**ARRAY, **STEP, "SLURM_ARRAY_TASK_ID": task, "SLURM_PROCID": procid}
            both["SLURM_STEP_NUM_TASKS"] = "2"
            numbers.add(member(Rank.current(both), both).number)
    assert numbers == set(range(6))


def test_an_array_of_one_is_none():
    assert member(Rank(0, 1), {**ARRAY, "SLURM_ARRAY_TASK_COUNT": "1"}) is None


def test_ranks_of_one_job_know_it_and_no_other():
    other = {**STEP, "SLURM_PROCID": "0"}
    assert member(Rank(3, 4), STEP).job == member(Rank(0, 4), other).job
    assert member(Rank(3, 4), STEP).job != member(Rank(3, 4), {**STEP, "SLURM_STEP_ID": "3"}).job


HOST = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}
HOSTS = {**HOST, "LOCAL_WORLD_SIZE": "1"}
REQUEUED = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}
RESTARTED = {"TORCHELASTIC_RESTART_COUNT": "1"}


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, None),
        (REQUEUED, "requeued"),
        (ARRAY, "an array job"),
        (STEP, None),
        ({**STEP, **REQUEUED}, None),
        (HOST, None),
        ({**HOST, "SLURM_JOB_ID": "4711"}, None),
        ({**HOST, **REQUEUED}, "requeued"),
        (HOSTS, "several hosts"),
        ({**HOSTS, "SLURM_JOB_ID": "4711"}, None),
    ],
    ids=[
        "alone", "alone, requeued", "array", "srun", "srun, requeued", "torchrun",
        "torchrun in a job", "torchrun, requeued", "torchrun on hosts", "torchrun on nodes",
    ],
)  # fmt: skip
def test_who_may_start_over_and_who_would_forget_what_was_done(environment, why):
    said = why_not_fresh(member(Rank.current(environment), environment), environment)
    assert said is None if why is None else why in said


def test_ranks_that_torchrun_has_restarted_at_another_port_are_still_the_same_job():
    again = {**HOST, "MASTER_PORT": "29501", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert member(Rank(0, 2), HOST).job == member(Rank(0, 2), again).job


def test_a_command_that_nothing_repeats_has_no_starter():
    alone = {**HOST, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    assert starter_of(Rank(0, 1), {"SLURM_JOB_ID": "4711"}) == starter_of(Rank(0, 1), {}) == ""
    assert starter_of(Rank(0, 1), alone) == starter_of(Rank(0, 2), HOST) != ""
    assert starter_of(Rank(0, 1), ARRAY) == "SLURM array 4711"


def test_torchruns_in_steps_of_one_job_are_told_apart():
    steps = ({**HOSTS, "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": step} for step in "01")
    assert len({member(Rank(0, 2), each).job for each in steps}) == 2


def test_a_job_that_slurm_queues_again_takes_its_own_place_whatever_it_runs():
    for started in ({}, STEP, HOST, HOSTS, {**ARRAY, "SLURM_JOB_ID": "4711"}):
        first = {**started, "SLURM_JOB_ID": "4711"}
        again = {**first, **REQUEUED, "MASTER_ADDR": "b", "SLURM_STEP_ID": "0"}
        one, other = (succession(Rank.current(each), each) for each in (first, again))
        assert one.name == other.name == "SLURM job 4711"
        assert one.attempt < other.attempt
    assert succession(Rank(0, 1), {}).name == ""
    first, again = (succession(Rank(0, 2), {**HOST, **each}) for each in ({}, RESTARTED))
    assert first.name == again.name == member(Rank(0, 2), HOST).job
    assert first.attempt < again.attempt


def test_two_commands_of_one_job_do_not_take_each_others_place():
    steps = ({**STEP, "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": step} for step in "01")
    one, other = (succession(Rank.current(each), each) for each in steps)
    assert not one.attempt < other.attempt


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[07-09,12],login1", "gpu07"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]n[3,5]-ib,other", "rack1n3-ib"),
    ],
)
def test_the_first_node_of_a_list(nodes, first):
    assert slurm.first_node(nodes) == first


def test_processes_of_a_step_meet_on_its_first_node():
    environment = {**STEP, "SLURM_STEP_NODELIST": "gpu[07-09]", "SLURM_STEP_NUM_NODES": "3"}
    other = {**environment, "SLURM_PROCID": "0"}
    slurm.say_where_to_meet(environment)
    slurm.say_where_to_meet(other)
    assert environment["MASTER_ADDR"] == other["MASTER_ADDR"] == "gpu07"
    assert environment["MASTER_PORT"] == other["MASTER_PORT"]
    assert 1024 < int(environment["MASTER_PORT"]) < 32768  # below those that clients get


def test_nobody_is_told_where_to_meet_who_knows_or_has_nobody_to_meet():
    known = {**STEP, "MASTER_ADDR": "here", "MASTER_PORT": "1234"}
    slurm.say_where_to_meet(known)
    assert (known["MASTER_ADDR"], known["MASTER_PORT"]) == ("here", "1234")
    one_node = {**STEP, "SLURM_STEP_NODELIST": "gpu7", "SLURM_STEP_NUM_NODES": "1"}
    slurm.say_where_to_meet(one_node)
    assert one_node["MASTER_ADDR"] == "127.0.0.1"
    script = without("SLURM_STEP_ID")
    slurm.say_where_to_meet(script)
    assert "MASTER_ADDR" not in script
