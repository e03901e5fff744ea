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


@pytest.mark.parametrize(
    "environment",
    [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}],
    ids=["a shell", "a shell with variables", "a batch script"],
)
def test_a_process_that_no_launcher_has_started_outlives_its_shell(environment):
    before = threading.active_count()
    watch_launcher(environment)
    assert threading.active_count() == before
