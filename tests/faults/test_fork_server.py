"""The fork server itself: its death, its adopted children, its fall-back to fresh interpreters."""

from __future__ import annotations

import atexit
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import polyarm
from polyarm.errors import BuildError, ForkServerDied, InvalidCall, WorkerDied
from polyarm.testing import (
    CountingEnv,
    CrashingEnv,
    ForkingEnv,
    HangingEnv,
    SegfaultingEnv,
    SlowEnv,
)
from polyarm.vector import host, process
from polyarm.vector.board import Phase
from polyarm.vector.launcher import ForkServerProcess
from polyarm.vector.signals import announce

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def counting():
    return CountingEnv(length=10)


@pytest.mark.parametrize("state", ["idle", "stepping", "restarting"])
def test_a_killed_fork_server_is_an_error_and_takes_the_workers_with_it(probe, state):
    envs = polyarm.make_vec(HangingEnv if state == "stepping" else counting, num_envs=3)
    try:
        look = probe(envs)
        pids = [*envs.worker_pids, *look.zygote_pids()]
        envs.reset()
        if state == "stepping":
            envs.send(look.actions())
            look.wait_for_phase(2, Phase.STEP)
        if state == "restarting":
            os.kill(look.pid(1), signal.SIGKILL)
        os.kill(look.server_pid, signal.SIGKILL)
        # The server dies a moment after the signal was sent: until then a step may still work.
        look.wait_until(lambda: not any(look.running(pid) for pid in pids))
        for _ in range(2):
            with pytest.raises(ForkServerDied, match="-9"):
                envs.recv(3) if state == "stepping" else envs.step(look.actions())
    finally:
        began = time.monotonic()
        envs.close(timeout_s=30)
    assert time.monotonic() - began < 10


def test_a_stopped_fork_server_does_not_hold_up_close(probe, monkeypatch):
    monkeypatch.setattr("polyarm.vector.launcher._LINGER_S", 1.0)
    envs = polyarm.make_vec(counting, num_envs=2)
    look = probe(envs)
    pids = [*envs.worker_pids, look.server_pid]
    os.kill(look.server_pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.warns(ResourceWarning):
        envs.close()
    assert time.monotonic() - began < 20
    look.wait_until(lambda: not any(look.running(pid) for pid in pids))


def test_a_fork_server_that_starts_nobody_is_an_error_and_no_wait_without_end(monkeypatch):
    monkeypatch.setattr("polyarm.vector.supervisor._PATIENCE_S", 0.5)
    monkeypatch.setattr("polyarm.vector.launcher._LINGER_S", 1.0)
    start_worker = ForkServerProcess.start_worker

    def stop_first(server, *arguments):
        server._process.send_signal(signal.SIGSTOP)
        start_worker(server, *arguments)

    monkeypatch.setattr(ForkServerProcess, "start_worker", stop_first)
    with (
        pytest.warns(ResourceWarning, match="fork server"),
        pytest.raises(WorkerDied, match=r"worker 0 \(slots \[0\], .*\) has not been started"),
    ):
        polyarm.make_vec(counting, num_envs=2, build_timeout_s=0.2)


@pytest.mark.parametrize("new_session", [False, True])
def test_the_children_of_a_killed_worker_are_killed_too(probe, new_session):
    with polyarm.make_vec(lambda: ForkingEnv(new_session=new_session), num_envs=2) as envs:
        look = probe(envs)
        _, info = envs.reset()
        left, right = (int(pid) for pid in info["child_pid"])
        assert look.running(left)
        os.kill(look.pid(0), signal.SIGKILL)
        envs.step(look.actions())
        look.wait_until(lambda: not look.running(left))
        assert look.running(right)
        envs.step(look.actions())
    assert not look.running(right)


@pytest.mark.parametrize("new_session", [False, True])
def test_a_neighbours_death_spares_the_daemons_of_living_workers(probe, new_session):
    class DaemonEnv(CountingEnv):
        """Starts a daemon by a shell that ends at once, as Xvfb wrappers do."""

        def __init__(self):
            super().__init__()
            command = "sleep 1000 >/dev/null 2>&1 & echo $!"
            if new_session:
                command = "setsid " + command
            self.daemon = int(subprocess.check_output(["sh", "-c", command]))

    with polyarm.make_vec(DaemonEnv, num_envs=2, start="imports") as envs:
        look = probe(envs)
        envs.reset()
        left, right = envs.get_attr("daemon")
        assert look.running(left)
        assert look.running(right)
        victim = look.pid(0)
        os.kill(victim, signal.SIGKILL)
        envs.step(look.actions())
        envs.step(look.actions())
        look.wait_until(lambda: not look.running(left))
        assert look.running(right), "the living worker's daemon was killed"
    look.wait_until(lambda: not look.running(right))


def test_a_stale_completion_is_dropped(probe, tmp_path):
    once = str(tmp_path / "once")
    tasks = [lambda: HangingEnv(at=1, only_first=once), counting]
    with polyarm.make_vec(tasks, num_envs=2) as envs:
        look = probe(envs)
        envs.reset(seed=2)
        envs.send(look.actions())
        look.wait_for_phase(0, Phase.STEP)
        worker = look.engine._owner[0]
        old = worker.generation
        os.kill(worker.pid, signal.SIGKILL)
        envs.recv(2)
        envs.send(look.actions())
        pipe = look.engine._completions.write_fd
        current = worker.sequence
        for generation, sequence in [(old, current), (old, current + 1), (old + 9, current)]:
            announce(pipe, 0, generation, sequence)
        announce(pipe, 77, old + 1, current)
        announce(pipe, 2**32 - 1, 2**32 - 1, 2**64 - 1)
        ready = envs.recv(2)
        assert sorted(ready.slots.tolist()) == [0, 1]
        order = np.argsort(ready.slots)
        assert ready.info["steps"][order].tolist() == [0, 1]
        assert ready.obs["state"][order][0, 1] == 0
        for number in (1, 2, 3):
            _, rewards, *_ = envs.step(look.actions())
            assert rewards.tolist() == [number, number + 2]


def test_a_flood_of_stale_completions_is_survived(probe):
    with polyarm.make_vec(counting, num_envs=2) as envs:
        look = probe(envs)
        envs.reset()
        pipe = look.engine._completions.write_fd
        for _ in range(4000):
            announce(pipe, 0, 999, 1)
        for number in (1, 2, 3):
            assert envs.step(look.actions())[1].tolist() == [number] * 2


def test_make_vec_may_be_called_from_a_thread_that_ends(probe):
    made = []
    thread = threading.Thread(
        target=lambda: made.append(polyarm.make_vec(counting, num_envs=3, num_workers=2))
    )
    thread.start()
    thread.join()
    (envs,) = made
    with envs:
        look = probe(envs)
        pids = envs.worker_pids
        envs.reset()
        for number in range(1, 10):
            assert envs.step(look.actions())[1].tolist() == [number] * 3
        assert envs.worker_pids == pids
        os.kill(look.pid(0), signal.SIGKILL)
        assert envs.step(look.actions())[-1]["error"][0].kind == "died"
        envs.step(look.actions())
        assert envs.step(look.actions())[1][0] == 1


@pytest.mark.timeout(60)
def test_workers_that_build_before_their_zygote_has_told_of_them_hold_nobody_up(probe):
    """As many builds at a time as cores; whoever has finished must not count for ever."""
    num_envs = 3 * host.cores()
    with polyarm.make_vec("slow_zygote:counting", num_envs=num_envs, start="imports") as envs:
        look = probe(envs)
        envs.reset()
        assert envs.step(look.actions())[1].tolist() == [1] * num_envs


THREADED = """
import threading, time
from polyarm.testing import CountingEnv
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
def build():
    return CountingEnv(length=10)
"""


@pytest.mark.parametrize("start", ["built", "imports"])
def test_an_import_that_starts_threads_leads_to_fresh_interpreters(
    probe, tmp_path, monkeypatch, start
):
    (tmp_path / "threaded_env.py").write_text(THREADED)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(RuntimeWarning, match="threads") as caught:
        envs = polyarm.make_vec("threaded_env:build", num_envs=3, start=start)
    with envs:
        look = probe(envs)
        assert len([w for w in caught if w.category is RuntimeWarning]) == 1
        envs.reset()
        assert envs.step(look.actions())[1].tolist() == [1, 1, 1]
        os.kill(look.pid(2), signal.SIGKILL)
        assert envs.step(look.actions())[-1]["error"][2].kind == "died"
        envs.step(look.actions())
        assert envs.step(look.actions())[1].tolist() == [4, 4, 1]
    assert "threaded_env" not in sys.modules


def test_a_constructor_that_starts_threads_leads_to_fresh_interpreters_too(probe):
    class ThreadedEnv(CountingEnv):
        def __init__(self):
            super().__init__()
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

    with pytest.warns(RuntimeWarning, match="threads"):
        envs = polyarm.make_vec(ThreadedEnv, num_envs=2, start="built")
    with envs:
        look = probe(envs)
        envs.reset()
        assert envs.step(look.actions())[1].tolist() == [1, 1]


@pytest.mark.parametrize("start", ["built", "imports"])
def test_a_fork_server_that_has_threads_itself_forks_nothing(probe, tmp_path, monkeypatch, start):
    code = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="Python starts with 2 threads here.*sitecustomize"):
        envs = polyarm.make_vec(partial(CountingEnv, length=10), num_envs=2, start=start)
    with envs:
        look = probe(envs)
        assert not look.zygote_pids()
        envs.reset()
        os.kill(look.pid(1), signal.SIGKILL)
        assert envs.step(look.actions())[-1]["error"][1].kind == "died"
        envs.step(look.actions())
        assert envs.step(look.actions())[1].tolist() == [3, 1]


WITHOUT_PROCESSES = """
import errno, os
plain = os.fork
def fork():
    if os.path.exists({flag!r}):
        raise BlockingIOError(errno.EAGAIN, "no more processes")
    return plain()
os.fork = fork
"""


@pytest.mark.parametrize("start", ["built", "imports"])
def test_a_host_out_of_processes_costs_only_the_slot_that_needs_one(
    probe, tmp_path, monkeypatch, start
):
    """Neither the fork server ends for it, nor a zygote, nor the other workers."""
    flag = tmp_path / "no-more"
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PROCESSES.format(flag=str(flag)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with polyarm.make_vec(
        partial(CountingEnv, length=100), num_envs=2, start=start, max_restarts=10**9
    ) as envs:
        look = probe(envs)
        envs.reset()
        zygotes = set(look.zygote_pids())
        other = look.pid(1)
        flag.touch()

        def refused(result):
            errors = [error.message for error in result[-1].get("error", ()) if error]
            return any("cannot fork" in message for message in errors)

        while not refused(envs.step(look.actions())):  # a spare may replace the first
            if pid := envs._engine._owner[0].pid:
                os.kill(pid, signal.SIGKILL)
        flag.unlink()
        look.step_until(lambda result: result[-1]["steps"].all())
        assert look.pid(1) == other
        assert zygotes & set(look.zygote_pids())


def test_a_host_out_of_processes_at_the_start_is_a_build_error(tmp_path, monkeypatch):
    flag = tmp_path / "no-more"
    flag.touch()
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PROCESSES.format(flag=str(flag)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"cannot fork: .*no more processes"):
        polyarm.make_vec(counting, num_envs=2)


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, to give a capability away")
def test_a_process_that_may_not_be_killed_costs_nobody_anything(run_script, running, tmp_path):
    """As sudo and setuid programs are: of another user, whom the trainer may not signal."""
    source = """
        import os, pathlib, signal, time, warnings, polyarm
        from polyarm.testing import CountingEnv

        class Sudo(CountingEnv):
            def step(self, action):
                if action[0] and not (child := os.fork()):
                    os.setsid()
                    os.closerange(0, 256)  # the script is waited for by the end of its output
                    os.setresuid(12345, 12345, 12345)
                    time.sleep(100)
                elif action[0]:
                    pathlib.Path("child").write_text(str(child))
                    time.sleep(0.2)
                return super().step(action)

        if __name__ == "__main__":
            envs = polyarm.make_vec(Sudo, num_envs=2)
            envs.reset()
            actions = envs.action_space.sample() * 0
            actions[0] = 1
            envs.step(actions)
            actions[0] = 0
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            for _ in range(3):
                *_, info = envs.step(actions)
            print(info["steps"], flush=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                began = time.monotonic()
                envs.close()
            print(time.monotonic() - began < 4, [str(each.message) for each in caught], flush=True)
    """
    wrapped = f"""
        import os, sys
        os.execvp("setpriv", ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill",
                              sys.executable, {str(tmp_path / "real.py")!r}])
    """
    (tmp_path / "real.py").write_text(textwrap.dedent(source))
    script = run_script(wrapped, cwd=tmp_path)
    try:
        out = script.finish()
    finally:
        child = int((tmp_path / "child").read_text())
        os.kill(child, signal.SIGKILL)
    assert (
        out == f"[1 1]\nTrue ['processes [{child}] do not die of SIGKILL; leaving them behind']\n"
    )


def test_repeated_deaths_leave_nothing_in_the_server(probe):
    with polyarm.make_vec(
        lambda: SegfaultingEnv(at=1), num_envs=2, max_restarts=1000, start="built"
    ) as envs:
        look = probe(envs)
        envs.reset()

        def held():
            return len(os.listdir(f"/proc/{look.server_pid}/fd")), len(os.listdir("/proc/self/fd"))

        counts = []
        for _ in range(15):
            envs.step(look.actions())
            envs.step(look.actions())
            counts.append(held())
        assert max(counts[10:])[0] <= max(counts[:5])[0] + 2
        assert max(c[1] for c in counts[10:]) <= max(c[1] for c in counts[:5]) + 2


def test_repeated_exceptions_in_one_slot_workers_leave_nothing_either(probe):
    with polyarm.make_vec(lambda: CrashingEnv(at=1), num_envs=2, max_restarts=1000) as envs:
        look = probe(envs)
        envs.reset()
        counts = []
        for _ in range(25):
            assert envs.step(look.actions())[-1]["error"][0].error_class == "RuntimeError"
            envs.step(look.actions())
            counts.append(len(os.listdir("/proc/self/fd")))
        assert max(counts[15:]) <= max(counts[:5]) + 2


def refused_everything(envs, look):
    """Like a DataLoader's worker that was given the trainer's env."""
    calls = [
        lambda: envs.step(look.actions()),
        lambda: envs.step_chunk(look.actions(2)),
        lambda: envs.send(look.actions()),
        envs.reset,
        envs.recv,
        envs.render,
        lambda: envs.get_attr("length"),
    ]
    for call in calls:
        with pytest.raises(InvalidCall, match=f"belongs to process {os.getppid()}"):
            call()


@pytest.mark.parametrize("way", ["exit", "close", "daemon", "calls"])
def test_a_forked_copy_of_the_trainer_does_nothing_to_the_running_env(probe, way):
    with polyarm.make_vec(counting, num_envs=2) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        pids = envs.worker_pids
        envs.send(look.actions())
        does = {
            "exit": int,
            "close": envs.close,
            "daemon": envs._finalizer,
            "calls": partial(refused_everything, envs, look),
        }
        copy = os.fork()
        if copy == 0:
            process.run_and_leave(does[way])
        assert os.waitpid(copy, 0)[1] == 0
        assert envs.recv(2).rewards.tolist() == [2, 2]
        for number in (3, 4):
            assert envs.step(look.actions())[1].tolist() == [number] * 2
        assert envs.worker_pids == pids


def test_forked_copies_may_exit_like_any_python_process(run_script):
    source = """
    import multiprocessing, os, sys
    import numpy as np
    import polyarm
    from polyarm.testing import CountingEnv

    envs = polyarm.make_vec(lambda: CountingEnv(length=100), num_envs=2)
    envs.reset()

    def load(queue):
        queue.put(os.getpid())

    context = multiprocessing.get_context("fork")
    for _ in range(3):
        queue = context.SimpleQueue()
        loader = context.Process(target=load, args=(queue,))
        loader.start()
        queue.get()
        loader.join()
        assert loader.exitcode == 0
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    if os.fork() == 0:
        del envs
        sys.exit(0)
    os.wait()
    for n in range(1, 4):
        assert envs.step(np.zeros((2, 2), np.float32))[1].tolist() == [n, n]
    envs.close()
    print("done")
    """
    script = run_script(textwrap.dedent(source))
    out, err = script.communicate(timeout=60)
    assert script.returncode == 0, err
    assert out.endswith("done\n")


def test_the_trainers_death_counts_even_while_a_forked_copy_lives(run_script, wait_until, running):
    source = """
    import os, time
    import polyarm
    from polyarm.testing import CountingEnv

    envs = polyarm.make_vec(CountingEnv, num_envs=2)
    envs.reset()
    copy = os.fork()
    if copy == 0:
        os.close(1); os.close(2)
        time.sleep(20)
        os._exit(0)
    print(envs._engine._server._process.pid, copy, *envs.worker_pids, flush=True)
    time.sleep(60)
    """
    script = run_script(source)
    server, copy, *workers = map(int, script.line().split())
    try:
        script.kill()
        script.wait()
        wait_until(lambda: not any(running(pid) for pid in (server, *workers)))
        assert running(copy)
    finally:
        os.kill(copy, signal.SIGKILL)


@pytest.mark.parametrize("start", ["built", "imports"])
def test_no_more_envs_are_built_at_a_time_than_there_are_cores(tmp_path, start):
    """Different envs, so that every one needs a build of its own."""

    def build(number):
        mine = tmp_path / f"building-{number}"
        mine.touch()
        together = len(list(tmp_path.glob("building-*")))
        time.sleep(0.15)
        mine.unlink()
        (tmp_path / f"built-{number}-among-{together}").touch()
        return CountingEnv(length=10)

    num_envs = host.cores() + 4
    tasks = [partial(build, number) for number in range(num_envs)]
    with polyarm.make_vec(tasks, num_envs=num_envs, start=start) as envs:
        envs.reset()
    most = [int(path.name.rpartition("-")[2]) for path in tmp_path.glob("built-*")]
    assert len(most) >= num_envs
    assert max(most) <= host.cores()


def test_forked_workers_draw_numbers_of_their_own_and_run_no_exit_handlers(tmp_path):
    def build():
        atexit.register((tmp_path / "exited").touch)

        class DrawingEnv(CountingEnv):
            def draw(self):
                return random.random(), float(np.random.random())

        return DrawingEnv(length=10)

    with polyarm.make_vec(build, num_envs=4, start="built") as envs:
        drawn = envs.call("draw")
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 4
    assert not (tmp_path / "exited").exists()


@pytest.mark.frames
@pytest.mark.simulator
def test_the_fork_server_and_its_zygotes_have_one_thread_and_no_gl_context(probe):
    """Mesa loads the driver that draws with the first context."""
    cameras = {"cameras": ("corner2",), "image_size": (32, 32), "display": "egl"}
    with polyarm.make_vec("metaworld/reach-v3", num_envs=2, **cameras) as envs:
        look = probe(envs)
        envs.reset()
        pids = [look.server_pid, *look.zygote_pids()]
        draws = Path(f"/proc/{look.pid(0)}/maps").read_text()
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in pids]
        assert [len(os.listdir(f"/proc/{pid}/task")) for pid in pids] == [1] * len(pids)
    drivers = ("swrast", "libgallium")
    assert any(name in draws for name in drivers)
    assert not [name for name in drivers for text in maps if name in text]


def test_a_fresh_worker_holds_nothing_of_the_fork_servers(probe):
    """What it starts in turn would keep the trainer from noticing a dead fork server."""
    with polyarm.make_vec(partial(CountingEnv, length=10), num_envs=1, start="fresh") as envs:
        folder = f"/proc/{probe(envs).pid(0)}/fd"
        held = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    assert not [name for name in held if name.startswith("socket:") or "pidfd" in name], held


def test_nobody_spins_while_an_env_takes_its_time(probe):
    with polyarm.make_vec(lambda: SlowEnv(step_s=1.5), num_envs=2) as envs:
        look = probe(envs)
        envs.reset()
        pids = [os.getpid(), look.server_pid, look.pid(0)]
        before = [ticks(pid) for pid in pids]
        envs.step(look.actions())
        spent = [ticks(pid) - start for pid, start in zip(pids, before, strict=True)]
    # A core that is busy for a second and a half has 150 ticks.
    assert max(spent) <= 30, spent


def ticks(pid):
    """CPU time of a process, in hundredths of a second."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
