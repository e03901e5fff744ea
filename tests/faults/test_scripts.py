"""Trainers as people write them: without a ``__main__`` guard, piped in, interrupted by Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

UNGUARDED = """
import numpy as np
import gymnasium
import polyarm

print("run", flush=True)

class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.full(3, OFFSET, np.float32), 1.0, False, False, {}

# %%
OFFSET = 0.25
envs = polyarm.make_vec(lambda: MyEnv(), num_envs=3, num_workers=2, start="%s")
# %%
envs.reset()
obs, rewards, *_ = envs.step(np.zeros(3, np.int64))
assert (obs == 0.25).all()
import os
os.kill(envs.worker_pids[0], 9)
envs.step(np.zeros(3, np.int64))
obs, _ = envs.reset()
assert (obs == 0).all()
print("sum", rewards.sum(), flush=True)
envs.close()
"""


NOTEBOOK = """
import __main__, code, sys

interpreter = code.InteractiveInterpreter(vars(__main__))
for cell in sys.stdin.read().split("# %%\\n"):
    interpreter.runsource(cell, "<cell>", "exec")
"""


@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
@pytest.mark.parametrize("way", ["file", "stdin", "command", "notebook"])
def test_a_script_without_a_guard_works_and_runs_once(run_script, tmp_path, way, start):
    source = textwrap.dedent(UNGUARDED % start)
    if way == "file":
        script = run_script(source)
        out, err = script.communicate(timeout=60)
    else:
        commands = {"command": ["-c", source], "notebook": ["-c", NOTEBOOK], "stdin": ["-"]}
        sources = os.fspath(next(p for p in sys.path if p.endswith("src")))
        done = subprocess.run(
            [sys.executable, *commands[way]],
            input=None if way == "command" else source,
            text=True,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": sources},
            timeout=60,
            check=False,
        )
        out, err = done.stdout, done.stderr
    assert out == "run\nsum 3.0\n", err


def test_a_factory_of_a_module_beside_the_script_is_found(run_script, tmp_path):
    (tmp_path / "my_envs.py").write_text(
        "from polyarm.testing import CountingEnv\ndef build():\n    return CountingEnv(length=3)\n"
    )
    script = run_script("""
    import polyarm, my_envs
    for start in ("built", "imports", "fresh"):
        for task in ("my_envs:build", my_envs.build):
            with polyarm.make_vec(task, num_envs=2, start=start) as envs:
                envs.reset()
                assert envs.get_attr("length") == (3, 3)
    print("done")
    """)
    assert script.finish() == "done\n"


@pytest.mark.parametrize("module", ["selectors", "random"])
def test_a_folder_with_a_file_named_like_a_standard_module_does_no_harm(
    run_script, tmp_path, module
):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / f"{module}.py").write_text("raise SystemExit('the wrong module was imported')\n")
    script = run_script(
        """
        import polyarm
        from polyarm.testing import CountingEnv
        for start in ("built", "fresh"):
            with polyarm.make_vec(CountingEnv, num_envs=1, start=start) as envs:
                envs.reset()
        print("done")
        """,
        cwd=folder,
    )
    assert script.finish() == "done\n"


OWN_OBJECTS = """
import dataclasses
import gymnasium
import numpy as np
import polyarm

@dataclasses.dataclass
class Capture:  # as a class of the fork server's module is called
    gain: int = 3

def bonus(action):
    return 42.0

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    bonus = None
    taken = None

    def __init__(self, taken=None):
        self.taken = taken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = (options or {{}}).get("taken", self.taken)
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        return np.zeros(1, np.float32), self.bonus(action), False, False, {{}}

    def gain(self, taken):
        return taken.gain + self.taken.gain

gymnasium.register("Own-v0", entry_point=Env, disable_env_checker=True)
for task in ("__main__:Env", Env):
    with polyarm.make_vec(task, num_envs=2, start="{start}") as envs:
        envs.reset(options={{"taken": Capture(5)}})
        envs.set_attr("bonus", bonus)
        assert envs.step(np.zeros(2, np.int64))[1].tolist() == [42.0, 42.0]
        assert envs.call("gain", Capture()) == (8, 8)
with polyarm.make_vec("gym/Own-v0", num_envs=2, start="{start}", taken=Capture(9)) as envs:
    assert envs.call("gain", Capture(1)) == (10, 10)
try:
    polyarm.make_vec("__main__:Enf", num_envs=1)
except polyarm.UnknownName as error:
    assert "unknown callable of this script 'Enf'; did you mean 'Env'" in str(error)
print("done")
"""


@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
def test_what_a_script_defines_may_be_passed_to_its_envs(run_script, start):
    """Workers had looked for it in the fork server's module, and found what is called alike."""
    assert run_script(OWN_OBJECTS.format(start=start)).finish() == "done\n"


INTERRUPTED = """
import os, sys, time
import numpy as np
import polyarm
from polyarm.testing import HangingEnv, SlowEnv

envs = polyarm.make_vec(lambda: SlowEnv(step_s=0.2, length=10**6), num_envs=4, start="{start}")
try:
    envs.reset()
    print("ready", flush=True)
    while True:
        envs.step(np.zeros((4, 2), np.float32))
except KeyboardInterrupt:
    alive = [os.path.exists(f"/proc/{{pid}}") for pid in envs.worker_pids]
    print("interrupted", all(alive), len(alive), flush=True)
    envs.close()
    print("closed", flush=True)
"""


@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
def test_ctrl_c_reaches_only_the_trainer(run_script, wait_until, running, start):
    script = run_script(INTERRUPTED.format(start=start))
    assert script.line() == "ready"
    pids = script.tree()
    os.killpg(script.pid, signal.SIGINT)
    out, err = script.communicate(timeout=60)
    assert script.returncode == 0, err
    assert out.splitlines() == ["interrupted True 4", "closed"]
    assert err == ""
    wait_until(lambda: not any(running(pid) for pid in pids))


def test_ctrl_c_at_a_terminal_reaches_only_the_trainer(tmp_path, wait_until, running):
    file = tmp_path / "trainer.py"
    file.write_text(INTERRUPTED.format(start="auto"))
    sources = os.fspath(next(p for p in sys.path if p.endswith("src")))
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, file], {**os.environ, "PYTHONPATH": sources})
    said = b""

    def read(until: bytes) -> None:
        nonlocal said
        while until not in said:
            try:
                said += os.read(terminal, 4096)
            except OSError:
                raise AssertionError(said.decode()) from None

    try:
        read(b"ready")
        os.write(terminal, b"\x03")
        read(b"closed")
        assert os.waitpid(pid, 0)[1] == 0
        assert b"interrupted True 4" in said
    finally:
        os.close(terminal)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def test_ctrl_c_during_make_vec_leaves_nothing(run_script, wait_until, running):
    script = run_script(
        """
    import os, time
    import polyarm
    from polyarm.testing import SlowEnv
    def build():
        print("building", flush=True)
        time.sleep(30)
    try:
        polyarm.make_vec(build, num_envs=1)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    input()
    """,
        stdin=subprocess.PIPE,
    )
    assert script.line() == "building"
    pids = script.tree()
    os.killpg(script.pid, signal.SIGINT)
    while script.line() != "interrupted":
        pass
    wait_until(lambda: not any(running(pid) for pid in pids))
    script.stdin.write("\n")
    script.stdin.flush()
    script.finish()


MANY = """
import os, resource, time
import numpy as np
import polyarm
from polyarm.testing import CountingEnv

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
began = time.monotonic()
envs = polyarm.make_vec(lambda: CountingEnv(length=10), num_envs=512, start="%s")
made = time.monotonic() - began
envs.reset(seed=0)
assert len(set(envs.worker_pids)) == 512
actions = np.zeros((512, 2), np.float32)
for n in range(1, 4):
    assert (envs.step(actions)[1] == n).all()
for pid in envs.worker_pids[::8]:
    os.kill(pid, 9)
killed = time.monotonic()
info = envs.step(actions)[-1]
assert sum(e is not None for e in info["error"]) == 64
envs.step(actions)
assert (envs.step(actions)[1] == np.where(np.arange(512) %% 8, 6, 1)).all()
restarted = time.monotonic() - killed
closing = time.monotonic()
envs.close()
print(round(made, 2), round(restarted, 2), round(time.monotonic() - closing, 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["built"])
def test_512_workers_fit_under_a_soft_limit_of_1024_descriptors(run_script, start, record_property):
    room = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) >> 20
    if room < 8:
        pytest.skip(f"512 workers need 8 GiB of available memory, this machine has {room}")
    script = run_script(MANY % start)
    made, restarted, closed = map(float, script.finish(100).split())
    record_property("made_s", made)
    record_property("restarted_s", restarted)
    assert made < 30
    assert restarted < 15
    assert closed < 10
