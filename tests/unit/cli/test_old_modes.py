"""The old runner had one parser: each of its modes takes every old flag, and needs no task."""

import pytest

from polyarm.cli.main import main
from polyarm.cli.old_flags import CAMERAS, COMMANDS, MEANINGLESS, OLD

WORDS = {"--mode": None, "--task": "OpenDrawer", "--task_class": "OpenDrawer", "--arm_mode": "ik",
         "--image_size": "8 8", "--robot_setup": "panda", "--output_dir": "x",
         "--render_backend": "xvfb"}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", OLD)
def test_every_old_flag_is_taken_in_every_mode(flag, command, parsed, capsys):
    words = WORDS.get(flag, "1") or command
    values = words.split() if OLD[flag] else []
    parsed("bench", "--mode", command, "--task", "OpenDrawer", flag, *values)
    err = capsys.readouterr().err
    dropped = flag.replace("_", "-") in MEANINGLESS[command]
    assert err == (f"polyarm: {flag} has no meaning for {command} and is ignored\n" * dropped)


@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        ("--mode train --output_dir x --fps 20", ["--output_dir", "--fps"]),
        ("--mode train --pos_noise_std 0.01 --pos_noise_std=0.02", ["--pos_noise_std"]),
        ("--mode train --image_size 256 256 --copy_obs 1", ["--copy_obs"]),
        ("--mode debug --profile_timing --train_lr=1", ["--profile_timing", "--train_lr"]),
        ("--mode debug --copy_obs 0 --record", []),
        ("--train_updates 20", ["--train_updates"]),
    ],
)
def test_what_means_nothing_in_a_mode_is_dropped_and_said_once(words, ignored, parsed, capsys):
    options = parsed("bench", "--task", "OpenDrawer", *words.split())
    command = type(options).__name__.removesuffix("Options").lower()
    assert capsys.readouterr().err.splitlines() == [
        f"polyarm: {flag} has no meaning for {command} and is ignored" for flag in ignored
    ]


@pytest.mark.parametrize(
    "words",
    [
        "--mode train --fsp 20",
        "--mode train --out_dir x",
        "--mode train --output-dir x",  # no runner of old has spelled it like this
        "--mode debug --copy-obs",
        "--mode train --fps 20 30",
        "--mode debug --profile_timing all",
        "--mode train --num_episodes 3",
    ],
)
def test_what_neither_knows_still_fails(words, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["bench", "--task", "toy/count-3", *words.split()])
    assert leaving.value.code == 2
    assert "nrecognized" in "".join(capsys.readouterr())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "words", ["--num_envs 4 --arm_mode ik", "--steps 50", "--idle_fps 0", "--mode {} --num-envs 2"]
)
def test_old_flags_without_a_task_run_one_of_rlbench_and_say_so(command, words, parsed, capsys):
    options = parsed(command, *words.format(command).split())
    assert options.task == "rlbench/open_drawer"
    if command != "train":
        assert options.cameras == CAMERAS
    err = capsys.readouterr().err
    assert err.count("no task is given: running rlbench/open_drawer") == 1


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", ["", "--num-envs 4 --fast", "--num_envs 4 --max_steps 3"])
def test_without_old_flags_the_usual_task_is_run(command, words, parsed, capsys):
    assert parsed(command, *words.split()).task == "metaworld/reach-v3"
    assert capsys.readouterr().err == ""
