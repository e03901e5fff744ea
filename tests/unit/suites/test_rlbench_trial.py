"""The test episode of the set-up: in a process of its own, once for what is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from toy_coppeliasim import empty_cache, quiet

from polyarm.suites.rlbench import trial
from polyarm.suites.rlbench.environment import Environment
from polyarm.suites.rlbench.inspection import Facts, Package


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os.abort()", ["ended by SIGABRT", "--skip-test"]),
        (
            "import sys; sys.exit('libGL.so.1: cannot open shared object file')",
            ["status 1", "libGL"],
        ),
        ("import time; time.sleep(60)", ["did not end within 1 s"]),
        ("raise RuntimeError('Handle Panda does not exist.')", ["--force", "Handle Panda"]),
    ],
)
def test_a_test_episode_that_fails_says_how(
    code: str, told: list[str], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_EPISODE", code)
    environment = Environment(tmp_path, Path(sys.executable))
    step = trial.test_episode(environment, quiet, timeout_s=1.0, force=False)
    assert step.state == "missing"
    for words in told:
        assert words in step.text


def test_the_test_episode_runs_the_suite_and_once_is_enough(rlbench: Path) -> None:
    environment = Environment(rlbench, Path(sys.executable))
    for state in ("done", "there"):
        step = trial.test_episode(environment, quiet, timeout_s=60.0, force=False)
        assert step.state == state, step.text


def test_the_test_episode_names_the_other_interpreter(tmp_path: Path) -> None:
    assert trial.command(Environment(tmp_path, Path(sys.executable)))[-1] == "{}"
    command = trial.command(Environment(tmp_path, tmp_path / "python"))
    assert json.loads(command[-1]) == {"interpreter": str(tmp_path / "python")}
    compile(command[2], "episode", "exec")


def test_the_test_episode_runs_again_when_a_package_has_changed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_EPISODE", "")
    environment = Environment(tmp_path, Path(sys.executable))

    def state() -> str:
        return trial.test_episode(environment, quiet, timeout_s=60.0, force=False).state

    assert [state(), state()] == ["done", "there"]
    for facts in (Facts(versions={"numpy": "1.26.4"}), Facts({"pyrep": Package("4.1", {}, "")})):
        monkeypatch.setattr(trial, "inspect", lambda _, facts=facts: facts)
        assert [state(), state()] == ["done", "there"]
    monkeypatch.setattr(trial, "__version__", "99")
    assert state() == "done"
