"""Old command lines run from end to end, over the double of RLBench."""

import json
import shutil

import pytest

from polyarm.cli.main import main

pytestmark = pytest.mark.usefixtures("rlbench")
needs_xvfb = pytest.mark.skipif(
    shutil.which("Xvfb") is None, reason="needs Xvfb: apt-get install xvfb"
)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)


def polyarm(line, capsys):
    """Stdout and stderr of a command line that succeeds."""
    with pytest.raises(SystemExit) as leaving:
        main(line.split())
    out, err = capsys.readouterr()
    assert leaving.value.code == 0, err
    return out, err


def test_fast_runs_without_frames_display_or_video(tmp_path, capsys):
    line = (
        "bench --num_envs 2 --max_steps 60 --task_class sweep_to_dustpan --action_chunk 54 --fast"
        " --output_dir videos --json"
    )
    out, err = polyarm(line, capsys)
    result = json.loads(out)
    assert "nothing filmed" in err
    assert (result["env_steps"], result["frames"], result["videos"]) == (120, 0, [])
    assert result["provenance"][0]["display"] == "none"
    assert not (tmp_path / "videos").exists()


def test_the_hand_s_random_walk_is_never_refused(capsys):
    """Every refused action would end an episode as a failure."""
    for control in ("absolute", "delta"):
        line = (
            "bench --task reach_target --num_envs 1 --steps 40 --action_chunk 8 --no_rgb --json"
            f" --suite_options control={control}"
        )
        result = json.loads(polyarm(line, capsys)[0])
        assert (result["env_steps"], result["episodes"], result["errors"]) == (40, 0, 0)


@pytest.mark.frames
@needs_xvfb
def test_record_films_the_first_env_to_the_end_of_the_run(tmp_path, capsys):
    line = "bench --task OpenDrawer --num_envs 2 --steps 12 --record --image_size 32 32 --json"
    out, err = polyarm(line, capsys)
    result = json.loads(out)
    assert "the first env filmed" in err
    assert result["videos"] == [str(tmp_path / "runs/bench/videos/rlbench/open_drawer/0.mp4")]
    assert (tmp_path / result["videos"][0]).stat().st_size > 0
    assert result["frames"] == 12 * 2 * 2  # steps, envs, front and wrist


@pytest.mark.frames
@needs_xvfb
def test_debug_has_the_expert_do_the_task_on_film(tmp_path, capsys):
    line = (
        "bench --mode debug --num_envs_total 2 --max_steps 100 --task_class OpenDrawer"
        " --action_chunk 54 --arm_mode ik --fps 20 --output_dir old --video_stride 4"
        " --image_size 32 32 --ddp_bind_gpu"
    )
    out, err = polyarm(line, capsys)
    assert "envs_per_rank=[2]" in err
    assert "no GPU is bound" in err
    assert "100.0%" in out
    assert [path.name for path in (tmp_path / "old/videos").rglob("*.mp4")] == ["0.mp4"]


def test_train_takes_two_updates(capsys):
    pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")
    line = (
        "bench --mode train --num_envs_total 2 --task_class ReachTarget --train_updates 2"
        " --train_lr 3e-4 --train_hidden 16 --ddp_bind_gpu --horizon 4 --action_chunk 8"
        " --eval_every 0 --out trained --suite_options shaped_rewards=true on_invalid_action=skip"
    )
    out, err = polyarm(line, capsys)
    assert "envs_per_rank=[2]" in err
    first, second, done, evaluation = out.splitlines()
    meaning = "--suite-options arm_mode=ik control=delta gripper=discrete robot_setup=panda"
    assert meaning in evaluation
    for part in ("update=1/2", "loss=", "grad_norm=", "env-steps/s"):
        assert part in first
    assert "update=2/2" in second
    assert "reward=-" in second  # the distance
    assert "2 updates, 128 env steps" in done
