"""Every command line of the RLBench runners' documents does in polyarm what it did there."""

import re
import shlex

import pytest

from polyarm.bench.options import BenchOptions
from polyarm.cli.debug import DebugOptions
from polyarm.cli.main import main
from polyarm.cli.old_flags import COMMANDS, translate
from polyarm.training.options import TrainOptions

FRONT_AND_WRIST = ("front", "wrist")
VIDEOS = "/mnt/zezhong/Genie-Envisioner/RLBench_env_test/rlbench_env_test_videos"

# As they are written in the documents, and what they mean.
LINES = {
    "000, a benchmark": (
        "python rlbench_vec_env.py --num_envs 64 --steps 100 --task OpenDrawer",
        BenchOptions(
            task="rlbench/OpenDrawer", num_envs=64, max_steps=100, cameras=FRONT_AND_WRIST
        ),
    ),
    "000, the same on a server": (
        "python3 rlbench_vec_env.py --num_envs 64 --steps 100 --task OpenDrawer",
        BenchOptions(
            task="rlbench/OpenDrawer", num_envs=64, max_steps=100, cameras=FRONT_AND_WRIST
        ),
    ),
    "000, for throughput": (
        """python3 rlbench_vec_env.py \\
  --num_envs 64 --steps 100 --task OpenDrawer \\
  --arm_mode ik --action_chunk 16 --copy_obs 0""",
        BenchOptions(
            task="rlbench/OpenDrawer",
            num_envs=64,
            max_steps=100,
            arm_mode="ik",
            action_chunk=16,
            copy_obs=False,
            cameras=FRONT_AND_WRIST,
        ),
    ),
    "000, in xvfb-run": (
        "xvfb-run -a python3 rlbench_vec_env.py --num_envs 16 --steps 100 --task OpenDrawer",
        BenchOptions(
            task="rlbench/OpenDrawer", num_envs=16, max_steps=100, cameras=FRONT_AND_WRIST
        ),
    ),
    "000, filmed": (
        "python rlbench_vec_env.py --num_envs 4 --steps 50 --record",
        BenchOptions(
            task="rlbench/open_drawer",
            num_envs=4,
            max_steps=50,
            record=True,
            cameras=FRONT_AND_WRIST,
        ),
    ),
    "000, end to end": (
        """python3 mp_rlbench_env_test.py \\
  --task_class OpenDrawer \\
  --num_envs 8 \\
  --max_steps 100 \\
  --action_chunk 16 \\
  --image_size 256 256""",
        BenchOptions(
            task="rlbench/OpenDrawer",
            num_envs=8,
            max_steps=100,
            action_chunk=16,
            image_size=(256, 256),
            cameras=FRONT_AND_WRIST,
        ),
    ),
    "000, four GPUs with an X server": (
        """torchrun --nproc_per_node=4 rlbench_vec_env.py \\
  --num_envs 16 \\
  --steps 100 \\
  --task OpenDrawer \\
  --arm_mode ik \\
  --action_chunk 16 \\
  --copy_obs 0""",
        BenchOptions(
            task="rlbench/OpenDrawer",
            num_envs=16,
            max_steps=100,
            arm_mode="ik",
            action_chunk=16,
            cameras=FRONT_AND_WRIST,
        ),
    ),
    "000, four GPUs with Xvfb": (
        "torchrun --nproc_per_node=4 rlbench_vec_env.py --num_envs 8 --steps 100 --task OpenDrawer",
        BenchOptions(task="rlbench/OpenDrawer", num_envs=8, max_steps=100, cameras=FRONT_AND_WRIST),
    ),
    "000, the format that was given": (
        f"""python3 mp_rlbench_env_test.py \\
  --task_class sweep_to_dustpan \\
  --num_envs 64 \\
  --max_steps 100 \\
  --action_chunk 54 \\
  --image_size 256 256 \\
  --fps 20 \\
  --output_dir {VIDEOS} \\
  --pos_noise_std 0.01""",
        BenchOptions(
            task="rlbench/sweep_to_dustpan",
            num_envs=64,
            max_steps=100,
            action_chunk=54,
            image_size=(256, 256),
            fps=20.0,
            output_dir=VIDEOS,
            pos_noise_std=0.01,
            cameras=FRONT_AND_WRIST,
        ),
    ),
    "001, torchrun": (
        """torchrun --nproc_per_node=4 rl_vec_env.py \\
    --num_envs_total 64 \\
    --max_steps 100 \\
    --task_class OpenDrawer \\
    --action_chunk 54 \\
    --fast \\
    --ddp_bind_gpu""",
        BenchOptions(
            task="rlbench/OpenDrawer",
            num_envs_total=64,
            max_steps=100,
            action_chunk=54,
            fast=True,
            ddp_bind_gpu=True,
        ),
    ),
    "001, debug": (
        """torchrun --nproc_per_node=4 rl_vec_env.py \\
  --mode debug \\
  --num_envs_total 64 \\
  --max_steps 100 \\
  --task_class OpenDrawer \\
  --action_chunk 54 \\
  --arm_mode ik \\
  --fps 20 \\
  --output_dir rlbench_vec_env_videos \\
  --video_stride 4 \\
  --ddp_bind_gpu""",
        DebugOptions(
            task="rlbench/OpenDrawer",
            policy="expert",
            num_envs_total=64,
            max_steps=100,
            chunk=54,
            arm_mode="ik",
            fps=20.0,
            output_dir="rlbench_vec_env_videos",
            video_stride=4,
            ddp_bind_gpu=True,
            cameras=FRONT_AND_WRIST,
        ),
    ),
    "001, where time is spent": (
        "python rl_vec_env.py --num_envs 64 --max_steps 100 --task_class sweep_to_dustpan"
        " --action_chunk 54 --profile_timing",
        BenchOptions(
            task="rlbench/sweep_to_dustpan",
            num_envs=64,
            max_steps=100,
            action_chunk=54,
            profile_timing=True,
            cameras=FRONT_AND_WRIST,
        ),
    ),
    "001, train": (
        """torchrun --nproc_per_node=4 rl_vec_env.py \\
  --mode train \\
  --num_envs_total 64 \\
  --task_class OpenDrawer \\
  --train_updates 20 \\
  --train_lr 3e-4 \\
  --train_hidden 256 \\
  --ddp_bind_gpu""",
        TrainOptions(
            task="rlbench/OpenDrawer",
            num_envs_total=64,
            train_updates=20,
            train_lr=3e-4,
            train_hidden=256,
            ddp_bind_gpu=True,
        ),
    ),
    "001, a single process": (
        """python rl_vec_env.py \\
  --num_envs 64 \\
  --max_steps 100 \\
  --task_class sweep_to_dustpan \\
  --action_chunk 54 \\
  --fast""",
        BenchOptions(
            task="rlbench/sweep_to_dustpan",
            num_envs=64,
            max_steps=100,
            action_chunk=54,
            fast=True,
        ),
    ),
}


def words_after_the_script(line):
    _, arguments = re.split(r"\S+\.py", line.replace("\\\n", ""))
    return shlex.split(arguments)


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_the_old_documents_means_what_it_says(name, parsed):
    line, meant = LINES[name]
    words = words_after_the_script(line)
    # A line with a mode finds its command after any of them; the old default was bench.
    commands = ["bench", "debug", "train"] if "--mode" in words else ["bench"]
    for command in commands:
        assert parsed(command, *words) == meant


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        ("--robot_setup sawyer", "robot_setup", "sawyer"),
        ("--arm_mode planning", "arm_mode", "planning"),
        ("--idle_fps 0", "idle_fps", 0.0),
        ("--no_rgb", "no_rgb", True),
        ("--no_video", "no_video", True),
        ("--video_all", "video_all", True),
        ("--video_stride 3", "video_stride", 3),
        ("--copy_obs 1", "copy_obs", True),
        ("--copy_obs=1", "copy_obs", True),
        ("--copy-obs", "copy_obs", True),
        ("--copy_obs 1 --copy_obs 0", "copy_obs", False),
        ("--render_backend xvfb", "display", "xvfb"),
        ("--render_backend egl", "display", "egl"),
        ("--render_backend external", "display", "external"),
        ("--steps=7", "max_steps", 7),
        ("--mode bench", "fast", False),
        ("--task open_drawer:2", "task", "rlbench/open_drawer:2"),
        ("--task OpenDrawer,pick_up_cup", "task", "rlbench/OpenDrawer,rlbench/pick_up_cup"),
        ("--task metaworld/reach-v3", "task", "metaworld/reach-v3"),
        ("--task my_module:make_env", "task", "my_module:make_env"),
        ("--suite_options gripper=continuous depth=true", "suite_options",
         ("gripper=continuous", "depth=true")),
    ],
)  # fmt: skip
def test_a_flag_of_bench_means_what_it_says(words, option, value, parsed):
    assert getattr(parsed("bench", *words.split()), option) == value


@pytest.mark.parametrize(
    ("command", "words", "option", "value"),
    [
        ("debug", "--record", "no_video", False),
        ("debug", "--no_rgb", "no_video", True),
        ("debug", "--no_video", "no_video", True),
        ("debug", "--fast --copy_obs 0", "fast", True),
        ("debug", "--render_backend egl", "display", "egl"),
        ("debug", "--task pick_up_cup", "policy", "expert"),
        ("train", "--no_rgb --no_video --fast --copy_obs 0", "train_updates", 150),
        ("train", "--fast", "fast", True),
        ("train", "--action_chunk 8", "action_chunk", 8),
        ("train", "--max_steps 50 --arm_mode ik", "max_steps", 50),
    ],
)
def test_a_flag_of_another_mode_means_what_it_says(command, words, option, value, parsed):
    assert getattr(parsed(command, *words.split()), option) == value
    assert getattr(parsed("bench", "--mode", command, *words.split()), option) == value


@pytest.mark.parametrize("words", ["--no_rgb", "--fast", "--cameras overhead"])
def test_old_cameras_are_not_added_where_frames_are_not_or_cameras_are_named(words, parsed):
    options = parsed("bench", "--task", "OpenDrawer", *words.split())
    assert options.cameras in ((), ("overhead",))


def test_a_task_with_its_suite_has_no_cameras_but_those_that_are_named(parsed):
    assert parsed("bench", "--task", "rlbench/open_drawer").cameras == ()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["eval", "--task", "OpenDrawer", "--mode", "x", "--image_size", "8", "8"],
        ["suites", "rlbench"],
        ["bench", "--help"],
        ["bench", "-h"],
        ["bench", "--task", "metaworld/mt10", "--cameras", "corner2", "--num-envs", "2"],
    ],
)
def test_what_needs_no_translation_passes_as_it_is(arguments):
    assert translate(arguments) == (arguments, [])


def test_translating_twice_changes_nothing_more():
    for line, _ in LINES.values():
        once, _ = translate(["bench", *words_after_the_script(line)])
        assert translate(once) == (once, [])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--copy_obs 2", "--copy_obs takes 0 or 1, or stands alone; found '2'"),
        ("--mode", "--mode takes one of bench, debug, train"),
        ("--mode trian", "unknown mode 'trian'; did you mean 'train'?"),
        ("--image_size 256", "Expected 2 values"),
        ("--num_envs many", "many"),
        ("--task OpenDrawr", "did you mean 'rlbench/open_drawer'"),
        ("--task_class sweep_to_dustpam", "did you mean 'rlbench/sweep_to_dustpan'"),
        ("--task reach-v3", "'rlbench/reach-v3'; did you mean 'metaworld/reach-v3'?"),
        ("--task OpenDrawer --arm_mode ikk", "unknown value of arm_mode \"'ikk'\""),
        ("--task OpenDrawer --robot_setup pandas", "did you mean \"'panda'\""),
        ("--task OpenDrawer --render_backend gpu", "unknown display 'gpu'"),
        ("--task OpenDrawer --idle_fps -1", "unknown value of idle_fps '-1.0'"),
        ("--task OpenDrawer --pos_noise_std -1", "pos_noise_std is a length in metres"),
        ("--task OpenDrawer --pos_noise_std 1 --arm_mode joint_velocity", "noise on poses"),
        ("--task toy/count-3 --pos_noise_std 0.01", "actions of toy/count-3 are none"),
        ("--task toy/count-3 --arm_mode ik", "unknown option of toy 'arm_mode'"),
        ("--task gym/CartPole-v1 --arm_mode ik", "unknown option of gym 'arm_mode'"),
        *[
            (f"--mode {mode} --task OpenDrawer --fast {contradiction}", complaint)
            for mode in COMMANDS
            for contradiction, complaint in [
                ("--arm_mode planning", "--fast means arm_mode=ik, found 'planning'"),
                ("--suite_options arm_mode=joint_velocity", "--fast means arm_mode=ik"),
                ("--idle_fps 5", "--fast means idle_fps=0, found 5.0"),
                ("--copy_obs 1", "--fast means copy_obs=0, found 1"),
            ]
        ],
        ("--task toy/count-3 --suite_options seed=3", "'seed' is an option of the command"),
        ("--task toy/count-3 --max_steps 0", "max_steps must be at least 1"),
        ("--mode debug --task toy/count-3 --arm_mode ik", "unknown option of toy 'arm_mode'"),
        ("--mode train --task toy/count-3 --arm_mode ik", "unknown option of toy 'arm_mode'"),
        ("--mode train --task OpenDrawer --train_lr 0", "train_lr must be above 0"),
        ("--mode train --task OpenDrawer --suite_options control=absolute", "by displacements"),
        ("--mode train --task toy/count-3 --suite_options seed=3", "'seed' is an option of the"),
        ("--mode debug --task toy/count-3 --suite_options seed=3", "'seed' is an option of the"),
    ],
)
def test_what_makes_no_sense_is_one_message(words, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        main(["bench", *words.split()])
    out, err = capsys.readouterr()
    assert leaving.value.code == 2
    assert complaint in out + err
    assert "Traceback" not in out + err
