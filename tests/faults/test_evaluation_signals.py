"""An evaluation that is killed or told to stop, at any moment, and run again: the same results."""

from __future__ import annotations

import random
import shlex
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import evaluation_faults as faults
import pytest

from polyarm.report.results import Results

pytestmark = pytest.mark.usefixtures("plan")

IN_PROCESS = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--num-workers", "0"]


@pytest.fixture(scope="module")
def expected():
    return faults.undisturbed(faults.GAMBLE, 12)


def command(out: Path, *more: str) -> faults.Run:
    arguments = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--episodes", "12"]
    return faults.Run(out, *arguments, "--num-envs", "3", *more)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_the_first_signal_ends_the_wait_for_a_server_that_does_not_answer(tmp_path, number, code):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        with faults.Run(
            tmp_path / "out", "--policy", f"openpi:{address}", "--task", faults.GAMBLE
        ) as process:
            silent.accept()[0].close()  # it knocks
            process.send_signal(number)
            ended, said = process.end(20)
    assert ended == code, said
    assert f"stopped while openpi:{address} was loaded" in said
    assert "Traceback" not in said


def test_the_first_signal_ends_the_loading_of_a_second_checkpoint(tmp_path, wait_until):
    """And what the first has done is written down."""
    for name in ("1", "2"):
        (tmp_path / f"{name}.ckpt").touch()
    policy = f"evaluation_faults:load_slowly@{tmp_path}/*.ckpt"
    with faults.Run(
        tmp_path / "out", "--policy", policy, "--task", faults.GAMBLE, "--episodes", "2"
    ) as process:
        wait_until((tmp_path / "2.ckpt.loading").exists, 40)
        process.send_signal(signal.SIGTERM)
        ended, said = process.end(20)
    assert ended == 75, said
    results = Results.read(tmp_path / "out")
    assert {one.policy for one in results.episodes} == {"1"}
    assert results.missing == 2


def finish(process: faults.Run, out: Path, expected: dict) -> None:
    with process:
        code, said = process.end()
    assert code == 0, said
    faults.assert_each_once(out)
    assert faults.in_journal(out) == expected


def test_a_run_killed_at_random_moments_ends_with_the_scores_of_an_undisturbed_one(
    tmp_path, plan, expected, wait_until, running
):
    out, chance = tmp_path / "out", random.Random(0)
    faults.plan(plan, step_s=0.02)
    moments = [lambda: (out / ".rank0.lock").exists()]
    for more in (1, 2, 3):
        moments.append(lambda more=more: faults.lines(out) >= before + more)
    for moment in moments:
        before = faults.lines(out)
        with command(out) as process:
            wait_until(moment, 40, "the moment to kill")
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.1))
            family = faults.children(process.pid)
            process.kill()
            process.wait()
            wait_until(lambda: not any(map(running, family)), 20, "workers gone")  # noqa: B023
        assert before <= faults.lines(out) < 12
    assert faults.lines(out) >= 3
    kept = (out / "episodes.jsonl").read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    faults.plan(plan)
    finish(command(out), out, expected)
    assert (out / "episodes.jsonl").read_bytes().startswith(kept)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_told_to_stop_does_so_soon_and_the_same_command_goes_on(
    tmp_path, plan, expected, wait_until, running, number
):
    out = tmp_path / "out"
    faults.plan(plan, step_s=0.05)
    code, said = stop(command(out), number, out, wait_until, running)
    assert_stopped(out, code, said, 75)
    faults.plan(plan)
    finish(command(out), out, expected)


def test_ctrl_c_prints_a_command_that_goes_on(tmp_path, plan, expected, wait_until, running):
    out = tmp_path / "out"
    faults.plan(plan, step_s=0.05)
    code, said = stop(command(out), signal.SIGINT, out, wait_until, running)
    assert_stopped(out, code, said, 130)
    program, subcommand, flag, folder, *rest = shlex.split(
        said.partition("this run stopped with: ")[2].partition("\n")[0]
    )
    assert (program, subcommand, flag) == ("polyarm", "eval", "--out")
    faults.plan(plan)
    finish(faults.Run(Path(folder), *rest), out, expected)


def stop(process, number, out, wait_until, running) -> tuple[int, str]:
    """Signal a run in its midst; all that belongs to it must be gone a moment later."""
    with process:
        wait_until(lambda: faults.lines(out) >= 1, 40, "an episode")
        family = faults.children(process.pid)
        assert len(family) > 3
        process.send_signal(number)
        ended = process.end(30)
    wait_until(lambda: not any(map(running, family)), 10, "workers gone")
    return ended


def test_a_run_stops_by_itself_after_the_time_it_was_given(tmp_path, plan, expected):
    out = tmp_path / "out"
    faults.plan(plan, step_s=0.1)
    with command(out, "--stop-after", "1s") as process:
        code, said = process.end(40)
    assert_stopped(out, code, said, 3)
    faults.plan(plan)
    finish(command(out, "--stop-after", "1h"), out, expected)


def test_a_run_told_to_stop_while_envs_are_built_runs_no_episode(tmp_path, plan, wait_until):
    out, gate = tmp_path / "out", tmp_path / "gate"
    faults.plan(plan, gate=str(gate))
    with command(out) as process:
        wait_until(Path(f"{gate}.seen").exists, 40, "a build")
        process.send_signal(signal.SIGTERM)
        gate.touch()
        code, said = process.end(30)
    assert_stopped(out, code, said, 75)
    assert faults.lines(out) == 0


class Signalled(faults.Run):
    """Gets SIGUSR1 when it calls a function of its own, and SIGTERM when the interpreter ends."""

    program = (
        "-c",
        "import atexit, importlib, os, signal, sys\n"
        "module, _, name = sys.argv.pop().partition(':')\n"
        "module = importlib.import_module(module)\n"
        "called = getattr(module, name)\n"
        "def call(*arguments, **options):\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    return called(*arguments, **options)\n"
        "setattr(module, name, call)\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
        "from polyarm.cli.main import main\n"
        "main()\n",
    )


@pytest.mark.parametrize(
    ("episodes", "more", "first", "expected"),
    [
        (1, [], None, 0),
        (100, ["--stop-after", "0.1s"], None, 3),
        (100, [], signal.SIGUSR1, 75),
    ],
    ids=["all done", "stopped by itself", "stopped by a signal"],
)
def test_a_signal_while_results_are_written_changes_nothing(
    tmp_path, plan, wait_until, episodes, more, first, expected
):
    out = tmp_path / "out"
    faults.plan(plan, step_s=0.01)
    words = [*IN_PROCESS, "--episodes", str(episodes), *more]
    with Signalled(out, *words, "polyarm.cli.evaluate:_conclude") as process:
        if first is not None:
            wait_until(lambda: faults.lines(out) >= 1, 40, "an episode")
            process.send_signal(first)
        code, said = process.end()
    assert code == expected, said
    assert f"report: {out}" in said
    assert Results.read(out).missing == episodes - faults.lines(out)
    assert (out / "report.html").exists()


def test_a_signal_before_there_are_envs_stops_a_run(tmp_path):
    out = tmp_path / "out"
    words = [*IN_PROCESS, "--episodes", "12"]
    with Signalled(out, *words, "polyarm.rollout.evaluator:group_tasks") as process:
        code, said = process.end()
    assert_stopped(out, code, said, 75)
    assert faults.lines(out) == 0


def test_a_second_ctrl_c_ends_a_run_at_once(tmp_path, plan, wait_until, running):
    out, gate = tmp_path / "out", tmp_path / "gate"
    faults.plan(plan, gate=str(gate))
    with command(out) as process:
        wait_until(Path(f"{gate}.seen").exists, 40, "a build")
        family = faults.children(process.pid)
        before = waits(process.pid)
        process.send_signal(signal.SIGINT)
        # It waits for its envs again and again; by the second wait its handler has run.
        wait_until(lambda: waits(process.pid) >= before + 2, 20, "the first signal taken")
        process.send_signal(signal.SIGINT)
        code, said = process.end(30)
    assert code == 130, said
    assert "Traceback" not in said, said
    assert not (out / ".rank0.lock").exists()
    wait_until(lambda: not any(map(running, family)), 10, "workers gone")


def waits(pid: int) -> int:
    """How often a process has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def assert_stopped(out: Path, code: int, said: str, expected: int) -> None:
    assert code == expected, said
    assert "Traceback" not in said, said
    assert "go on where this run stopped with: polyarm eval --out" in said
    assert faults.lines(out) < 12
    assert f"{12 - faults.lines(out)} episodes are missing" in said
    assert (out / "results.json").exists()
    assert (out / "report.html").exists()
    assert not (out / ".rank0.lock").exists()
