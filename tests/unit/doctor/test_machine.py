"""Cores, memory and limits against the planned workers."""

import resource
import threading
from pathlib import Path

import pytest

from polyarm import HostLimit
from polyarm.doctor import Case, machine
from polyarm.vector import host

GIB = 2**30


def only(findings):
    [finding] = findings
    return finding


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """Limits by their number; those that are not named are unlimited."""
    values = {}
    infinite = resource.RLIM_INFINITY

    def getrlimit(kind):
        value = values.get(kind, infinite)
        return value if isinstance(value, tuple) else (value, value)

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    monkeypatch.setattr(host, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(machine, "own_tasks", lambda: 0)
    return values


def test_cores_for_every_worker_are_fine(monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 8)
    assert only(machine.check_cores(Case(num_envs=32))).status == "ok"


def test_many_workers_on_few_cores_are_a_warning(monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 2)
    finding = only(machine.check_cores(Case(num_envs=64)))
    assert finding.status == "warning"
    assert finding.text.startswith("2 for 64 workers")
    assert "--num-envs 8" in finding.fix


def test_cores_that_are_taken_away_and_ranks_are_told(monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 4)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    text = only(machine.check_cores(Case(num_envs=4))).text
    assert "one of 8" in text
    assert "64 in the machine" in text


@pytest.mark.usefixtures("no_gpu")
def test_memory_that_suffices_is_fine(monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 100 * GIB)
    finding = only(machine.check_memory(Case("metaworld", 8)))
    assert finding.status == "ok"
    assert finding.text.startswith("100.0 GiB free, 8 workers of ")


@pytest.mark.usefixtures("no_gpu")
def test_memory_that_does_not_suffice_is_broken_with_what_fits(monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 1 * GIB)
    finding = only(machine.check_memory(Case("metaworld", 64)))
    assert finding.status == "broken"
    assert "--num-envs 3;" in finding.fix


@pytest.mark.usefixtures("no_gpu")
def test_memory_that_just_suffices_is_a_warning(monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 1 * GIB)
    finding = only(machine.check_memory(Case("metaworld", 3)))
    assert finding.status == "warning"


@pytest.mark.usefixtures("gpu")
def test_a_gpu_holds_the_textures_but_not_those_of_xvfb(monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 100 * GIB)
    assert "1 workers of 110 MiB" in only(machine.check_memory(Case("metaworld", 1))).text
    assert "1 workers of 540 MiB" in only(machine.check_memory(Case("rlbench", 1))).text


def test_memory_is_shared_by_the_ranks_of_a_host(monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 100 * GIB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert only(machine.check_memory(Case())).text == "25.0 GiB free"


def test_generous_limits_are_one_line(limits):
    finding = only(machine.check_limits(Case(num_envs=64)))
    assert finding.status == "ok"
    assert "open files unlimited, processes unlimited" in finding.text


@pytest.mark.parametrize(
    ("limit", "words", "fix"),
    [
        (resource.RLIMIT_NOFILE, "100 open files", ("nofile 496", "LimitNOFILE=496", "nofile=496")),
        (resource.RLIMIT_NPROC, "100 processes", ("nproc 384", "LimitNPROC=384", "nproc=384")),
    ],
)
def test_a_hard_limit_that_is_too_low_is_broken(limit, words, fix, limits, monkeypatch):
    monkeypatch.setattr("os.listdir", lambda _: ["0", "1", "2"])
    limits[limit] = 100
    broken, _ = machine.check_limits(Case("metaworld", 64))
    assert broken.status == "broken"
    assert words in broken.text
    for each in (*fix, "/etc/security/limits.conf", "docker run --ulimit"):
        assert each in broken.fix


@pytest.mark.parametrize("num_envs", [1, 20, 200])
@pytest.mark.parametrize("more", [-1, 0, 255, 256])
def test_open_files_are_enough_where_the_engine_says_so(limits, monkeypatch, num_envs, more):
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    limits[resource.RLIMIT_NOFILE] = host.files_needed(num_envs) + more
    status = next(machine.check_limits(Case(num_envs=num_envs))).status
    if more < 0:
        with pytest.raises(HostLimit, match="raise the hard limit: '") as refused:
            host.allow_workers(num_envs)
        assert f"LimitNOFILE={limits[resource.RLIMIT_NOFILE] + 1 + 256};" in str(refused.value)
        assert status == "broken"
    else:
        host.allow_workers(num_envs)
        assert status == ("ok" if more == 256 else "warning")


def test_a_soft_limit_is_raised_by_the_shell_or_by_the_engine(limits, monkeypatch):
    limits[resource.RLIMIT_NOFILE] = limits[resource.RLIMIT_NPROC] = (100, 100_000)
    monkeypatch.setattr(machine, "own_tasks", lambda: 50)
    broken, fine = machine.check_limits(Case("metaworld", 64))
    assert broken.text.startswith("100 processes, 50 in use, about 384")
    assert broken.fix == "ulimit -u 434 (before Python starts)"
    assert "open files 100000" in fine.text  # the engine raises its own


def test_tasks_that_are_there_already_count(limits, tmp_path, monkeypatch):
    limits[resource.RLIMIT_NPROC] = 1000
    assert only(machine.check_limits(Case("metaworld", 64))).status == "ok"
    monkeypatch.setattr(machine, "own_tasks", lambda: 900)
    assert next(machine.check_limits(Case("metaworld", 64))).status == "broken"
    limits.clear()
    (tmp_path / "pids.max").write_text("1000\n")
    assert only(machine.check_limits(Case("metaworld", 64))).status == "ok"
    (tmp_path / "pids.current").write_text("900\n")
    broken, _ = machine.check_limits(Case("metaworld", 64))
    assert "1000 tasks of the cgroup, 900 in use" in broken.text


def test_threads_of_this_user_are_counted():
    before = machine.own_tasks()
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(50)]
    for thread in threads:
        thread.start()
    try:
        assert machine.own_tasks() > max(before - 50, 50)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_container_s_limit_on_tasks_counts(limits, tmp_path):
    (tmp_path / "pids.max").write_text("100\n")
    broken, _ = machine.check_limits(Case("metaworld", 64))
    assert broken.status == "broken"
    assert "--pids-limit" in broken.fix


def test_the_cgroup_with_the_least_room_counts(limits, tmp_path):
    assert machine.pids_limit() == (resource.RLIM_INFINITY, 0)
    inner = tmp_path / "user.slice" / "job"
    inner.mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/user.slice/job\n")
    for folder, most, now in ((tmp_path, "4096", "4000"), (inner, "1000", "10")):
        (folder / "pids.max").write_text(f"{most}\n")
        (folder / "pids.current").write_text(f"{now}\n")
    assert machine.pids_limit() == (4096, 4000)
    (inner / "pids.current").write_text("950\n")
    assert machine.pids_limit() == (1000, 950)


def test_the_old_cgroups_have_their_limit_on_the_process_s_path(limits, tmp_path):
    (tmp_path / "membership").write_text("3:pids:/docker/abc\n0::/\n")
    folder = tmp_path / "pids" / "docker" / "abc"
    folder.mkdir(parents=True)
    (folder / "pids.max").write_text("77\n")
    (tmp_path / "pids" / "pids.max").write_text("max\n")
    assert machine.pids_limit() == (77, 0)


def test_locked_memory_is_only_told(limits):
    limits[resource.RLIMIT_MEMLOCK] = 2**16 * 1024
    assert "locked memory 64 MiB" in only(machine.check_limits(Case())).text


def test_shared_memory_of_any_size_is_fine(monkeypatch):
    assert only(machine.check_shared_memory(Case())).status == "ok"
    monkeypatch.setattr(machine, "_SHM", Path("/nowhere"))
    assert "not needed" in only(machine.check_shared_memory(Case())).text
