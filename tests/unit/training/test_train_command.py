"""``polyarm train`` says what it is, what it does, and what it had done when it was stopped."""

import os
import signal
import subprocess
import sys

import pytest

from polyarm.cli.main import main
from polyarm.training.pipeline import train

pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

TRAIN = [
    "train", "--task", "gym/Pendulum-v1", "--num-envs", "2", "--num-workers", "0",
    "--train-hidden", "8", "--action-chunk", "4",
]  # fmt: skip


def polyarm(*arguments, capsys):
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return leaving.value.code, *capsys.readouterr()


def test_help_says_what_it_is_not(capsys):
    code, out, _ = polyarm("train", "--help", capsys=capsys)
    assert code == 0
    for words in ("not an RL algorithm of record", "PPO comes later", "gradients are not shared",
                  "examples:", "--train-updates", "--train-lr", "--train-hidden"):  # fmt: skip
        assert words in out


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


def test_each_update_is_a_line_and_the_last_one_sums_up(capsys):
    code, out, err = polyarm(*TRAIN, "--train-updates", "3", capsys=capsys)
    assert code == 0
    *updates, done = out.splitlines()
    assert [line.split()[0] for line in updates] == ["update=1/3", "update=2/3", "update=3/3"]
    for part in ("loss=", "grad_norm=", "reward=-", "env-steps/s"):
        assert all(part in line for line in updates)
    assert done.startswith("3 updates, 24 env steps in ")
    assert "train gym/Pendulum-v1: 2 envs, 3 updates of 4 steps each" in err


def test_ranks_are_told_apart_and_start_differently(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    told = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        code, out, err = polyarm(
            *TRAIN, "--train-updates", "1", "--num-envs-total", "3", capsys=capsys
        )
        assert code == 0
        assert ("envs_per_rank=[2, 1]" in err) == (rank == "0")
        assert all(line.startswith(f"rank={rank} ") for line in out.splitlines())
        told.append(out.partition("loss=")[2].split()[0])
    assert told[0] != told[1]


@pytest.mark.usefixtures("failing")
def test_errors_are_shown_per_update_and_in_the_end(capsys):
    code, out, err = polyarm(
        *TRAIN, "--task", "failing:once", "--train-updates", "2", capsys=capsys
    )
    assert code == 0
    first, second, done = out.splitlines()
    assert first.endswith(" errors=1")
    assert second.endswith(" errors=1")
    assert done.endswith(", 1 errors (episodes cut short)")
    assert "the last error: " in err
    assert "as it was asked to" in err


@pytest.mark.usefixtures("failing")
def test_a_training_whose_steps_all_fail_does_not_pass_for_one(capsys):
    code, out, err = polyarm(
        *TRAIN, "--task", "failing:always", "--train-updates", "1", capsys=capsys
    )
    assert code == 1
    assert "1 updates, 0 env steps" in out
    assert "every step failed" in err


def test_ctrl_c_shows_what_was_done(capsys, monkeypatch):
    def interrupted_training(options, progress):
        def interrupt_at_two(update):
            progress(update)
            if update.number == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return train(options, interrupt_at_two)

    monkeypatch.setattr("polyarm.cli.train.train", interrupted_training)
    code, out, err = polyarm(*TRAIN, "--train-updates", "1000000", capsys=capsys)
    assert code == 130
    assert "2 updates, 16 env steps" in out
    assert "interrupted" in err
