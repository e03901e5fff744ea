"""Random actions follow their seed and fit what a suite can do."""

import numpy as np
import pytest
from gymnasium import spaces

from polyarm.bench.actions import PoseNoise, RandomActions

HIGH = np.array([np.inf] * 3 + [1.0] * 4 + [1.0], np.float32)
POSES = spaces.Box(-HIGH, HIGH, dtype=np.float32)


def states(num_envs=3):
    """Gripper open, somewhere, turned; then joints that do not matter."""
    random = np.random.default_rng(7)
    turn = random.normal(size=(num_envs, 4))
    return np.column_stack(
        [
            np.linspace(0, 1, num_envs),
            random.uniform(-1, 1, (num_envs, 3)),
            turn / np.linalg.norm(turn, axis=1, keepdims=True),
            random.normal(size=(num_envs, 9)),
        ]
    ).astype(np.float32)


def test_random_actions_follow_their_seed_and_fit_their_space():
    space = spaces.Dict({"arm": spaces.Box(-1, 1, (3,), np.float32), "grip": spaces.Discrete(2)})
    first, again, other = (RandomActions(space, 4, seed) for seed in (1, 1, 2))
    chunk = first.build(5)
    assert chunk["arm"].shape == (4, 5, 3)
    assert chunk["grip"].shape == (4, 5)
    assert np.array_equal(chunk["arm"], again.build(5)["arm"])
    assert not np.array_equal(chunk["arm"], other.build(5)["arm"])
    assert first.build(None)["arm"].shape == (4, 3)


def test_a_noisy_pose_keeps_turn_and_gripper_and_moves_a_little():
    state = states()
    actions = PoseNoise(POSES, 0.01, seed=0, delta=False).build(None, {"state": state})
    assert actions.shape == (3, 8)
    assert actions.dtype == np.float32
    assert np.allclose(actions[:, 3:7], state[:, 4:8], atol=1e-6)
    assert np.allclose(np.linalg.norm(actions[:, 3:7], axis=1), 1, atol=1e-6)
    assert np.array_equal(actions[:, 7], state[:, 0])
    moved = np.abs(actions[:, :3] - state[:, 1:4])
    assert 0 < moved.min() < moved.max() < 0.05


def test_the_noise_has_the_deviation_that_was_asked_for():
    state = np.repeat(states(1), 4000, axis=0)
    actions = PoseNoise(POSES, 0.02, seed=0, delta=False).build(None, {"state": state})
    moved = actions[:, :3] - state[:, 1:4]
    assert moved.std(axis=0) == pytest.approx(0.02, rel=0.05)
    assert moved.mean(axis=0) == pytest.approx(0, abs=0.001)


def test_a_chunk_is_a_random_walk_from_the_current_pose():
    state = np.repeat(states(1), 4000, axis=0)
    actions = PoseNoise(POSES, 0.01, seed=0, delta=False).build(16, {"state": state})
    assert actions.shape == (4000, 16, 8)
    way = actions[:, :, :3] - state[:, None, 1:4]
    assert np.diff(way, axis=1).std() == pytest.approx(0.01, rel=0.05)
    assert way[:, -1].std() == pytest.approx(0.01 * 4, rel=0.05)  # the square root of 16 steps


def test_displacements_do_not_depend_on_the_pose():
    build = [
        PoseNoise(POSES, 0.01, seed=3, delta=True).build(4, {"state": state})
        for state in (states(), states() * np.array([1] + [0] * 16, np.float32))
    ]
    assert np.array_equal(*build)
    assert np.array_equal(build[0][..., 3:7], np.broadcast_to([0, 0, 0, 1], (3, 4, 4)))
    assert 0 < np.abs(build[0][..., :3]).max() < 0.05


def test_poses_follow_their_seed():
    obs = {"state": states()}
    first, again, other = (PoseNoise(POSES, 0.01, seed, delta=False) for seed in (1, 1, 2))
    for chunk in (None, 3):
        actions = first.build(chunk, obs)
        assert np.array_equal(actions, again.build(chunk, obs))
        assert not np.array_equal(actions, other.build(chunk, obs))


def test_a_continuous_gripper_is_told_its_width():
    high = np.array([*HIGH[:7], 0.04], np.float32)
    space = spaces.Box(-high, high, dtype=np.float32)
    actions = PoseNoise(space, 0.0, seed=0, delta=False).build(None, {"state": states()})
    assert actions[:, 7] == pytest.approx([0, 0.02, 0.04])


def test_a_further_number_of_an_action_is_zero():
    high = np.append(HIGH, np.float32(1))
    space = spaces.Box(-high, high, dtype=np.float32)
    actions = PoseNoise(space, 0.01, seed=0, delta=False).build(2, {"state": states()})
    assert actions.shape == (3, 2, 9)
    assert (actions[..., 8] == 0).all()


def test_a_turn_that_was_rounded_is_a_unit_quaternion_again():
    state = states()
    state[:, 4:8] *= 1.01
    actions = PoseNoise(POSES, 0.01, seed=0, delta=False).build(5, {"state": state})
    assert np.allclose(np.linalg.norm(actions[..., 3:7], axis=-1), 1, atol=1e-6)
