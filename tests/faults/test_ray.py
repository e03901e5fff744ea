"""An evaluation on a Ray cluster of its own that is killed, or told to stop: nothing is left."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import evaluation_faults as faults
import pytest

EPISODES = 12
QUICK_S, SLOW_S = 0.05, 0.5
"""Of a step: until there is something to be kept; then so that the run cannot end by itself."""
FAMILY = ("gcs_server", "raylet", "EvalNode", "polyarm.vector.forkserver")


def command(out: Path, *more: str) -> faults.Run:
    arguments = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE]
    return faults.Run(out, *arguments, "--episodes", str(EPISODES), "--num-envs", "2", *more)


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files with a name that is short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def commands(pids: list[int]) -> str:
    found = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    return "\n".join(path.read_text() for path in found if path.exists())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_is_killed_and_then_interrupted_leaves_nothing_and_goes_on(
    tmp_path, temporary, plan, wait_until, running
):
    out = tmp_path / "out"
    faults.plan(plan, step_s=QUICK_S)
    with command(out, "--ray", "local") as process:
        wait_until(lambda: faults.lines(out) >= 1, 60, "an episode")
        faults.plan(plan, step_s=SLOW_S)
        family = faults.children(process.pid)
        assert all(name in commands(family) for name in FAMILY)
        assert [*temporary.glob("polyarm-ray-*")]
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(running, family)), 20, commands(family))
        wait_until(lambda: not [*temporary.glob("polyarm-*")], 20, "folders are removed")
    kept = faults.lines(out)
    assert 0 < kept < EPISODES
    faults.plan(plan, step_s=QUICK_S)
    with command(out, "--ray", "local") as process:
        wait_until(lambda: faults.lines(out) > kept, 60, "another episode")
        faults.plan(plan, step_s=SLOW_S)
        family = faults.children(process.pid)
        process.send_signal(signal.SIGINT)
        code, said = process.end(40)
    assert code == 130, said
    assert "Traceback" not in said, said
    assert "raylet" not in said, said
    wait_until(lambda: not any(map(running, family)), 5, commands(family))
    assert not [*temporary.glob("polyarm-*")]
    faults.plan(plan)
    with command(out) as process:
        code, said = process.end()
    assert code == 0, said
    faults.assert_each_once(out)
    assert faults.in_journal(out) == faults.undisturbed(faults.GAMBLE, EPISODES)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("auto", "ray start --head"),
        ("ray://127.0.0.1:10001", "Ray's client"),
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
    ],
)
def test_a_cluster_that_is_not_there_is_said_in_one_message(tmp_path, monkeypatch, where, expected):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with command(tmp_path / "out", "--ray", where) as process:
        code, said = process.end()
    assert code == 2
    assert expected in said, said
    assert "Traceback" not in said, said
