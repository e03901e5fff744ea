"""What a benchmark is made of follows from its options, before anything is made."""

from pathlib import Path

import pytest
from gymnasium import spaces

from polyarm.bench.actions import PoseNoise, RandomActions
from polyarm.bench.options import BenchOptions
from polyarm.bench.plan import make_plan
from polyarm.bench.throughput import run_bench
from polyarm.errors import InvalidCall, StorageError, UnknownName
from polyarm.testing.toy_suite import ToySuite

BOX = spaces.Box(-1, 1, (8,))


def rlbench(**options):
    return make_plan(BenchOptions(task="rlbench/open_drawer", **options))


def toy(**options):
    return BenchOptions(
        **{"task": "toy/count-10", "num_envs": 3, "image_size": (16, 16), **options}
    )


@pytest.mark.parametrize("arm_mode", [None, "ik", "planning"])
def test_poses_are_a_random_walk_of_a_centimetre_unless_told_otherwise(arm_mode):
    assert rlbench(arm_mode=arm_mode).pose_noise_std == 0.01
    assert rlbench(arm_mode=arm_mode, pos_noise_std=0.0).pose_noise_std == 0.0
    assert isinstance(rlbench(arm_mode=arm_mode).actions(BOX), PoseNoise)
    assert rlbench(arm_mode=arm_mode).poses == "absolute"
    assert rlbench(arm_mode=arm_mode, suite_options=("control=delta",)).poses == "delta"


@pytest.mark.parametrize("arm_mode", ["joint_velocity", "joint_position", "joint_torque"])
def test_joints_move_uniformly(arm_mode):
    assert isinstance(rlbench(arm_mode=arm_mode).actions(BOX), RandomActions)
    assert isinstance(make_plan(toy()).actions(BOX), RandomActions)


def test_displacements_of_joints_are_no_poses():
    plan = rlbench(arm_mode="joint_position", suite_options=("control=delta",))
    assert plan.poses is None
    assert isinstance(plan.actions(BOX), RandomActions)


def test_any_suite_may_say_that_its_actions_are_poses(monkeypatch):
    monkeypatch.setattr(ToySuite, "pose_actions", lambda self, spec: "delta", raising=False)
    plan = make_plan(toy(pos_noise_std=0.02))
    assert (plan.poses, plan.pose_noise_std) == ("delta", 0.02)
    assert isinstance(plan.actions(BOX), PoseNoise)


def test_a_suite_is_told_its_options():
    plan = rlbench(
        arm_mode="planning",
        robot_setup="ur5",
        idle_fps=2.0,
        suite_options=("gripper=continuous", "depth=true", "task_state=73"),
    )
    assert plan.settings == {
        "arm_mode": "planning",
        "robot_setup": "ur5",
        "idle_fps": 2.0,
        "gripper": "continuous",
        "depth": True,
        "task_state": 73,
    }
    assert plan.make_arguments()["robot_setup"] == "ur5"


@pytest.mark.parametrize("name", ["arm_mode", "robot_setup"])
def test_a_suite_without_such_an_option_refuses_it(name):
    for task in ("metaworld/reach-v3", "gym/CartPole-v1", "rlbench/open_drawer,toy/count-3"):
        with pytest.raises(UnknownName, match=rf"unknown option of \w+ '{name}'"):
            make_plan(BenchOptions(task=task, **{name: "ik"}))


def test_fast_is_a_preset_that_nothing_may_contradict():
    plan = rlbench(fast=True, cameras=("front",), output_dir="videos")
    arguments = plan.make_arguments()
    assert plan.film is None
    assert (arguments["cameras"], arguments["frames"], arguments["copy"]) == ((), "none", False)
    for contradiction in ({"arm_mode": "planning"}, {"idle_fps": 5.0}, {"copy_obs": True}):
        with pytest.raises(InvalidCall, match="--fast means"):
            rlbench(fast=True, **contradiction)


@pytest.mark.parametrize("asked", [{"record": True}, {"output_dir": "v"}, {"video_all": True}])
@pytest.mark.parametrize("refused", ["no_video", "no_rgb", "fast"])
def test_nothing_is_filmed_without_frames(asked, refused):
    assert make_plan(toy(**asked)).film is not None
    assert make_plan(toy(**asked, **{refused: True})).film is None


def test_what_is_filmed_is_what_is_named_or_the_suite_s_choice():
    assert make_plan(toy(record=True)).film.cameras == ("front",)
    assert make_plan(toy(record=True, cameras=("wrist",))).film.cameras == ("wrist",)
    assert make_plan(toy(record=True)).make_arguments()["frames"] == "none"
    with pytest.raises(InvalidCall, match="envs of gym have no cameras"):
        make_plan(BenchOptions(task="gym/CartPole-v1", record=True))


def test_filmed_episodes_end_with_the_run_at_the_latest():
    assert rlbench(record=True, max_steps=50).settings["max_steps"] == 50
    assert rlbench(record=True, max_steps=5000).settings["max_steps"] == 400
    own = rlbench(record=True, max_steps=50, suite_options=("max_steps=20",))
    assert own.settings["max_steps"] == 20
    assert "max_steps" not in rlbench(max_steps=50).settings


@pytest.mark.parametrize("wrong", [{"fps": 0}, {"video_stride": 0}])
def test_a_film_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidCall):
        make_plan(toy(record=True, **wrong))


@pytest.mark.parametrize("num_workers", [0, 2, None], ids=["serial", "shared", "full"])
def test_the_first_env_is_filmed_or_all_of_them(num_workers, tmp_path):
    options = {"output_dir": str(tmp_path), "max_steps": 20, "num_workers": num_workers}
    one = run_bench(toy(**options, action_chunk=4))
    assert sorted(one.videos) == [
        str(tmp_path / f"videos/toy/count-10/{index}.mp4") for index in (0, 3)
    ]
    assert (one.frames, one.env_steps) == (0, 60)
    filmed = run_bench(toy(**options, profile_timing=True))
    assert filmed.profile.video > 0
    assert filmed.profile.other >= 0
    every = run_bench(toy(**options, video_all=True, cameras=("front",), video_stride=5))
    assert len(every.videos) == every.episodes == 6
    assert all(Path(video).stat().st_size for video in every.videos)
    assert every.frames == every.calls * 3


def test_what_is_played_of_a_set_that_has_more_tasks_than_there_are_envs():
    plan = make_plan(toy(task="toy/count-3,toy/count-10,toy/count-50", num_envs=2))
    assert (list(plan.tasks), plan.all_tasks) == (["toy/count-3", "toy/count-10"], 3)


def test_a_folder_for_videos_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    pytest.importorskip("av", reason="pip install 'polyarm[video]'")
    (tmp_path / "file").touch()
    for name in ("file", "file/below", "/proc/no-such"):
        with pytest.raises(StorageError, match="no videos can be written into"):
            make_plan(toy(output_dir=str(tmp_path / name)))
