"""LIBERO from the command line: the expert solves tasks of three suites, filmed and reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import pytest

from polyarm.report.results import Results

TASKS = (
    "libero/libero_object/0",
    "libero/libero_spatial/0",
    "libero/libero_goal/put_the_bowl_on_the_plate",
)


def polyarm(*arguments: str, expected: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polyarm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expected, done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    polyarm(
        *("eval", "--policy", "expert", "--task", ",".join(TASKS), "--episodes", "1"),
        *("--num-envs", "2", "--record", "first:1", "--video-stride", "30", "--out", str(folder)),
    )
    return folder


def test_the_expert_solves_tasks_of_three_suites(run: Path):
    episodes = Results.read(run).episodes
    outcomes = {episode.key.task: episode.outcome for episode in episodes}
    assert outcomes == dict.fromkeys(
        ("libero_object/0", "libero_spatial/0", "libero_goal/8"), "success"
    )
    assert all(episode.total_reward == 1.0 for episode in episodes)


def test_every_recorded_episode_has_a_video_of_both_cameras(run: Path):
    videos = sorted((run / "videos").rglob("*.mp4"))
    assert len(videos) == len(TASKS)
    for video in videos:
        with av.open(str(video)) as container:
            assert container.streams.video[0].width == 512
            assert len(list(container.decode(video=0))) > 2


def test_the_report_says_which_task_of_libero_a_number_stands_for(run: Path):
    page = (run / "report.html").read_text()
    assert "libero/libero_goal/8" in page
    assert "put_the_bowl_on_the_plate" in page


def test_a_task_without_an_expert_is_an_error_that_says_so(tmp_path: Path):
    done = polyarm(
        *("eval", "--policy", "expert", "--task", "libero/libero_goal/0", "--episodes", "1"),
        *("--num-envs", "1", "--max-attempts", "1", "--out", str(tmp_path)),
        expected=1,
    )
    assert "expert" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--task", "libero/libero_spatal/0"), "did you mean 'libero/libero_spatial/0'"),
        (("--task", "libero/libero_goal/0", "--protocol", "openpie"), "did you mean 'openpi'"),
        (("--task", "libero/libero_goal/0", "--cameras", "agentveiw"), "did you mean 'agentview'"),
        (("--task", "libero/libero_goal/0", "--suite-options", "resize=0"), "at least 1"),
    ],
)
def test_wrong_names_are_told_before_anything_starts(tmp_path: Path, arguments, told):
    done = polyarm("eval", *arguments, "--out", str(tmp_path / "run"), expected=2)
    assert told in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
