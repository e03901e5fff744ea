"""What goes wrong in evaluations, on request: a task and a policy that follow a plan.

The plan is a JSON file named by ``POLYARM_FAULT_PLAN``, read by every process that needs it;
without one, task and policy are well-behaved. So the very same command fails first and succeeds
later.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyarm.contracts import Batch, EpisodeKey, EpisodeResult
from polyarm.errors import RunConflict
from polyarm.rollout.evaluate import evaluate
from polyarm.rollout.journal import read_episodes
from polyarm.testing.policies import CountingPolicy
from polyarm.testing.toy_suite import ToySuite

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
PLAN = "POLYARM_FAULT_PLAN"

GAMBLE = "evaluation_faults:gamble"
GAMBLER = "evaluation_faults:Gambler"


def plan(path: Path, **faults: Any) -> None:
    """Write the plan, whole or not at all.

    Args:
        path: Its file.
        **faults: ``env``: what happens in which episode, ``{"2": "raise"}``; ``policy``: what the
            policy does; ``policy_after``: decisions before it does so; ``step_s``: seconds an env
            step takes; ``gate``: a file that builders wait for, after they have made ``gate.seen``.
    """
    part = path.with_suffix(".part")
    part.write_text(json.dumps(faults))
    part.replace(path)


def _plan() -> dict[str, Any]:
    name = os.environ.get(PLAN, "")
    return json.loads(Path(name).read_text()) if name and Path(name).exists() else {}


# The task.


class Gamble(gymnasium.Env[Any, Any]):
    """Five to fourteen steps; what is won depends on the seed and on every single action."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        if gate := _plan().get("gate"):
            Path(f"{gate}.seen").touch()
            while not Path(gate).exists():
                time.sleep(0.01)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        faults = _plan()
        self._step_s = faults.get("step_s", 0.0)
        self._fault = faults.get("env", {}).get(str(seed), "")
        self._length = int(self.np_random.integers(5, 15))
        self._steps, self._won = 0, 0.0
        if self._fault.startswith("reset:"):
            fail(self._fault)
        return self._draw(), {"is_success": False}

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        self._steps += 1
        if self._steps == 3 and self._fault.startswith("step:"):
            fail(self._fault)
        reward = float(self.np_random.normal() + action[0] - action[1])
        self._won += reward
        done = self._steps == self._length
        return self._draw(), reward, done, False, {"is_success": done and self._won > 0}

    def _draw(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)


def gamble() -> Gamble:
    """The task ``evaluation_faults:gamble``."""
    return Gamble()


def fail(how: str) -> None:
    """Raise, crash or hang."""
    match how.partition(":")[2]:
        case "raise":
            raise FloatingPointError("the gamble is off")
        case "crash":
            ctypes.string_at(0)
        case "hang":
            signal.pause()


class BreakingSuite(ToySuite):
    """A toy suite whose envs of ``count-10`` cannot be built."""

    name = "breaking"

    def make(self, spec: Any) -> Any:
        if spec.task == "count-10":
            raise FloatingPointError("this task cannot be built")
        return super().make(spec)


# The policy.


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


class Gambler:
    """Looks at observations and noise, three steps at a time, and goes wrong as planned."""

    fingerprint = {"policy": "gambler"}

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """Nothing is kept."""

    def act(self, batch: Batch) -> Any:
        self.batch_sizes.append(len(batch))
        noise = batch.noise(3, 2)
        actions = np.tanh(batch.obs[:, np.newaxis, :2] + noise)
        faults = _plan()
        if len(self.batch_sizes) <= faults.get("policy_after", 0):
            return actions
        return self._spoilt(actions, faults.get("policy"))

    def _spoilt(self, actions: Any, fault: str | None) -> Any:
        match fault:
            case "raise":
                raise FloatingPointError("the gambler is broke")
            case "nan":
                actions[-1, 1, 0] = np.nan
            case "shape":
                return actions[..., :1]
            case "hang":
                signal.pause()
            case "sleep":
                time.sleep(300)  # goes on after a signal, as native code does
            case "memory" if len(actions) > 1:
                raise OutOfMemoryError("CUDA out of memory")
        return actions


class OtherGambler(Gambler):
    """Another policy."""

    fingerprint = {"policy": "another gambler"}


# Runs.


def load_slowly(path: str) -> Gambler:
    """The first checkpoint is there at once, the second takes its time and swallows errors."""
    if "1.ckpt" not in path:
        Path(f"{path}.loading").touch()
        with contextlib.suppress(Exception):
            time.sleep(600)
    return Gambler()


class Run(subprocess.Popen):
    """``polyarm eval`` in a session of its own, killed at the latest when its block ends."""

    program = ("-m", "polyarm")

    def __init__(self, out: Path, *arguments: str) -> None:
        path = os.pathsep.join([str(SOURCES), str(HERE)])
        super().__init__(
            [sys.executable, *self.program, "eval", "--out", str(out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.kill()
        self.communicate()

    def end(self, within_s: float = 60.0) -> tuple[int, str]:
        """Its exit code, and all that it has said."""
        out, err = self.communicate(timeout=within_s)
        return self.returncode, out + err


def run(out: Path, *arguments: str) -> tuple[int, str]:
    """Run the command to its end."""
    with Run(out, *arguments) as process:
        return process.end()


def children(pid: int) -> set[int]:
    """Pids of all descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(stat[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def named(name: str) -> list[int]:
    """Pids of this process's descendants whose name begins so."""
    found = []
    for pid in sorted(children(os.getpid())):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                found.append(pid)
    return found


# Results.

Score = tuple[str, int, str, float]


def scores(episodes: Sequence[EpisodeResult]) -> dict[EpisodeKey, Score]:
    """What must be the same however an episode came about; errors have no score."""
    return {
        each.key: (each.outcome, each.steps, each.action_hash, each.total_reward)
        for each in episodes
        if each.outcome != "error"
    }


def undisturbed(
    tasks: Any, episodes: int, policy: Any = GAMBLER, **options: Any
) -> dict[EpisodeKey, Score]:
    """The scores of a run in one process, to which nothing happens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(PLAN, raising=False)
        done = evaluate(policy, tasks, episodes=episodes, num_envs=2, num_workers=0, **options)
    assert not done.missing
    assert not done.errors
    return scores(done.episodes)


def in_journal(out: Path) -> dict[EpisodeKey, Score]:
    """The scores in a folder."""
    return scores(list(read_episodes(out).values()))


def lines(out: Path) -> int:
    """Whole lines in a folder's journal."""
    file = out / "episodes.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def assert_each_once(out: Path) -> None:
    """Every line of the journal is whole, and no episode is in it twice."""
    data = (out / "episodes.jsonl").read_bytes()
    assert data == b"" or data.endswith(b"\n")
    parsed = [json.loads(line) for line in data.splitlines()]
    keys = Counter((line["task"], line["index"], line["repeat"]) for line in parsed)
    assert all(number == 1 for number in keys.values()), keys


def conflict(policy: Any, tasks: Any, out: Path, **options: Any) -> str:
    """Why a run is refused; fails if it is not."""
    with pytest.raises(RunConflict) as caught:
        evaluate(policy, tasks, out=out, **options)
    return str(caught.value)


def make_room(folder: Path, size: str = "16m") -> None:
    """Give a small disk more room."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


class ServerProcess(subprocess.Popen[str]):
    """A server of zeros as a process of its own; killed at the latest when its block ends.

    Args:
        program: Its file; called with a port and with the request in which it kills itself.
        port: By default any that is free.
        fatal: By default none.
    """

    def __init__(self, program: str, port: int = 0, fatal: int = 0) -> None:
        command = [sys.executable, program, str(port), str(fatal)]
        super().__init__(command, stdout=subprocess.PIPE, text=True)
        assert self.stdout is not None
        self.port = int(self.stdout.readline())
        self.address = f"ws://127.0.0.1:{self.port}"

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()


def undisturbed_zeros(episodes: int) -> Any:
    """What a policy behind such a server scores: zeros, three actions at a time."""
    return undisturbed(GAMBLE, episodes, CountingPolicy((2,), 3))
