"""The dictionary of an episode: RIPT-VLA's names, one entry per inference."""

from __future__ import annotations

import numpy as np
import pytest

from polyarm.compat.ript.episodes import EpisodeForm, problems
from polyarm.suites.libero.protocols import GRIPPERS
from polyarm.suites.libero.suite import ORIENTATIONS

FORM = EpisodeForm(3, GRIPPERS["oft"], ORIENTATIONS["rot180"])


@pytest.fixture
def trajectory():
    """Seven steps in three inferences, the last of which was cut short by success."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(0, 1, (7, 7)).astype(np.float32)
    actions[:, 6] = [0.9, 0, 0, 0.1, 0, 0, 1.0]
    return {
        "actions": actions,
        "rewards": np.array([0, 0, 0, 0, 0, 0, 1.0]),
        "decision_steps": np.array([0, 3, 6]),
        "instruction": "put it there",
        "obs": {
            "state": rng.normal(size=(3, 8)).astype(np.float32),
            "pixels/agentview": rng.integers(0, 255, (3, 4, 6, 3), np.uint8),
            "pixels/robot0_eye_in_hand": rng.integers(0, 255, (3, 4, 6, 3), np.uint8),
            "robot_state/eef_pos": rng.normal(size=(3, 3)),
        },
        "extras": {
            "log_prob": rng.normal(size=(3, 3, 7)),
            "actions_normalized": rng.normal(size=(3, 3, 7)),
            "context_tokens": rng.normal(size=(3, 2)),
        },
    }


def test_every_list_has_one_entry_per_inference_the_last_one_included(trajectory):
    episode = FORM.write(trajectory)
    for name in ("actions", "valid", "actions_normalized", "log_prob", "observations",
                 "task_description", "rewards", "context_tokens"):  # fmt: skip
        assert isinstance(episode[name], list)
        assert len(episode[name]) == 3
    assert episode["valid"] == [True] * 3
    assert episode["task_description"] == ["put it there"] * 3
    assert episode["rewards"] == [0.0, 0.0, 1.0]
    assert episode["policy_inference_steps"] == [3]
    assert (episode["task"], episode["task_id"]) == ("put it there", 3)
    assert not problems(episode)


def test_actions_are_the_first_of_each_chunk_as_libero_executes_them(trajectory):
    episode = FORM.write(trajectory)
    np.testing.assert_array_equal(
        [action[:6] for action in episode["actions"]], trajectory["actions"][[0, 3, 6], :6]
    )
    assert [action[6] for action in episode["actions"]] == [-1.0, 1.0, -1.0]


def test_what_the_policy_said_is_kept_as_it_was(trajectory):
    episode = FORM.write(trajectory)
    for name in ("log_prob", "actions_normalized", "context_tokens"):
        np.testing.assert_array_equal(episode[name], trajectory["extras"][name])
    trajectory["extras"] = {}
    episode = FORM.write(trajectory)
    assert episode["log_prob"] == episode["actions_normalized"] == [None] * 3
    assert not problems(episode)


def test_observations_are_what_the_policy_looked_at(trajectory):
    episode = FORM.write(trajectory)
    assert all(
        {*seen} == {"full_image", "wrist_image", "state"} for seen in episode["observations"]
    )
    obs = trajectory["obs"]
    np.testing.assert_array_equal(
        episode["observations"][1]["full_image"], obs["pixels/agentview"][1]
    )
    np.testing.assert_array_equal(episode["observations"][2]["state"], obs["state"][2])
    resized = np.zeros((3, 2, 2, 3), np.uint8)
    trajectory["extras"]["full_image"] = resized
    episode = FORM.write(trajectory)
    assert episode["observations"][0]["full_image"].shape == (2, 2, 3)
    assert episode["observations"][0]["wrist_image"].shape == (4, 6, 3)
    assert "full_image" not in episode


def test_raw_observations_carry_liberos_names_and_orientation(trajectory):
    form = EpisodeForm(0, GRIPPERS["as_is"], ORIENTATIONS["rot180"], raw=True)
    seen = form.write(trajectory)["observations"][1]
    raw = trajectory["obs"]["pixels/agentview"][1][::-1, ::-1]
    np.testing.assert_array_equal(seen["agentview_image"], raw)
    np.testing.assert_array_equal(
        seen["robot0_eef_pos"], trajectory["obs"]["robot_state/eef_pos"][1]
    )


@pytest.mark.parametrize("orientation", list(ORIENTATIONS))
def test_films_are_upright_whatever_the_policy_sees(trajectory, orientation):
    rows, columns = ORIENTATIONS[orientation]
    raw = trajectory["obs"]["pixels/agentview"]
    trajectory["obs"]["pixels/agentview"] = raw[:, ::rows, ::columns]
    form = EpisodeForm(0, GRIPPERS["as_is"], ORIENTATIONS[orientation], render=True)
    np.testing.assert_array_equal(form.write(trajectory)["render"], raw[:, ::-1])


def _spoil(name, change):
    def spoil(episode):
        episode[name] = change(episode[name])

    return spoil


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda episode: episode.pop("log_prob"), "it has no log_prob"),
        (_spoil("valid", lambda valid: valid[:-1]), "one entry per inference"),
        (_spoil("actions", lambda actions: [[0.0] * 6, *actions[1:]]), "7 finite numbers"),
        (_spoil("actions", lambda actions: [[np.nan] * 7, *actions[1:]]), "7 finite numbers"),
        (lambda episode: episode["observations"][1].pop("state"), "state has 8"),
        (lambda episode: episode["observations"][1].pop("wrist_image"), "wrist_image is uint8"),
        (lambda episode: episode["observations"][2]["full_image"].fill(7), "nothing was rendered"),
    ],
)
def test_what_a_trainer_could_not_use_is_found(trajectory, spoil, told):
    episode = FORM.write(trajectory)
    spoil(episode)
    assert told in "; ".join(problems(episode))
