"""Who a rank's launcher is; what happens when it ends is in tests/faults/test_ranks.py."""

import os
import subprocess
import sys
import threading

import launching
import pytest

from polyarm.distributed.launcher import watch_launcher

FIND = """
import os
from polyarm.distributed.launcher import _launcher
print(_launcher("TORCHELASTIC_RUN_ID", os.environ["TORCHELASTIC_RUN_ID"]))
"""


@pytest.mark.parametrize(
    "script", ['"$0" -c "$FIND"', 'bash -c "\\"$0\\" -c \\"\\$FIND\\"; true"; true']
)
def test_a_launcher_is_found_behind_the_scripts_that_it_runs(script):
    variables = {"TORCHELASTIC_RUN_ID": "x", "FIND": FIND}
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], env={**launching.environment(), **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) == os.getpid()


@pytest.mark.parametrize(
    "environment",
    [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}],
    ids=["a shell", "a shell with variables", "a batch script"],
)
def test_a_process_that_no_launcher_has_started_outlives_its_shell(environment):
    before = threading.active_count()
    watch_launcher(environment)
    assert threading.active_count() == before
