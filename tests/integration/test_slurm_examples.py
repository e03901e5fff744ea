"""The batch scripts in ``examples/slurm`` do what they say, with SLURM's variables set.

What SLURM itself does is stood in for: `srun` starts the tasks of a step, `scontrol` is noted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import launching
import pytest

from polyarm.report.results import Results
from polyarm.rollout.journal import read_episodes

EXAMPLES = launching.TESTS.parent / "examples" / "slurm"

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
trap 'kill -USR1 "${tasks[@]}"' USR1
worst=0
for task in "${tasks[@]}"; do
    wait "$task"
    code=$?
    while kill -0 "$task" 2>/dev/null; do wait "$task"; code=$?; done
    ((code > worst)) && worst=$code
done
exit $worst
"""
SCONTROL = '#!/bin/bash\necho "$@" >> scontrol.txt\n'
POLYARM = f'#!/bin/bash\nexec {sys.executable} -m polyarm "$@"\n'
TORCHRUN = f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n'


@pytest.fixture
def cluster(tmp_path) -> dict[str, str]:
    """The environment of a batch script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "srun": SRUN, "scontrol": SCONTROL, "polyarm": POLYARM, "torchrun": TORCHRUN
    }.items():  # fmt: skip
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**launching.environment(), **variables, "SLURM_GPUS_ON_NODE": "2", "PATH": path}


class Job(subprocess.Popen):
    """A batch script that runs."""

    def __init__(self, name: str, cluster: dict[str, str], folder: Path, *words: str) -> None:
        super().__init__(
            ["bash", str(EXAMPLES / name), *words],
            cwd=folder,
            env=cluster,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> int:
        out, _ = self.communicate(timeout=120)
        self.said = out
        return self.returncode


LONG = ["--policy", "zero", "--task", "toy/count-50", "--num-envs", "2", "--out", "run"]


def wait_until(happened: Callable[[], bool], job: Job) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def requeued(folder: Path) -> list[str]:
    noted = folder / "scontrol.txt"
    return noted.read_text().splitlines() if noted.exists() else []


@pytest.mark.parametrize(
    ("name", "what"),
    [("array.sbatch", "4711_3"), ("srun.sbatch", "4711"), ("torchrun.sbatch", "4711")],
)
def test_a_job_whose_time_is_up_is_queued_again_and_goes_on(tmp_path, cluster, name, what):
    if name == "array.sbatch":
        cluster |= launching.array(4)[2] | {"SLURM_ARRAY_JOB_ID": "4711"}
    run = tmp_path / "run"
    job = Job(name, cluster, tmp_path, *LONG, "--episodes", "5000")
    wait_until(lambda: launching.lines(run) >= 2, job)
    job.send_signal(signal.SIGUSR1)
    wait_until(lambda: not list(run.glob(".*.lock")), job)
    job.send_signal(signal.SIGTERM)  # preempted, too, while it writes results
    assert job.end() == (1 if name == "torchrun.sbatch" else 75), job.said
    assert requeued(tmp_path) == [f"requeue {what}"]
    kept = launching.lines(run)
    assert Results.read(run).missing == 5000 - kept
    again = Job(name, cluster, tmp_path, *LONG, "--episodes", str(kept))
    assert again.end() == 0, again.said
    assert len(requeued(tmp_path)) == 1
    assert len(read_episodes(run)) >= kept


def test_a_step_whose_time_is_up_is_queued_again_although_a_rank_had_died(tmp_path, cluster):
    run = tmp_path / "run"
    job = Job("srun.sbatch", cluster, tmp_path, *LONG, "--episodes", "5000")
    wait_until(lambda: len(launching.journals(run)) == 2 and launching.lines(run) >= 2, job)
    holder = json.loads((run / ".rank1.lock").read_text())
    os.kill(holder["pid"], signal.SIGKILL)
    job.send_signal(signal.SIGUSR1)
    assert job.end() == 128 + signal.SIGKILL, job.said
    assert requeued(tmp_path) == ["requeue 4711"]


def test_all_gpus_of_a_node_have_a_rank(tmp_path, cluster):
    words = ["--policy", "zero", "--task", "toy/count-3", "--episodes", "4", "--num-envs", "1"]
    job = Job("torchrun.sbatch", cluster, tmp_path, *words, "--out", "run")
    assert job.end() == 0, job.said
    assert not requeued(tmp_path)
    launching.assert_each_once(tmp_path / "run", 4)
    assert len(launching.journals(tmp_path / "run")) == 2


@pytest.mark.parametrize("script", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_bash_can_read_the_script(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
