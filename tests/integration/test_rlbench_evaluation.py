"""The whole stack over RLBench's double: evaluation, videos, resumption, the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyarm import evaluate
from polyarm.contracts import Batch
from polyarm.report.results import Results

pytestmark = pytest.mark.usefixtures("rlbench")

TASKS = [
    f"rlbench/{name}" for name in ("reach_target", "open_drawer", "push_button", "pick_up_cup")
]


def outcomes(results: Results) -> dict[str, Any]:
    return {
        str(episode.key): (episode.outcome, episode.steps, episode.action_hash)
        for episode in results.episodes
    }


def test_eight_workers_play_four_tasks_with_videos(tmp_path: Path):
    out = tmp_path / "run"
    found = outcomes(
        evaluate(
            "expert",
            TASKS,
            episodes=3,
            num_envs=8,
            out=out,
            record="first:1",
            image_size=(32, 32),
            suite_options={"arm_mode": "planning"},
        )
    )
    assert len(found) == 12
    assert {outcome for outcome, *_ in found.values()} == {"success"}
    videos = sorted((out / "videos").rglob("*.mp4"))
    assert len(videos) == 4
    assert all(video.stat().st_size > 500 for video in videos)
    assert (out / "report.html").exists()


def test_scores_do_not_depend_on_workers_or_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calm = evaluate("expert", TASKS[:2], episodes=4, num_envs=1)
    words = "loader,abort_step=5@{0}/abort,segv_reset=3@{0}/segv,fault_step=9@{0}/fault"
    monkeypatch.setenv("RLBENCH_DOUBLE", words.format(tmp_path))
    rough = evaluate("expert", TASKS[:2], episodes=4, num_envs=8)
    assert all((tmp_path / name).exists() for name in ("abort", "segv", "fault"))
    assert max(episode.attempts for episode in rough.episodes) > 1
    assert outcomes(calm) == outcomes(rough)


class Told:
    """Holds still, and notes which instructions it was given."""

    needs_frames = False
    told: dict[str, str] = {}

    def begin(self, episodes: Any) -> None:
        """Nothing to forget."""

    def act(self, batch: Batch) -> Any:
        for key, words in zip(batch.keys, batch.instructions, strict=True):
            self.told[str(key)] = words
        pose = batch.obs["state"][:, 1:8]
        return np.concatenate([pose, np.ones((len(batch), 1))], axis=1).astype(np.float32)


def test_a_policy_is_told_each_episodes_own_instruction():
    evaluate(Told(), "rlbench/open_drawer", episodes=6, num_envs=2, suite_options={"max_steps": 2})
    words = {int(key.rpartition("#")[2]): text for key, text in Told.told.items()}
    for index, drawer in enumerate(("bottom", "middle", "top") * 2):
        assert drawer in words[index]


def test_the_protocol_says_what_cannot_be_reproduced():
    results = evaluate("expert", "rlbench/reach_target", episodes=1, num_envs=1)
    told = str(results.provenance)
    assert "time limits" in told
    assert "by the episode's index" in told


def test_the_benchmark_measures_rlbench():
    command = [
        *(sys.executable, "-m", "polyarm", "bench", "--task", "rlbench/reach_target"),
        *("--num-envs", "4", "--max-steps", "8", "--action-chunk", "4", "--json"),
        *("--cameras", "front", "--image-size", "32", "32"),
    ]
    done = subprocess.run(
        command, env=dict(os.environ), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["env_steps"] >= 32
    assert result["errors"] == 0
    assert result["renderer"].startswith("Xvfb on ")


class Lost:
    """Asks for a place that no arm reaches."""

    needs_frames = False

    def begin(self, episodes: Any) -> None:
        """Nothing to forget."""

    def act(self, batch: Batch) -> Any:
        return np.tile(np.array([9, 9, 9, 0, 0, 0, 1, 1], np.float32), (len(batch), 1))


def test_invalid_actions_are_counted_in_the_results(tmp_path: Path):
    results = evaluate(Lost(), "rlbench/reach_target", episodes=2, num_envs=2, out=tmp_path / "run")
    assert [episode.outcome for episode in results.episodes] == ["failure", "failure"]
    assert [episode.invalid_actions for episode in results.episodes] == [1, 1]
    again = Results.read(tmp_path / "run")
    assert [episode.invalid_actions for episode in again.episodes] == [1, 1]
