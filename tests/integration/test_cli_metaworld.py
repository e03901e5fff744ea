"""``polyarm bench`` on Meta-World, as a person runs it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.simulator

BENCH = [sys.executable, "-m", "polyarm", "bench", "--task", "metaworld/reach-v3"]


def test_a_small_run_measures_everything():
    arguments = ["--num-envs", "2", "--max-steps", "16", "--action-chunk", "8", "--json",
                 "--profile-timing"]  # fmt: skip
    run = subprocess.run(
        [*BENCH, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["env_steps"] == 32
    assert result["calls"] == 2
    assert result["env_steps_per_s"] > 0
    assert result["profile"]["sim"] > 0
    assert result["pss_nbytes_per_env"] > 2**20
    assert "env-steps/s" in run.stderr


@pytest.mark.frames
def test_a_run_with_a_camera_delivers_frames():
    arguments = ["--num-envs", "2", "--max-steps", "4", "--action-chunk", "2", "--json",
                 "--cameras", "corner2", "--image-size", "64", "64"]  # fmt: skip
    run = subprocess.run(
        [*BENCH, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["frames"] == 4


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_ctrl_c_ends_it_within_seconds_and_leaves_no_process(moment):
    arguments = ["--num-envs", "2", "--max-steps", "1000000"]
    with subprocess.Popen(
        [*BENCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        awaited = "bench metaworld" if moment == "starting" else "exec_s="
        lines = iter(run.stderr.readline, "")
        assert any(awaited in line for line in lines)
        below = descendants(run.pid)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert ("env-steps/s" in out) == (moment == "running")
    assert below or moment == "starting"
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in below):  # noqa: PTH110
        assert time.monotonic() < deadline, "processes are left"


def descendants(root):
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, waiting = [], [root]
    while waiting:
        parent = waiting.pop()
        below = [pid for pid, above in parents.items() if above == parent]
        found += below
        waiting += below
    return found
