"""However the trainer ends, nothing of it is left: no process, no shared memory."""

from __future__ import annotations

import os
import signal

import pytest

HEAD = """
import os, sys, time
import numpy as np
import polyarm
from polyarm.testing import CountingEnv, ForkingEnv, HangingEnv, SlowEnv
"""

IDLE = (
    HEAD
    + """
envs = polyarm.make_vec({env}, num_envs={num}, start={start!r}, num_workers={workers})
envs.reset()
envs.step(np.zeros(({num}, 2), np.float32))
print("ready", *envs.worker_pids, flush=True)
time.sleep(60)
"""
)

STEPPING = (
    HEAD
    + """
envs = polyarm.make_vec({env}, num_envs={num}, start={start!r}, num_workers={workers})
envs.reset()
print("ready", *envs.worker_pids, flush=True)
envs.step(np.zeros(({num}, 2), np.float32))
"""
)

BUILDING = (
    HEAD
    + """
def build():
    print("building", os.getpid(), flush=True)
    os.system("sleep 1000 &")
    time.sleep(60)
polyarm.make_vec(build, num_envs={num}, start={start!r}, num_workers={workers})
"""
)


def assert_all_gone(pids, wait_until, running):
    wait_until(lambda: not any(running(pid) for pid in pids), what=f"{pids} gone")


@pytest.mark.parametrize("start", ["built", "fresh"])
@pytest.mark.parametrize(
    ("source", "env"),
    [
        (IDLE, "CountingEnv"),
        (IDLE, "lambda: ForkingEnv()"),
        (IDLE, "lambda: ForkingEnv(new_session=True)"),
        (STEPPING, "HangingEnv"),
        (STEPPING, "lambda: HangingEnv(hold_gil=True)"),
        (BUILDING, ""),
    ],
    ids=["idle", "children", "sessions", "in a step", "in a step with the lock", "in a build"],
)
def test_a_killed_trainer_takes_everything_with_it(
    run_script, wait_until, running, source, env, start
):
    num = 4 if start == "fresh" else 8
    workers = None if source is not BUILDING else 2
    script = run_script(source.format(env=env, num=num, start=start, workers=workers))
    script.line()
    pids = script.tree()
    assert len(pids) > 2
    script.kill()
    script.wait()
    assert_all_gone(pids, wait_until, running)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_trainer_ended_by_a_signal_leaves_nothing(run_script, wait_until, running, number):
    script = run_script(IDLE.format(env="CountingEnv", num=4, start="auto", workers=2))
    script.line()
    pids = script.tree()
    os.kill(script.pid, number)
    script.wait(30)
    assert_all_gone(pids, wait_until, running)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(3)",
        "raise ValueError('the trainer fails')",
        "os._exit(0)",
        "os.abort()",
        "os.kill(envs._engine._server._process.pid, 9)",
        "import threading; threading.Thread(target=lambda: time.sleep(0.3)).start()",
        "os.execv('/bin/sleep', ['sleep', '0.5'])",
    ],
)
def test_a_trainer_that_ends_without_closing_leaves_nothing(run_script, wait_until, running, end):
    source = (
        HEAD
        + f"""
envs = polyarm.make_vec(CountingEnv, num_envs=4)
envs.reset()
envs.step(np.zeros((4, 2), np.float32))
envs.send(np.zeros((4, 2), np.float32))
print(*envs.worker_pids, flush=True)
sys.stdin.readline()
{end}
"""
    )
    import subprocess

    script = run_script(source, stdin=subprocess.PIPE)
    script.line()
    pids = script.tree()
    assert len(pids) > 4
    script.stdin.write("\n")
    script.stdin.flush()
    script.wait(30)
    assert_all_gone(pids, wait_until, running)
    if not end:
        assert script.returncode == 0
        assert script.stderr.read() == ""


def test_an_env_that_is_dropped_is_closed(run_script, wait_until, running):
    source = (
        HEAD
        + """
envs = polyarm.make_vec(CountingEnv, num_envs=2)
envs.reset()
print("ready", flush=True)
sys.stdin.readline()
del envs
print("dropped", flush=True)
sys.stdin.readline()
"""
    )
    import subprocess

    script = run_script(source, stdin=subprocess.PIPE)
    script.line()
    pids = script.tree()
    script.stdin.write("\n")
    script.stdin.flush()
    script.line()
    assert_all_gone(pids, wait_until, running)
    script.stdin.write("\n")
    script.stdin.flush()
    script.finish()
