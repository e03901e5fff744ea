"""A disk that is full: the run stops and says so, and goes on when there is room."""

from __future__ import annotations

import evaluation_faults as faults
import pytest

from polyarm.errors import StorageError
from polyarm.rollout.evaluate import evaluate

COUNTING = {"episodes": 30, "num_envs": 3, "image_size": (64, 64), "video_stride": 1}


def test_a_full_disk_stops_the_command_which_goes_on_when_there_is_room(tmp_path, small_disk):
    command = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--episodes", "60"]
    command += ["--num-envs", "2"]
    with small_disk(tmp_path / "disk", "20k") as disk:
        for _ in range(2):
            code, said = faults.run(disk / "out", *command)
            assert code == 2, said
            assert "No space left on device" in said
            assert "run the same command again" in said or "go on where this run stopped" in said
            assert "Traceback" not in said
            assert 0 < faults.lines(disk / "out") < 60
            faults.assert_each_once(disk / "out")
            assert [path.name for path in (disk / "out").iterdir() if "lock" in path.name] == []
        faults.make_room(disk)
        code, said = faults.run(disk / "out", *command)
        assert code == 0, said
        faults.assert_each_once(disk / "out")
        assert faults.in_journal(disk / "out") == faults.undisturbed(faults.GAMBLE, 60)


def test_a_disk_too_full_for_the_report_is_an_error_of_the_storage(tmp_path, small_disk):
    command = ["--policy", faults.GAMBLER, "--task", faults.GAMBLE, "--episodes", "6"]
    with small_disk(tmp_path / "disk", "24k") as disk:
        code, said = faults.run(disk / "out", *command)
        assert code == 2, said
        assert "No space left on device" in said
        assert "Traceback" not in said
        assert faults.lines(disk / "out") == 6
        faults.make_room(disk)
        code, said = faults.run(disk / "out", *command)
        assert code == 0, said
        assert (disk / "out" / "report.html").exists()
        assert faults.in_journal(disk / "out") == faults.undisturbed(faults.GAMBLE, 6)


@pytest.mark.parametrize(
    ("kept", "room"), [({"record": "all"}, "160k"), ({"save_trajectories": True}, "80k")]
)
def test_videos_and_trajectories_that_do_not_fit_stop_the_run_until_there_is_room(
    tmp_path, small_disk, kept, room
):
    with small_disk(tmp_path / "disk", room) as disk:
        out = disk / "out"
        with pytest.raises(StorageError, match="No space left on device"):
            evaluate("random", "toy/count-50", **COUNTING, **kept, out=out)
        faults.assert_each_once(out)
        assert faults.lines(out) < 30
        assert not (out / ".rank0.lock").exists()
        faults.make_room(disk)
        results = evaluate("random", "toy/count-50", **COUNTING, **kept, out=out)
        faults.assert_each_once(out)
        expected = faults.undisturbed("toy/count-50", 30, "random", image_size=(64, 64))
        assert faults.scores(results.episodes) == expected
        for each in results.episodes:
            files = [out / name for name in (*each.videos, each.trajectory) if name]
            assert files
            assert all(file.stat().st_size for file in files)
        assert list(out.rglob("*.part")) == []


def test_a_folder_that_cannot_be_made_is_told_in_one_message(tmp_path):
    (tmp_path / "file").touch()
    command = ["--policy", "random", "--task", "toy/count-3", "--episodes", "2"]
    code, said = faults.run(tmp_path / "file" / "out", *command)
    assert code == 2, said
    assert "Not a directory" in said
    assert "Traceback" not in said
