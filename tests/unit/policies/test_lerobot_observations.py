"""Our observations under the names of LeRobot's envs."""

import numpy as np
import pytest

from polyarm.errors import PolicyError
from polyarm.policies.lerobot_observations import LIBERO_STATE, to_lerobot


def libero_obs(rows=2):
    sizes = {"eef_mat": 9, "eef_pos": 3, "eef_quat": 4, "joint_pos": 7, "joint_vel": 7}
    obs = {
        key: np.random.default_rng(0).normal(size=(rows, sizes.get(key.split("/")[1], 2)))
        for key in LIBERO_STATE.values()
    }
    obs["pixels/agentview"] = np.full((rows, 4, 4, 3), 1, np.uint8)
    obs["pixels/robot0_eye_in_hand"] = np.full((rows, 4, 4, 3), 2, np.uint8)
    return {"state": np.zeros((rows, 8), np.float32), **obs}


def test_libero_has_two_images_and_a_nested_state():
    obs = libero_obs()
    seen = to_lerobot(obs, "libero")
    assert list(seen) == ["pixels", "robot_state"]
    assert seen["pixels"]["image"] is obs["pixels/agentview"]
    assert seen["pixels"]["image2"] is obs["pixels/robot0_eye_in_hand"]
    state = seen["robot_state"]
    assert {part: sorted(state[part]) for part in state} == {
        "eef": ["mat", "pos", "quat"],
        "gripper": ["qpos", "qvel"],
        "joints": ["pos", "vel"],
    }
    assert state["eef"]["mat"].shape == (2, 3, 3)
    np.testing.assert_array_equal(state["eef"]["mat"][1].ravel(), obs["robot_state/eef_mat"][1])
    np.testing.assert_array_equal(state["joints"]["vel"], obs["robot_state/joint_vel"])


def test_libero_without_its_robot_state_says_what_to_ask_for():
    with pytest.raises(PolicyError, match="--protocol lerobot"):
        to_lerobot({"state": np.zeros((1, 8), np.float32)}, "libero")


def test_metaworld_has_one_image_and_four_numbers():
    obs = {
        "state": np.arange(78, dtype=np.float32).reshape(2, 39),
        "pixels/corner2": np.zeros((2, 4, 4, 3), np.uint8),
    }
    seen = to_lerobot(obs, "metaworld")
    assert seen["pixels"] is obs["pixels/corner2"]
    np.testing.assert_array_equal(seen["agent_pos"], [[0, 1, 2, 3], [39, 40, 41, 42]])


def test_other_suites_keep_their_names():
    obs = {"state": np.zeros((1, 2)), "pixels/a": 1, "pixels/b": 2, "temperature": np.ones((1, 1))}
    seen = to_lerobot(obs, "gym")
    assert seen["pixels"] == {"a": 1, "b": 2}
    assert seen["agent_pos"] is obs["state"]
    assert seen["temperature"] is obs["temperature"]
    assert "pixels" not in to_lerobot({"state": np.zeros((1, 2))}, "gym")
