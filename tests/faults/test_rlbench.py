"""RLBench's failures, as its double reproduces them: a worker and its display are replaced.

Whatever happens, no X server, socket or process stays behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyarm import make_vec
from polyarm.display import xvfb
from polyarm.errors import BuildError, DisplayError, EnvCallError, InvalidAction, InvalidCall
from polyarm.suites.rlbench.environment import Environment

pytestmark = pytest.mark.usefixtures("rlbench")

DOUBLE = Path(__file__).parents[1] / "rlbench_double"
FRAMES = {"cameras": ("front",), "image_size": (16, 16)}


def x_server_of(worker: int) -> int:
    """Pid of the X server that a worker has started."""
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    (server,) = [int(child) for child in children if xvfb.numbers_of(int(child))]
    return server


def stale_sockets() -> set[str]:
    """Sockets of X servers that nobody serves any more."""
    served = Path("/proc/net/unix").read_text()
    sockets = Path("/tmp/.X11-unix").glob("X*")
    return {str(path) for path in sockets if f" {path}\n" not in served}


@pytest.fixture(autouse=True)
def no_socket_is_left(wait_until):
    before = stale_sockets()
    yield
    wait_until(lambda: not stale_sockets() - before, what="sockets of X servers are gone")


def hold(obs: Any) -> np.ndarray:
    pose = obs["state"][:, 1:8]
    return np.concatenate([pose, np.ones((len(pose), 1))], axis=1).astype(np.float32)


def switch(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("RLBENCH_DOUBLE", f"loader,{words}")


def play(envs: Any, steps: int) -> tuple[Counter[str], list[str]]:
    """Hold still for some steps, resetting what failed; kinds of failures and their words."""
    obs, _ = envs.reset(seed=0)
    kinds: Counter[str] = Counter()
    words = []
    for _ in range(steps):
        obs, _, _, _, info = envs.step(hold(obs))
        for error in info.get("error", ()):
            if error is not None:
                kinds[error.kind] += 1
                words.append(str(error))
    return kinds, words


def test_a_dead_x_server_replaces_worker_and_display():
    with make_vec("rlbench/reach_target", num_envs=3, **FRAMES) as envs:
        obs, _ = envs.reset(seed=0)
        pids = envs.worker_pids
        victim = x_server_of(pids[1])
        os.kill(victim, signal.SIGKILL)
        kinds: Counter[str] = Counter()
        for _ in range(4):
            obs, _, _, _, info = envs.step(hold(obs))
            kinds += Counter(e.kind for e in info.get("error", ()) if e is not None)
        assert kinds == {"died": 1}
        assert obs["pixels/front"].any()
        replaced = envs.worker_pids
        assert [replaced[slot] == pids[slot] for slot in range(3)] == [True, False, True]
        assert x_server_of(replaced[1]) != victim


def test_a_dead_shared_x_server_is_replaced_with_all_workers():
    with make_vec("rlbench/reach_target", num_envs=2, display="xvfb-shared", **FRAMES) as envs:
        obs, _ = envs.reset(seed=0)
        os.kill(x_server_of(envs._engine._server._process.pid), signal.SIGKILL)
        lost = 0
        for _ in range(5):
            obs, _, _, _, info = envs.step(hold(obs))
            lost += sum(error is not None for error in info.get("error", ()))
        assert lost == 2
        assert obs["pixels/front"].any()


def test_a_stopped_x_server_is_a_hang():
    with make_vec("rlbench/reach_target", num_envs=1, step_timeout_s=1.0, **FRAMES) as envs:
        obs, _ = envs.reset(seed=0)
        os.kill(x_server_of(envs.worker_pids[0]), signal.SIGSTOP)
        *_, info = envs.step(hold(obs))
        assert info["error"][0].kind == "hung"
        obs, *_ = envs.step(hold(obs))
        assert obs["pixels/front"].any()


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("abort_step=3@{}", "died", "SIGABRT"),
        ("segv_step=3@{}", "died", "SIGSEGV"),
        ("fault_step=3@{}", "exception", "V-REP side"),
        ("hang_step=3@{}", "hung", "did not answer within 2 s"),
        ("abort_reset=3@{}", "died", "buffer overflow"),
        ("hang_reset=3@{}", "hung", "did not answer within 2.5 s"),
    ],
)
def test_a_failing_simulator_costs_its_episode_and_nobody_elses(
    words: str, kind: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    switch(monkeypatch, words.format(tmp_path / "once"))
    with make_vec(
        "rlbench/reach_target", num_envs=2, step_timeout_s=2.0, reset_timeout_s=2.5, max_steps=4
    ) as envs:
        kinds, told = play(envs, 14)
    assert kinds == {kind: 1}
    assert said in told[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("abort_launch", "buffer overflow detected"),
        ("handle", "Handle Panda does not exist"),
        ("hang_launch", "build"),
    ],
)
def test_a_simulator_that_does_not_start_is_a_build_error(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    switch(monkeypatch, words)
    with pytest.raises(BuildError, match=said):
        make_vec("rlbench/reach_target", num_envs=1, build_timeout_s=4.0)


def test_a_slow_reset_is_no_hang(monkeypatch: pytest.MonkeyPatch):
    switch(monkeypatch, "slow_reset=1.0")
    with make_vec("rlbench/reach_target", num_envs=1, step_timeout_s=0.5) as envs:
        _, info = envs.reset(seed=0)
        assert "error" not in info


def test_nothing_that_is_not_finite_reaches_the_simulator():
    with make_vec("rlbench/reach_target", num_envs=1) as envs:
        obs, _ = envs.reset(seed=0)
        for poison in (np.nan, np.inf):
            action = hold(obs)
            action[0, 0] = poison
            with pytest.raises(InvalidAction):
                envs.step(action)
        obs, *_, info = envs.step(hold(obs))
        assert "error" not in info


def test_a_terminated_worker_is_replaced_although_it_swallows_the_signal():
    with make_vec("rlbench/reach_target", num_envs=1) as envs:
        obs, _ = envs.reset(seed=0)
        pid = envs.worker_pids[0]
        os.kill(pid, signal.SIGTERM)
        lost = 0
        for _ in range(3):
            obs, *_, info = envs.step(hold(obs))
            lost += "error" in info
        assert lost == 1
        assert envs.worker_pids[0] != pid


def test_two_simulators_never_share_a_process():
    with pytest.raises(InvalidCall, match="one simulator per process"):
        make_vec("rlbench/reach_target", num_envs=4, num_workers=2)


def test_without_xvfb_frames_are_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch):
    folders = os.environ["PATH"].split(os.pathsep)
    without = [folder for folder in folders if not (Path(folder) / "Xvfb").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(without))
    sys.modules["polyarm.display.select"]._probe.cache_clear()
    with pytest.raises(DisplayError, match="apt-get install xvfb"):
        make_vec("rlbench/reach_target", num_envs=1, **FRAMES)


def test_a_killed_trainer_leaves_no_x_server(run_script, wait_until, running):
    trainer = run_script(
        """
        from polyarm import make_vec
        envs = make_vec("rlbench/reach_target", num_envs=3, cameras=("front",), image_size=(16, 16))
        envs.reset(seed=0)
        print("ready")
        import time; time.sleep(60)
        """
    )
    assert trainer.line() == "ready"
    tree = trainer.tree()
    servers = [pid for pid in tree if xvfb.numbers_of(pid)]
    assert len(servers) == 3
    trainer.kill()
    wait_until(lambda: not any(running(pid) for pid in tree), 10.0, "everything is gone")


def test_a_killed_fork_server_leaves_no_x_server(run_script, wait_until, running):
    trainer = run_script(
        """
        from polyarm import make_vec
        envs = make_vec("rlbench/reach_target", num_envs=2, cameras=("front",), image_size=(16, 16))
        envs.reset(seed=0)
        print(envs._engine._server._process.pid)
        import time; time.sleep(60)
        """
    )
    server = int(trainer.line())
    tree = trainer.tree()
    assert len([pid for pid in tree if xvfb.numbers_of(pid)]) == 2
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not any(running(pid) for pid in tree), 10.0, "everything is gone")


@pytest.mark.parametrize("rounds", [3, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_launches_and_closes_leave_nothing(rounds: int, wait_until):
    before = stale_sockets()
    for _ in range(rounds):
        with make_vec("rlbench/reach_target", num_envs=8, **FRAMES) as envs:
            servers = [x_server_of(pid) for pid in envs.worker_pids]
            pids = envs.worker_pids
        assert not any(Path(f"/proc/{pid}").exists() for pid in (*servers, *pids))
        wait_until(lambda: not stale_sockets() - before, what="sockets of X servers are gone")


def test_two_jobs_at_once_never_share_a_display():
    numbers: list[set[int]] = []

    def job() -> None:
        with make_vec("rlbench/reach_target", num_envs=3, **FRAMES) as envs:
            envs.reset(seed=0)
            mine = set()
            for pid in envs.worker_pids:
                mine |= xvfb.numbers_of(x_server_of(pid))
            numbers.append(mine)
            barrier.wait(30)

    barrier = threading.Barrier(2)
    jobs = [threading.Thread(target=job) for _ in range(2)]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join()
    assert [len(mine) for mine in numbers] == [3, 3]
    assert not numbers[0] & numbers[1]


def test_another_interpreter_has_packages_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It finds the trainer's polyarm, but nothing else that only the trainer has."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    packages = [path for path in sys.path if "site-packages" in path]
    (site / "dependencies.pth").write_text("\n".join([*packages, str(DOUBLE)]))
    trainers = tmp_path / "trainers"
    trainers.mkdir()
    (trainers / "rlbench.py").write_text("raise RuntimeError('the trainer has another one')")
    monkeypatch.setenv("PYTHONPATH", str(trainers))
    python = folder / "bin" / "python"
    with make_vec("rlbench/reach_target", num_envs=1, interpreter=str(python)) as envs:
        obs, _ = envs.reset(seed=0)
        assert obs["state"].any()
        command = Path(f"/proc/{envs.worker_pids[0]}/cmdline").read_bytes().split(b"\0")[0]
        assert command.decode() == str(python)


def test_an_interpreter_that_does_not_exist_is_named():
    with pytest.raises(BuildError, match="cannot start /nowhere/python"):
        make_vec("rlbench/reach_target", num_envs=1, interpreter="/nowhere/python")


def test_a_simulator_that_cannot_be_forked_is_not():
    with pytest.raises(InvalidCall, match="does not survive"):
        make_vec("rlbench/reach_target", num_envs=1, start="built")


IN_PROCESS = """
    import os
    from polyarm import make_vec
    from polyarm.errors import BuildError

    before = dict(os.environ)
    for cameras in ((), ("front",)):
        for _ in range(2):
            with make_vec("rlbench/reach_target", num_envs=1, num_workers=0, cameras=cameras,
                          image_size=(16, 16)) as envs:
                obs, _ = envs.reset(seed=0)
                assert ("pixels/front" in obs) == bool(cameras)
    try:
        make_vec("rlbench/reach_target", num_envs=1, num_workers=0, task_state=1)
    except BuildError as error:
        assert "task_state=3" in str(error)
    make_vec("rlbench/reach_target", num_envs=1, num_workers=0, task_state=3).close()
    changed = {name for name in before.keys() | os.environ.keys()
               if before.get(name) != os.environ.get(name)}
    assert not changed, changed
    print("done")
"""


def test_in_this_process_one_simulator_follows_another_and_no_variable_stays(
    run_script, rlbench: Path, monkeypatch: pytest.MonkeyPatch
):
    # A process of its own cannot change where the loader looks: that is set from outside.
    for name, value in Environment(rlbench, Path()).variables().items():
        monkeypatch.setenv(name, value)
    assert run_script(IN_PROCESS).finish(60.0).strip() == "done"


def test_the_expert_does_not_start_in_the_middle_of_an_episode():
    with make_vec("rlbench/reach_target", num_envs=1, max_restarts=0) as envs:
        obs, _ = envs.reset(seed=0)
        envs.step(hold(obs))
        with pytest.raises(EnvCallError, match="from its start"):
            envs.call("expert_action")
