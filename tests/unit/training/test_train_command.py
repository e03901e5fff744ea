"""``polyarm train`` says what it is, what it does, and what it had done when it was stopped."""

import json
import os
import signal
import subprocess
import sys

import pytest

from polyarm.cli import train as command
from polyarm.cli.main import main
from polyarm.rollout import runlock

pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

TRAIN = [
    "train", "--task", "gym/Pendulum-v1", "--num-envs", "2", "--num-workers", "0",
    "--train-hidden", "8", "--horizon", "4", "--eval-every", "0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def polyarm(*arguments, capsys):
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return leaving.value.code, *capsys.readouterr()


def test_help_teaches(capsys):
    code, out, _ = polyarm("train", "--help", capsys=capsys)
    assert code == 0
    for words in ("PPO", "held-out", "goes on from the checkpoint", "hold the same weights",
                  "examples:", "polyarm.training:load@", "Exit code 1",
                  "--train-updates", "--train-lr", "--train-hidden"):  # fmt: skip
        assert words in " ".join(out.split())


def test_help_imports_no_pytorch():
    code = (
        "import sys\n"
        "from polyarm.cli.main import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", code]
    subprocess.run(run, check=True, timeout=30, stdout=subprocess.DEVNULL)


def test_each_update_is_a_line_and_the_last_ones_sum_up(capsys, here):
    code, out, err = polyarm(*TRAIN, "--train-updates", "3", capsys=capsys)
    assert code == 0
    *updates, done, how_to_evaluate = out.splitlines()
    assert [line.split()[0] for line in updates] == ["update=1/3", "update=2/3", "update=3/3"]
    for part in ("steps=", "loss=", "grad_norm=", "reward=-", "kl=", "env-steps/s"):
        assert all(part in line for line in updates)
    assert done.startswith("3 updates, 24 env steps in ")
    assert "train gym/Pendulum-v1: 2 envs, 3 updates of 4 decisions each" in err
    folder = here / "runs" / "ppo-gym-Pendulum-v1"
    assert (folder / "checkpoint.pt").exists()
    assert "polyarm.training:load@runs/ppo-gym-Pendulum-v1" in how_to_evaluate


def test_what_was_learnt_is_evaluated_by_the_line_it_ends_with(capsys):
    task = ["--task", "toy/count-10", "--train-updates", "2", "--eval-every", "2",
            "--cameras", "front", "--image-size", "8", "8",
            "--epochs", "1", "--minibatches", "1"]  # fmt: skip
    code, out, _ = polyarm(*TRAIN, *task, "--eval-episodes", "3", capsys=capsys)
    assert code == 0
    assert "| held-out: success 100.0%, return 55.0" in out
    line = out.splitlines()[-1].split()[1:]
    assert line[-5:] == ["--cameras", "front", "--image-size", "8", "8"]
    code, out, _ = polyarm(*line, "--episodes", "2", "--num-workers", "0", capsys=capsys)
    assert code == 0
    assert "100.0%" in out


@pytest.mark.usefixtures("failing")
def test_errors_are_shown_per_update_and_in_the_end(capsys):
    code, out, err = polyarm(
        *TRAIN, "--task", "failing:once", "--train-updates", "2", capsys=capsys
    )
    assert code == 0
    first, second, done, _ = out.splitlines()
    assert first.endswith(" errors=1")
    assert second.endswith(" errors=1")
    assert done.endswith(", 1 errors (episodes cut short)")
    assert "the last error: " in err
    assert "as it was asked to" in err


@pytest.mark.usefixtures("failing")
def test_a_training_whose_steps_all_fail_does_not_pass_for_one(capsys):
    always = ["--task", "failing:always", "--train-updates", "1", "--horizon", "1"]
    code, out, err = polyarm(*TRAIN, *always, capsys=capsys)
    assert code == 1
    assert "1 updates, 0 env steps" in out
    assert "every step failed" in err


def test_the_command_that_goes_on_does_not_start_over(capsys, monkeypatch):
    words = [*TRAIN, "--stop-after", "0.01s", "--fresh"]
    monkeypatch.setattr("sys.argv", ["polyarm", *words])
    code, _, err = polyarm(*words, capsys=capsys)
    assert code == 3
    line = err.splitlines()[-1]
    assert line.endswith(f"go on from there with: polyarm {' '.join(words[:-1])}")


def test_a_job_that_was_queued_again_does_not_start_over(capsys, monkeypatch, here):
    polyarm(*TRAIN, "--train-updates", "1", "--out", "run", capsys=capsys)
    kept = (here / "run" / "checkpoint.pt").read_bytes()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    code, _, err = polyarm(*TRAIN, "--fresh", "--out", "run", capsys=capsys)
    assert code == 2
    assert "requeued" in err
    assert (here / "run" / "checkpoint.pt").read_bytes() == kept


def test_tasks_of_an_array_are_told_to_use_folders_of_their_own(capsys, monkeypatch):
    line = [*TRAIN, "--train-updates", "1", "--out", "run"]
    polyarm(*line, "--seed", "1", capsys=capsys)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    code, _, err = polyarm(*line, "--seed", "2", capsys=capsys)
    assert code == 2
    assert "seed was 1 and is 2" in err
    assert "--out runs/$SLURM_ARRAY_TASK_ID" in err


def test_a_signal_ends_the_wait_for_a_predecessor(capsys, monkeypatch, here):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    (here / "run").mkdir()
    holder = {"host": "elsewhere", "pid": 7, "job": "SLURM job 4711", "attempt": [0, 0]}
    (here / "run" / "lock").write_text(json.dumps(holder))
    told = "polyarm.rollout.runlock._log.warning"
    monkeypatch.setattr(told, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, _, err = polyarm(*TRAIN, "--out", "run", capsys=capsys)
    assert code == 75
    assert "polyarm: stopped while waiting for run; nothing was begun" in err


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)],
)
def test_a_signal_leaves_a_checkpoint_and_the_same_command_goes_on(
    number, status, capsys, monkeypatch
):
    usual = command.train

    def interrupted(options, progress, *, stop, share):
        def at_two(update):
            progress(update)
            if update.number == 2:
                os.kill(os.getpid(), number)

        return usual(options, at_two, stop=stop, share=share)

    with monkeypatch.context() as patched:
        patched.setattr(command, "train", interrupted)
        line = [*TRAIN, "--task", "toy/count-10", "--train-updates", "4"]
        patched.setattr(sys, "argv", ["polyarm", *line])
        code, out, err = polyarm(*line, capsys=capsys)
    assert code == status
    assert "2 updates, " in out
    assert f"stopped with a checkpoint; go on from there with: polyarm {' '.join(line)}" in err
    code, out, _ = polyarm(*line, capsys=capsys)
    assert code == 0
    assert out.startswith("update=3/4 ")
    assert "went on from update 2, exactly" in out


def test_a_training_that_is_finished_says_so_and_what_it_has(capsys):
    line = [*TRAIN, "--train-updates", "2"]
    _, first, _ = polyarm(*line, capsys=capsys)
    code, out, _ = polyarm(*line, capsys=capsys)
    assert code == 0
    finished, how_to_evaluate = out.splitlines()
    assert finished == (
        "this training is finished already: 2 updates, 16 env steps; more --train-updates go on"
    )
    assert how_to_evaluate == first.splitlines()[-1]


def test_a_job_that_is_queued_again_on_another_host_gets_its_folder_back(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(runlock, "_LOOK_S", 0.01)
    monkeypatch.setattr(runlock, "STALE_S", 0.3)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for job, attempt, status in (("4712", 0, 2), ("4711", 1, 2), ("4711", 0, 0)):
        holder = {"host": "elsewhere", "pid": 7, "job": f"SLURM job {job}", "attempt": [attempt, 0]}
        (tmp_path / "run" / "lock").write_text(json.dumps(holder))
        code, _, err = polyarm(*TRAIN, "--train-updates", "1", "--out", "run", capsys=capsys)
        assert code == status, err


def test_a_folder_of_another_training_is_refused_in_one_message(capsys):
    polyarm(*TRAIN, "--train-updates", "1", capsys=capsys)
    code, _, err = polyarm(*TRAIN, "--train-updates", "1", "--gamma", "0.5", capsys=capsys)
    assert code == 2
    assert "gamma was 0.99 and is 0.5" in err


def test_time_is_up(capsys):
    code, out, _ = polyarm(*TRAIN, "--stop-after", "0.01s", capsys=capsys)
    assert code == 3
    assert out.startswith("update=1/")
