"""Who a rank's launcher is; what happens when it ends is in tests/faults/test_ranks.py."""

import os
import subprocess
import sys
import threading

import launching
import pytest

from polyarm.distributed.launcher import watch_launcher
from polyarm.rollout.runlock import start_of

FIND = """
from polyarm.distributed.launcher import launcher_pid
from polyarm.distributed.members import member
from polyarm.distributed.ranks import Rank
print(launcher_pid())
print(member(Rank.current()).job)
"""


@pytest.mark.parametrize(
    "script", ['"$0" -c "$FIND"', 'bash -c "\\"$0\\" -c \\"\\$FIND\\"; true"; true']
)
def test_a_launcher_is_found_behind_the_scripts_that_it_runs(script):
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    variables = {"TORCHELASTIC_RUN_ID": "x", "FIND": FIND, **ranks}
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], env={**launching.environment(), **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pid, job = done.stdout.splitlines()
    assert int(pid) == os.getpid()
    assert job.split()[-2:] == [str(os.getpid()), start_of(os.getpid())]


ORPHAN = """
import os, sys, time
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
from polyarm.distributed.launcher import watch_launcher
watch_launcher()
print("goes on")
"""
REAPER = """
import contextlib, ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
ctypes.CDLL(None).prctl(15, b"systemd")  # PR_SET_NAME
subprocess.run(sys.argv[1:])
with contextlib.suppress(ChildProcessError):
    while True:
        os.wait()
"""


@pytest.mark.parametrize("reaper", [[], [sys.executable, "-c", REAPER]], ids=["init", "systemd"])
def test_a_rank_whose_launcher_has_ended_while_it_started_ends_too(reaper):
    launcher = 'TORCHELASTIC_RUN_ID=x "$0" -c "$ORPHAN" $$ & exit'
    done = subprocess.run(
        [*reaper, "bash", "-c", launcher, sys.executable], check=True, text=True, timeout=30,
        capture_output=True, env={**launching.environment(), "ORPHAN": ORPHAN},
    )  # fmt: skip
    assert done.stdout == ""
    assert "torchrun has ended" in done.stderr


@pytest.mark.parametrize(
    "environment",
    [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}],
    ids=["a shell", "a shell with variables", "a batch script"],
)
def test_a_process_that_no_launcher_has_started_outlives_its_shell(environment):
    before = threading.active_count()
    watch_launcher(environment)
    assert threading.active_count() == before
