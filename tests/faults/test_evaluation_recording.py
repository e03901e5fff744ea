"""Recording never changes an outcome."""

from __future__ import annotations

import evaluation_faults as faults
import pytest

from polyarm.rollout.evaluate import evaluate


class Looker(faults.Gambler):
    """Decides by what it sees in a frame, among others."""

    fingerprint = {"policy": "looker"}

    def act(self, batch):
        seen = batch.obs["pixels/front"][:, 3, 5, :2].astype("float32")[:, None] / 255 - 0.5
        return seen + 0.1 * batch.noise(2, 2)


@pytest.mark.parametrize("cameras", [(), ("front", "wrist")])
def test_recorded_episodes_are_those_that_are_not_recorded(tmp_path, cameras):
    given = {"episodes": 4, "num_envs": 2, "image_size": (32, 32), "cameras": cameras, "chunk": 3}
    plain = evaluate("random", "toy/short", **given, out=tmp_path / "plain")
    for record in ("all", "failures"):
        filmed = evaluate("random", "toy/short", **given, record=record, out=tmp_path / record)
        assert faults.scores(filmed.episodes) == faults.scores(plain.episodes)
        assert all(bool(each.videos) == (record == "all") for each in filmed.episodes)


def test_a_policy_that_sees_frames_acts_the_same_when_it_is_recorded(tmp_path):
    given = {"episodes": 4, "num_envs": 2, "image_size": (32, 32), "cameras": ("front",)}
    plain = evaluate(Looker(), "toy/count-10", **given, out=tmp_path / "plain")
    filmed = evaluate(Looker(), "toy/count-10", **given, record="all", out=tmp_path / "filmed")
    assert faults.scores(filmed.episodes) == faults.scores(plain.episodes)
    assert len({each.action_hash for each in plain.episodes}) == 4
    assert all((tmp_path / "filmed" / each.videos[0]).exists() for each in filmed.episodes)


@pytest.mark.simulator
@pytest.mark.frames
def test_recording_meta_world_changes_no_outcome(tmp_path):
    given = {"episodes": 2, "num_envs": 2, "image_size": (64, 64)}
    plain = evaluate("expert", "metaworld/reach-v3", **given, out=tmp_path / "plain")
    filmed = evaluate(
        "expert", "metaworld/reach-v3", **given, record="all", out=tmp_path / "filmed"
    )
    assert faults.scores(filmed.episodes) == faults.scores(plain.episodes)
    assert [each.outcome for each in plain.episodes] == ["success", "success"]
    assert all((tmp_path / "filmed" / each.videos[0]).exists() for each in filmed.episodes)
