"""close() returns within seconds in every state, and leaves nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import cloudpickle
import pytest

import polyarm
from polyarm.errors import BuildError, ClosedEnv, HostLimit, WorkerDied
from polyarm.testing import CountingEnv, CrashingEnv, HangingEnv, SlowEnv
from polyarm.vector.board import Phase

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def counting():
    return CountingEnv(length=10)


def close_in_time(envs):
    """Close what may hang: by the deadline, which is 3 s."""
    began = time.monotonic()
    envs.close()
    check_closed(envs, began, 7)


def close_at_once(envs):
    """Close without a need for the deadline."""
    began = time.monotonic()
    envs.close(timeout_s=30)
    check_closed(envs, began, 10)


def check_closed(envs, began, within_s):
    took = time.monotonic() - began
    assert took < within_s, f"close() took {took:.1f} s"
    with pytest.raises(ClosedEnv):
        envs.reset()
    envs.close()


def test_an_env_that_was_never_reset():
    close_at_once(polyarm.make_vec(counting, num_envs=3, num_workers=2))


def test_an_env_with_sends_pending(probe):
    envs = polyarm.make_vec(counting, num_envs=3)
    envs.reset()
    envs.send(probe(envs).actions())
    close_at_once(envs)


def test_an_env_that_was_told_of_a_start_while_it_asked_for_something_else(probe):
    """Such events wait, with their descriptors, and nobody acts on them any more."""
    envs = polyarm.make_vec(counting, num_envs=1)
    look = probe(envs)
    envs.reset()
    os.kill(look.pid(0), signal.SIGKILL)
    envs.step(look.actions())
    supervisor = look.engine._supervisor
    look.wait_until(lambda: supervisor._tail(look.engine._workers[0]) or supervisor._events)
    close_at_once(envs)


@pytest.mark.parametrize("hold_gil", [False, True])
def test_an_env_with_a_hung_worker(probe, hold_gil):
    envs = polyarm.make_vec([counting, lambda: HangingEnv(hold_gil=hold_gil)], num_envs=2)
    look = probe(envs)
    envs.reset()
    envs.send(look.actions())
    look.wait_for_phase(1, Phase.STEP)
    close_in_time(envs)


def test_an_env_with_a_stopped_worker(probe):
    envs = polyarm.make_vec(counting, num_envs=2)
    envs.reset()
    os.kill(probe(envs).pid(0), signal.SIGSTOP)
    close_in_time(envs)


def test_an_env_with_a_dead_worker(probe):
    envs = polyarm.make_vec(counting, num_envs=2)
    envs.reset()
    os.kill(probe(envs).pid(0), signal.SIGKILL)
    close_at_once(envs)


def test_an_env_with_a_dead_worker_that_was_noticed(probe):
    envs = polyarm.make_vec(counting, num_envs=2)
    look = probe(envs)
    envs.reset()
    os.kill(look.pid(0), signal.SIGKILL)
    envs.step(look.actions())
    close_at_once(envs)


def test_an_env_with_a_dead_server(probe):
    envs = polyarm.make_vec(counting, num_envs=2)
    envs.reset()
    os.kill(probe(envs).server_pid, signal.SIGKILL)
    close_at_once(envs)


def test_an_env_that_gave_up(probe):
    envs = polyarm.make_vec([CrashingEnv, counting], num_envs=2, max_restarts=0)
    look = probe(envs)
    envs.reset()

    def steps():
        for _ in range(3):
            envs.step(look.actions())

    with pytest.raises(WorkerDied):
        steps()
    close_at_once(envs)


@pytest.mark.parametrize("start", ["built", "imports"])
def test_an_env_in_the_middle_of_a_restart(probe, tmp_path, start):
    marker = str(tmp_path / "built")

    def build():
        if Path(marker).exists():
            time.sleep(3600)
        return CountingEnv()

    envs = polyarm.make_vec([build, counting], num_envs=2, start=start)
    look = probe(envs)
    envs.reset()
    Path(marker).touch()
    for pid in look.zygote_pids():
        os.kill(pid, signal.SIGKILL)
    os.kill(look.pid(0), signal.SIGKILL)
    envs.step(look.actions())
    close_at_once(envs)


def test_a_failed_make_vec_among_good_envs_returns_soon():
    tasks = [*[counting] * 7, lambda: CrashingEnv(where="constructor")]
    began = time.monotonic()
    with pytest.raises(BuildError):
        polyarm.make_vec(tasks, num_envs=8)
    assert time.monotonic() - began < 10


def test_a_failed_make_vec_whose_good_envs_hang_in_close_returns_soon():
    tasks = [*[lambda: HangingEnv(where="close")] * 3, lambda: CrashingEnv(where="constructor")]
    began = time.monotonic()
    with pytest.raises(BuildError):
        polyarm.make_vec(tasks, num_envs=4)
    assert time.monotonic() - began < 15


def test_a_fork_server_that_cannot_be_started_leaves_nothing_open(monkeypatch):
    def no_process(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    with pytest.raises(HostLimit, match=r"no process can be started.*no more processes.*nproc"):
        polyarm.make_vec(counting, num_envs=2)


def test_a_call_that_another_thread_closes_the_env_under_says_so(probe):
    envs = polyarm.make_vec(partial(SlowEnv, step_s=30.0), num_envs=2)
    look = probe(envs)
    envs.reset()
    closer = threading.Timer(0.3, envs.close)
    closer.start()
    with pytest.raises(ClosedEnv, match="closed during the call"):
        envs.step(look.actions())
    closer.join()


def test_the_fork_server_leaves_no_socket_open(monkeypatch, capfd):
    """Which Python would tell of, on the user's terminal."""
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    with polyarm.make_vec(counting, num_envs=2) as envs:
        envs.reset()
    assert "ResourceWarning" not in capfd.readouterr().err


def test_an_env_is_made_where_the_working_folder_has_been_deleted(run_script, tmp_path):
    script = run_script("""
        import os, tempfile, polyarm
        from polyarm.testing import CountingEnv

        if __name__ == "__main__":
            gone = tempfile.mkdtemp()
            os.chdir(gone)
            os.rmdir(gone)
            for start in ("built", "fresh"):
                with polyarm.make_vec(CountingEnv, num_envs=1, start=start) as envs:
                    envs.reset()
                    print(envs.step(envs.action_space.sample())[-1]["steps"])
    """)
    assert script.finish() == "[1]\n[1]\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_that_die_while_the_env_closes(probe, number):
    envs = polyarm.make_vec(counting, num_envs=4, num_workers=2)
    look = probe(envs)
    envs.reset()
    envs.send(look.actions()[:1], [0])
    for pid in envs.worker_pids:
        os.kill(pid, number)
    close_in_time(envs)


def test_a_server_asked_to_terminate_ends_everything(probe):
    envs = polyarm.make_vec(counting, num_envs=2)
    look = probe(envs)
    pids = [*envs.worker_pids, look.server_pid]
    os.kill(look.server_pid, signal.SIGTERM)
    look.wait_until(lambda: not any(look.running(pid) for pid in pids))
    close_at_once(envs)


HOLDER = """
import ctypes, os, sys, time

libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(0x4206, int(sys.argv[1]), None, None) != 0:  # PTRACE_SEIZE
    sys.exit(os.strerror(ctypes.get_errno()))
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["close", "finalizer"])
def test_a_process_that_nobody_can_end_is_left_behind_with_a_warning(probe, how):
    """Like one stuck in a driver: who traces a process keeps it from being reaped."""
    envs = polyarm.make_vec(counting, num_envs=2)
    envs.reset()
    pid = probe(envs).pid(1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(pid)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with holder:
        try:
            if holder.stdout.readline() != "held\n":
                pytest.skip(f"tracing a process is not allowed here: {holder.stderr.read()}")
            began = time.monotonic()
            with pytest.warns(ResourceWarning, match=rf"\[{pid}\] do not die of SIGKILL"):
                envs.close() if how == "close" else envs._finalizer()
            assert time.monotonic() - began < 12
        finally:
            holder.kill()
    envs.close()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("limits", "said"), [("-S", "[1]"), ("-H -S", "ulimit -Hf")])
def test_a_limit_on_the_size_of_files_is_raised_or_told(run_script, num_workers, limits, said):
    """Letters lie far apart in their file, which is nearly all holes."""
    script = run_script(f"""
        import resource, polyarm
        from polyarm.testing import CountingEnv

        if __name__ == "__main__":
            soft = 2**20
            hard = soft if "-H" in {limits!r} else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            try:
                with polyarm.make_vec(CountingEnv, num_envs=1, num_workers={num_workers}) as envs:
                    envs.reset()
                    print(envs.step(envs.action_space.sample())[-1]["steps"])
            except polyarm.HostLimit as error:
                print(error)
    """)
    assert said in script.finish()
