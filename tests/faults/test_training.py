"""A training whose rank or launcher dies leaves nothing running, and its checkpoint goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import launching
import pytest

from polyarm.rollout.runlock import RunLock

pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

TRAIN = [
    "train", "--task", "toy/count-10", "--num-envs", "1", "--num-workers", "0", "--horizon", "4",
    "--train-hidden", "8", "--train-updates", "1", "--eval-every", "0", "--out", "run",
]  # fmt: skip

LAUNCHER = """
import sys
from torch.distributed.run import main
main(["--standalone", "--nproc_per_node=2", "-m", "polyarm", "train", "--task", "toy/count-10",
      "--num-envs", "2", "--horizon", "16", "--train-hidden", "8", "--train-updates", "1000000",
      "--eval-every", "0", "--checkpoint-every", "1", "--out", "run"])
"""


def ranks(pids: set[int]) -> dict[str, int]:
    """Pids by rank."""
    found = {}
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        rank = [word.partition(b"=")[2].decode() for word in words if word.startswith(b"RANK=")]
        if rank and b"forkserver" not in command and b"polyarm" in command:
            found[rank[0]] = pid
    return found


@pytest.mark.parametrize("victim", ["0", "1", "launcher"])
def test_a_rank_or_launcher_that_is_killed_takes_all_with_it(
    run_script, wait_until, running, tmp_path, monkeypatch, victim
):
    monkeypatch.chdir(tmp_path)
    script = run_script(LAUNCHER)
    assert script.line().startswith("update=1/")
    pids = script.tree()
    found = {**ranks(pids), "launcher": script.pid}
    assert set(found) == {"0", "1", "launcher"}
    assert len(pids) > 2 + 2 * 2  # ranks, and for each a fork server with workers
    wait_until((tmp_path / "run" / "checkpoint.pt").exists)
    os.kill(found[victim], signal.SIGKILL)
    wait_until(lambda: not any(running(pid) for pid in pids), 60, f"{pids} gone")
    script.communicate(timeout=20)
    assert script.returncode != 0
    from polyarm.training.checkpoints import read_checkpoint

    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["progress"]["update"] >= 1


def test_the_ranks_that_a_killed_one_leaves_say_so_in_one_message(tmp_path):
    words = [*TRAIN, "--train-updates", "1000000"]
    with launching.side_by_side(launching.srun(2), *words, folder=tmp_path) as (first, second):
        assert first.stdout.readline().startswith("update=1/")
        second.kill()
        code, _, err = first.end(40)
    said = err.splitlines()[-1]
    assert code == 2
    assert said.startswith("rank=0 polyarm: another rank has ended, or does not answer any more")


RESTARTED = """
import os
from polyarm.cli import train
from polyarm.cli.main import main

line = train._line

def line_or_death(update, updates):
    if update.number == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(9)
    return line(update, updates)

train._line = line_or_death
main(["train", "--task", "toy/count-10", "--num-envs", "1", "--num-workers", "0", "--horizon", "4",
      "--train-hidden", "8", "--train-updates", "4", "--eval-every", "0", "--checkpoint-every", "1",
      "--out", "run", "--fresh"])
"""


def test_ranks_that_torchrun_restarts_do_not_start_over_again(tmp_path):
    (tmp_path / "rank.py").write_text(RESTARTED)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    with launching.Command([*torchrun, "rank.py"], {}, tmp_path) as launcher:
        code, out, err = launcher.end()
    assert code == 0, err
    assert "went on from update 2, exactly" in out
    assert out.count("update=1/4") == 1


SIGNALLED = """
import os, signal
from polyarm.cli import train
from polyarm.cli.main import main

conclusion = train._conclusion

def conclusion_signalled(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return conclusion(*arguments)

train._conclusion = conclusion_signalled
main(["train", "--task", "toy/count-3", "--num-envs", "1", "--num-workers", "0", "--horizon", "4",
      "--train-hidden", "8", "--train-updates", "1", "--eval-every", "0", "--out", "run"])
"""


def test_a_signal_after_the_last_update_changes_nothing(run_script, tmp_path):
    said = run_script(SIGNALLED, cwd=tmp_path).finish()
    assert "1 updates, " in said
    assert "polyarm eval --policy polyarm.training:load@run" in said


def test_a_rank_that_waits_for_the_others_hears_a_signal(tmp_path):
    first, _ = launching.srun(2)
    with launching.side_by_side([first], *TRAIN, folder=tmp_path) as (rank,):
        assert rank.stderr.readline().startswith("train toy/count-10")
        rank.send_signal(signal.SIGTERM)
        code, _, err = rank.end(20)
    assert (code, err) == (75, "rank=0 polyarm: stopped while waiting for the other ranks; nothing"
                           " was begun\n")  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_what_the_first_rank_is_refused_ends_all_with_the_reason(tmp_path):
    (tmp_path / "run").mkdir()
    lock = RunLock(tmp_path / "run" / "lock")
    try:
        with launching.side_by_side(launching.srun(2), *TRAIN, folder=tmp_path) as both:
            (first, _, said), (second, _, heard) = (rank.end(40) for rank in both)
    finally:
        lock.release()
    assert (first, second) == (2, 2)
    refusal = f"run is in use by process {os.getpid()} on "
    assert said.splitlines()[-1].startswith(f"rank=0 polyarm: {refusal}")
    assert heard.startswith(f"rank=1 polyarm: rank 0 could not go on: {refusal}")
