from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from polyarm import HostLimit, make_vec
from polyarm.testing import CountingEnv
from polyarm.vector import host

MIB = 1 << 20


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """An empty cgroup tree, and a function that writes its files."""
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    monkeypatch.setattr(host, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_without_a_quota_the_affinity_counts(cgroup):
    assert host.cores() == 16
    cgroup("cpu.max", "max 100000\n")
    assert host.cores() == 16


@pytest.mark.parametrize(
    ("quota", "cores"), [("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1)]
)
def test_a_quota_is_rounded_down_to_whole_cores(cgroup, quota, cores):
    cgroup("cpu.max", quota)
    assert host.cores() == cores


@pytest.mark.parametrize(("rank", "first", "number"), [(0, 0, 5), (1, 5, 5), (2, 10, 6)])
def test_ranks_of_a_host_pin_their_workers_to_cpus_of_their_own(
    cgroup, monkeypatch, rank, first, number
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    assert host.own_cpus() == list(range(first, first + number))


def test_more_ranks_than_cpus_share_them(cgroup, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    pinned = []
    for rank in range(5):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        pinned.append(host.own_cpus())
    assert all(len(each) == 1 for each in pinned)
    assert {each[0] for each in pinned} == {3, 7}


def test_a_task_that_srun_has_bound_pins_to_all_its_cpus(cgroup, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5})
    for name, value in {
        "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "1",
        "SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS_PER_NODE": "2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert host.own_cpus() == [4, 5]


def test_a_quota_above_the_affinity_changes_nothing(cgroup):
    cgroup("cpu.max", "9900000 100000")
    assert host.cores() == 16


def test_the_old_cgroup_files_count_too(cgroup):
    cgroup("cpu/cpu.cfs_period_us", "100000\n")
    quota = cgroup("cpu/cpu.cfs_quota_us", "300000\n")
    assert host.cores() == 3
    quota.write_text("-1\n")
    assert host.cores() == 16


@pytest.mark.parametrize("root", ["", "unified/"])
def test_the_tightest_group_on_the_way_up_counts(cgroup, root):
    cgroup("membership", "4:memory:/elsewhere\n0::/job/step\n")
    cgroup(f"{root}cpu.max", "800000 100000")
    cgroup(f"{root}job/cpu.max", "600000 100000")
    cgroup(f"{root}job/step/cpu.max", "max 100000")
    assert host.cores() == 6


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_the_tightest_old_group_on_the_way_up_counts(cgroup, mount):
    cgroup("membership", "4:memory:/\n3:cpu,cpuacct:/slurm/job\n1:name=systemd:/\n0::/\n")
    for group, quota in (("", -1), ("slurm/", 500000), ("slurm/job/", 700000)):
        cgroup(f"{mount}/{group}cpu.cfs_quota_us", f"{quota}\n")
        cgroup(f"{mount}/{group}cpu.cfs_period_us", "100000\n")
    assert host.cores() == 5


def test_in_a_container_only_the_mounts_own_group_can_be_seen(cgroup):
    cgroup("membership", "3:cpu,cpuacct:/docker/0123\n")
    cgroup("cpu/cpu.cfs_quota_us", "300000\n")
    cgroup("cpu/cpu.cfs_period_us", "100000\n")
    assert host.cores() == 3


def in_step(monkeypatch, **variables):
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", **variables}
    for name, value in step.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "name", ["LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"]
)
def test_local_ranks_share_the_cores(cgroup, monkeypatch, name):
    in_step(monkeypatch)
    monkeypatch.setenv(name, "3")
    assert host.cores() == 5
    monkeypatch.setenv(name, "100")
    assert host.cores() == 1
    for nonsense in ("", "0", "many"):
        monkeypatch.setenv(name, nonsense)
        assert host.cores() == 16


def test_a_batch_script_of_slurm_has_all_cores_though_it_asked_for_many_tasks(cgroup, monkeypatch):
    in_step(monkeypatch, SLURM_STEP_ID=str(0xFFFFFFFB), SLURM_NTASKS_PER_NODE="4")
    assert host.cores() == 16


def test_a_task_that_srun_has_bound_keeps_all_of_its_own_cores(cgroup, monkeypatch):
    """Its cgroup's quota is that of all tasks of the step."""
    in_step(monkeypatch, SLURM_NTASKS_PER_NODE="4", SLURM_CPUS_PER_TASK="4")
    assert host.cores() == 4  # not bound: a quarter of all
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(4)))
    assert host.cores() == 4


def test_ranks_of_a_torchrun_in_a_task_of_srun_share_what_the_task_was_bound_to(
    cgroup, monkeypatch
):
    """The usual way onto several nodes: a task on each, and a torchrun in it."""
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(4)))
    in_step(monkeypatch, SLURM_NTASKS_PER_NODE="1", SLURM_CPUS_PER_TASK="4")
    assert (host.cores(), host.own_cpus()) == (4, [0, 1, 2, 3])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (host.cores(), host.own_cpus()) == (2, [2, 3])


def test_tasks_of_srun_that_nobody_has_bound_share_the_node(cgroup, monkeypatch):
    in_step(monkeypatch, SLURM_STEP_TASKS_PER_NODE="4(x2),1", SLURM_NODEID="1", SLURM_LOCALID="3")
    assert (host.cores(), host.own_cpus()) == (4, [12, 13, 14, 15])


def test_a_memory_limit_of_the_group_counts(cgroup):
    cgroup("memory.max", str(10 * 2**20))
    cgroup("memory.current", str(4 * 2**20))
    assert host.available_memory() == 6 * 2**20
    cgroup("memory.current", str(11 * 2**20))
    assert host.available_memory() == 0


def test_file_pages_that_can_be_dropped_count_as_available(cgroup):
    """A job that has read a dataset has a full page cache, not a full memory."""
    cgroup("memory.max", str(10 * 2**20))
    cgroup("memory.current", str(9 * 2**20))
    cgroup("memory.stat", f"anon {2**20}\nactive_file 0\ninactive_file {7 * 2**20}\n")
    assert host.available_memory() == 8 * 2**20


def test_a_memory_limit_of_an_old_group_counts_too(cgroup):
    limit = cgroup("memory/memory.limit_in_bytes", str(10 * 2**20))
    cgroup("memory/memory.usage_in_bytes", str(9 * 2**20))
    cgroup("memory/memory.stat", f"inactive_file {3 * 2**20}\ntotal_inactive_file {5 * 2**20}\n")
    assert host.available_memory() == 6 * 2**20
    unlimited = 2**63 - 4096
    limit.write_text(str(unlimited))
    assert 10 * 2**20 < host.available_memory() < unlimited - 9 * 2**20


def test_the_old_memory_group_with_the_least_room_counts(cgroup):
    cgroup("membership", "4:memory:/slurm/job\n0::/\n")
    for group, limit, used in (("", 2**50, 2**30), ("slurm/", 8 * MIB, 3 * MIB)):
        cgroup(f"memory/{group}memory.limit_in_bytes", str(limit))
        cgroup(f"memory/{group}memory.usage_in_bytes", str(used))
    cgroup("memory/slurm/job/memory.limit_in_bytes", str(7 * MIB))
    cgroup("memory/slurm/job/memory.usage_in_bytes", str(3 * MIB))
    assert host.available_memory() == 4 * MIB


def test_forked_workers_have_one_thread_and_fresh_ones_their_share(cgroup):
    assert set(host.thread_limits(4, forked=True).values()) == {"1", "4"}
    limits = host.thread_limits(4, forked=False)
    assert limits["OMP_NUM_THREADS"] == limits["LP_NUM_THREADS"] == "4"
    assert host.thread_limits(64, forked=True)["LP_NUM_THREADS"] == "0"


def test_the_limits_reach_the_workers(make_any):
    class AskingEnv(CountingEnv):
        def variable(self, name):
            import os

            return os.environ.get(name)

    env = make_any(AskingEnv, num_workers=2)
    assert env.call("variable", "OMP_NUM_THREADS") == ("1",) * 4
    share = host.thread_limits(2, forked=True)["LP_NUM_THREADS"]
    assert env.call("variable", "LP_NUM_THREADS") == (share,) * 4


def test_workers_can_be_pinned_to_cores(make_any):
    class AskingEnv(CountingEnv):
        def cpus(self):
            import os

            return sorted(os.sched_getaffinity(0))

    allowed = sorted(os.sched_getaffinity(0))
    env = make_any(AskingEnv, num_workers=2, pin_workers=True)
    first, _, third, _ = env.call("cpus")
    assert first == [allowed[0]]
    assert third == [allowed[1 % len(allowed)]]
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_a_block_that_cannot_fit_is_refused_with_both_sizes(engine):
    options = {"cameras": ("front",), "image_size": (1024, 1024), "ring": 10**6}
    with pytest.raises(HostLimit, match=r"needs [\d.]+ GiB more.*has [\d.]+ GiB") as caught:
        make_vec("toy/count-3", num_envs=4, **options, **engine)
    assert isinstance(caught.value, MemoryError)
    assert f"needs {4 * 1024 * 1024 * 3 * 10**6 // 2**30}." in str(caught.value)


def test_a_chunk_that_cannot_fit_is_refused_and_the_env_stays_usable(make, monkeypatch):
    env = make(partial(CountingEnv, length=100), frames="every")
    env.reset(seed=0)
    env.step(np.zeros((4, 2), np.float32))
    with monkeypatch.context() as patch:
        patch.setattr("polyarm.vector.memory.available_memory", lambda: 4096)
        for call in (env.step_chunk, env.send):
            with pytest.raises(HostLimit):
                call(np.zeros((4, 50, 2), np.float32))
    _, rewards, *_ = env.step_chunk(np.zeros((4, 2, 2), np.float32))
    assert rewards.tolist() == [[2, 3]] * 4


def test_the_soft_descriptor_limit_is_raised_where_it_is_too_low():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource, sys; from polyarm.vector import host;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {min(hard, 4096)}));"
        "host.raise_descriptor_limit(100);"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256;"
        "host.raise_descriptor_limit(2000);"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 2000"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def limited(soft, hard, opened, code):
    """What a process prints that has so many files open below these limits."""
    script = (
        "import os, resource\n"
        "from polyarm import HostLimit, make_vec\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"while len(os.listdir('/proc/self/fd')) < {opened}: os.open('/dev/null', os.O_RDONLY)\n"
        f"{code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_files_that_are_open_already_count():
    code = "make_vec('toy/count-3', num_envs=4).close(); print('fine')"
    assert limited(300, 4096, 295, code) == "fine\n"


@pytest.mark.parametrize(
    ("hard", "opened", "needed"), [(40, 10, 51), (120, 110, 110 + 18)], ids=["server", "trainer"]
)
def test_a_hard_descriptor_limit_that_is_too_low_is_told_with_what_is_needed(hard, opened, needed):
    code = "try: make_vec('toy/count-3', num_envs=1)\nexcept HostLimit as error: print(error)"
    told = limited(hard, hard, opened, code)
    assert f"num_workers=1 needs a limit of {needed} open files, as {opened} are open" in told
    assert f"the hard limit is {hard}" in told


def test_memory_of_processes_is_read_from_the_kernel():
    assert host.private_memory(os.getpid()) > 2**20
    assert host.proportional_memory(os.getpid()) > 2**20
    assert host.private_memory(2**30) == host.proportional_memory(2**30) == 0


def test_a_machine_is_described_by_its_facts():
    facts = host.machine_facts()
    assert facts["cores"] >= 1
    assert set(facts) == {"cpu", "cores", "memory_gib", "kernel", "python"}
