"""Evaluation on the real simulator: same episodes however they are run, videos that are right."""

from __future__ import annotations

import json

import av
import numpy as np
import pytest

import polyarm
from polyarm.policies import RandomPolicy
from polyarm.suites.metaworld import action_space

pytestmark = pytest.mark.simulator

TASKS = ["metaworld/reach-v3", "metaworld/push-v3", "metaworld/drawer-close-v3"]


def facts(results):
    return {e.key: (e.outcome, e.steps, e.action_hash, e.total_reward) for e in results.episodes}


@pytest.fixture(scope="module")
def undisturbed():
    """Experts one after the other, in one env in this process."""
    return facts(polyarm.evaluate("expert", TASKS, episodes=3, num_envs=1, num_workers=0))


@pytest.mark.parametrize(
    ("num_envs", "num_workers", "chunk"), [(2, 1, 3), (8, None, 16), (16, 4, 7)]
)
def test_experts_play_the_same_episodes_however_many_envs_there_are(
    undisturbed, num_envs, num_workers, chunk
):
    results = polyarm.evaluate(
        "expert", TASKS, episodes=3, num_envs=num_envs, num_workers=num_workers, chunk=chunk
    )
    assert facts(results) == undisturbed
    assert results.success_rate == 1.0


@pytest.mark.parametrize(
    ("num_envs", "options"), [(2, {"max_batch": 1}), (8, {}), (16, {"max_wait_ms": 0.0})]
)
def test_random_policies_play_the_same_episodes_whatever_the_batches(num_envs, options):
    def play(num_envs, **options):
        policy = RandomPolicy(action_space(), 4)
        return facts(
            polyarm.evaluate(
                policy, TASKS[:2], episodes=4, num_envs=num_envs, num_workers=2,
                suite_options=("max_steps=60",), **options,
            )
        )  # fmt: skip

    assert play(num_envs, **options) == play(3)


@pytest.mark.frames
def test_filmed_episodes_are_the_same_and_their_videos_are_complete(undisturbed, tmp_path):
    results = polyarm.evaluate(
        "expert", TASKS, episodes=1, num_envs=2, out=tmp_path, record="all", video_stride=20,
        image_size=(64, 64), realtime=True,
    )  # fmt: skip
    assert facts(results) == {key: undisturbed[key] for key in facts(results)}
    for episode in results.episodes:
        (video,) = episode.videos
        with av.open(str(tmp_path / video)) as container:
            stream = container.streams.video[0]
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
            assert stream.average_rate == 4  # 80 steps a second, every 20th
        assert len(frames) == -(-episode.steps // 20) + 1
        first, last = frames[0].astype(int), frames[-1].astype(int)
        assert np.abs(first - last).max() > 30  # the arm has moved
    report = (tmp_path / "report.html").read_text()
    assert all(episode.videos[0] in report for episode in results.episodes)


def test_the_protocol_of_a_run_says_what_was_simulated(tmp_path):
    polyarm.evaluate("zero", TASKS[:1], episodes=1, num_envs=1, num_workers=0, out=tmp_path,
                     suite_options=("max_steps=5",))  # fmt: skip
    protocol = json.loads((tmp_path / "run.json").read_text())["protocol"]
    about = protocol["tasks"]["metaworld/reach-v3"]
    assert about["mujoco"] == "3.3.0"
    assert about["max_steps"] == 5
    assert about["success"] == "any"
    assert protocol["policies"][""]
    with pytest.raises(polyarm.RunConflict, match="max_steps: 6 here, 5 there"):
        polyarm.evaluate("zero", TASKS[:1], episodes=1, num_envs=1, num_workers=0, out=tmp_path,
                         suite_options=("max_steps=6",))  # fmt: skip
