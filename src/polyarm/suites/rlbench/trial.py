"""The last step of the set-up: an episode of RLBench, in a process that cannot take us with it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from polyarm import __version__, signatures
from polyarm.suites.cache import Progress, write_whole
from polyarm.suites.rlbench.environment import Environment, suite_folder
from polyarm.suites.rlbench.options import Step
from polyarm.suites.rlbench.python_packages import inspect

NAME = "test episode"
TIMEOUT_S = 300.0

# With a camera: without one CoppeliaSim starts where it cannot render. The arm stays where it is,
# which it can do on every machine.
_EPISODE = """
import json, sys
import numpy as np
from polyarm import make_vec

options = {"cameras": ["front"], "arm_mode": "joint_velocity", **json.loads(sys.argv[1])}
envs = make_vec("rlbench/reach_target", num_envs=1, **options)
try:
    envs.reset(seed=0)
    envs.step(np.zeros(envs.action_space.shape, envs.action_space.dtype))
finally:
    envs.close()
"""


def test_episode(
    environment: Environment, progress: Progress, *, timeout_s: float, force: bool
) -> Step:
    """Start RLBench as `make_vec` does, reset, step once and close, unless that worked before.

    Args:
        environment: Where CoppeliaSim is, and which Python has RLBench.
        progress: Is told that it runs.
        timeout_s: How long it may take.
        force: Run it even if it worked before.
    """
    stamp = suite_folder() / "tested"
    fingerprint = _fingerprint(environment)
    if not force and stamp.is_file() and stamp.read_text() == fingerprint:
        return Step(NAME, "there", "rlbench/reach_target was reset and stepped")
    progress("running a test episode of rlbench/reach_target", 0, 0)
    stamp.unlink(missing_ok=True)
    status, output = _run(command(environment), environment, timeout_s)
    if status == 0:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        write_whole(stamp, fingerprint)
        return Step(NAME, "done", "rlbench/reach_target was reset and stepped")
    last = "\n".join(output.splitlines()[-20:])
    return Step(NAME, "missing", f"{_ended(status, timeout_s)}. {_advice(output)}\n{last}")


def command(environment: Environment) -> list[str]:
    """What is run: this Python, as a trainer would; the worker may have another."""
    other = environment.interpreter != Path(sys.executable)
    options = {"interpreter": str(environment.interpreter)} if other else {}
    return [sys.executable, "-c", _EPISODE, json.dumps(options)]


def _run(command: list[str], environment: Environment, timeout_s: float) -> tuple[int | None, str]:
    """The exit status, None after a timeout, and what was written."""
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment.variables(), "PYTHONPATH": path},
            start_new_session=True,
        ) as child,
    ):
        try:
            status: int | None = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # All of it: CoppeliaSim ignores the gentler signals.
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        log.seek(0)
        return status, log.read().decode(errors="replace")


def _ended(status: int | None, timeout_s: float) -> str:
    if status is None:
        return f"it did not end within {timeout_s:.0f} s"
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it ended with status {status}"


def _advice(output: str) -> str:
    """What to do next, from what went wrong."""
    means = signatures.explain(output, task="rlbench/reach_target")
    looked = means or "Read what it said; `polyarm doctor --suite rlbench` looks further."
    again = "Then give the same command again; --force installs anew, --skip-test skips this"
    return f"{looked} {again}"


def _fingerprint(environment: Environment) -> str:
    """Changes when something that was tested is installed anew, by whomever."""
    manifest = environment.root / "polyarm.json"
    facts = inspect(environment.interpreter)
    parts = [str(environment), sys.executable, __version__, str(facts)]
    parts += [manifest.read_text()] if manifest.is_file() else []
    constraints = suite_folder() / "constraints.txt"
    parts += [str(constraints.stat().st_mtime_ns)] if constraints.is_file() else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
