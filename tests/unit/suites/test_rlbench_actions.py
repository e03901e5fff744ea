"""Actions of RLBench's arms: which may pass, which lead to a target, and where a planner stops."""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidAction
from polyarm.suites.rlbench import RLBench, simulator
from polyarm.suites.rlbench.actions import (
    QUATERNION_TOLERANCE,
    Target,
    action_space,
    checked,
    keyframes,
    towards,
)

SUITE = RLBench()
ARMS = {"panda": 7, "sawyer": 7, "ur5": 6, "jaco": 6, "mico": 6}
JOINT_MODES = ("joint_velocity", "joint_position", "joint_torque")
POSE = np.array([0.3, -0.1, 1.1, 0.1, 0.7, -0.1, 0.7])
POSE[3:] /= np.linalg.norm(POSE[3:])
HOLD = np.array([*POSE, 1.0])


def spec(**options: Any) -> EnvSpec:
    return SUITE.check(EnvSpec("rlbench", "open_drawer", options=options))


def scaled(norm: float) -> Any:
    """An action whose quaternion has this norm."""
    action = HOLD.copy()
    action[3:7] *= norm
    return action


def random_poses(count: int) -> Any:
    rng = np.random.default_rng(7)
    return np.concatenate(
        [rng.uniform(-1, 1, (count, 3)), Rotation.random(count, random_state=8).as_quat()], axis=1
    )


def target(pose: Any = POSE, joints: Any = (), opened: float = 1.0) -> Target:
    return Target(np.array(pose, np.float64), np.array(joints, np.float64), opened)


def bounds(**options: Any) -> tuple[list[float], list[float]]:
    """Low and high of an action, the arm's numbers first."""
    space = action_space(spec(**options))
    assert space.dtype == np.float32
    return space.low.tolist(), space.high.tolist()


def single(*values: float) -> list[float]:
    return np.array(values, np.float32).tolist()


@pytest.mark.parametrize("mode", ["ik", "planning"])
@pytest.mark.parametrize(("control", "metres"), [("absolute", np.inf), ("delta", 0.05)])
def test_a_pose_has_a_position_and_a_quaternion_whatever_the_arm(
    mode: str, control: str, metres: float
) -> None:
    low = single(*[-metres] * 3, *[-1] * 4, 0)
    high = single(*[metres] * 3, *[1] * 4, 1)
    for robot in ARMS:
        assert bounds(arm_mode=mode, robot_setup=robot, control=control) == (low, high)


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"arm_mode": "joint_velocity"}, 1.0),
        ({"arm_mode": "joint_position"}, np.pi),
        ({"arm_mode": "joint_position", "control": "delta"}, 0.1),
        ({"arm_mode": "joint_torque"}, 100.0),
    ],
)
def test_an_action_of_joints_has_a_number_for_each(options: dict[str, Any], bound: float) -> None:
    for robot, joints in ARMS.items():
        expected = (single(*[-bound] * joints, 0), single(*[bound] * joints, 1))
        assert bounds(robot_setup=robot, **options) == expected


def test_a_continuous_gripper_opens_by_metres() -> None:
    low, high = bounds(gripper="continuous")
    assert (low[-1], high[-1]) == (0.0, np.float32(0.04))


def test_whether_collisions_are_ignored_comes_last() -> None:
    low, high = bounds(arm_mode="planning", ignore_collision=True, gripper="continuous")
    assert (low[7:], high[7:]) == ([0.0, 0.0], single(0.04, 1.0))


@pytest.mark.parametrize("shape", [(7,), (9,), (0,), (1, 8), (8, 1), ()])
def test_an_action_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidAction) as caught:
        checked(np.zeros(shape), spec(), 8)
    assert "rlbench/open_drawer" in str(caught.value)
    assert "(8,)" in str(caught.value)
    assert f"found {shape}" in str(caught.value)


@pytest.mark.parametrize("mode", ["ik", "planning", *JOINT_MODES])
def test_an_action_that_is_not_finite_is_refused(mode: str) -> None:
    for place, value in product(range(8), (np.nan, np.inf, -np.inf)):
        action = HOLD.astype(np.float32)
        action[place] = value
        with pytest.raises(InvalidAction, match=r"rlbench/open_drawer must be finite, found \["):
            checked(action, spec(arm_mode=mode), 8)


def test_the_largest_quaternion_there_is_is_complained_about() -> None:
    action = HOLD.astype(np.float32)
    action[3:7] = np.finfo(np.float32).max
    _, complaint = checked(action, spec(), 8)
    assert "quaternion" in complaint


@pytest.mark.parametrize("action", [["a"] * 8, [[1.0], 2.0, 3.0], {"x": 1.0}, [object()] * 8])
def test_what_is_not_numbers_is_refused(action: Any) -> None:
    with pytest.raises(InvalidAction, match="rlbench/open_drawer"):
        checked(action, spec(), 8)


@pytest.mark.parametrize("mode", ["ik", "planning"])
@pytest.mark.parametrize("control", ["absolute", "delta"])
def test_a_quaternion_off_by_rounding_is_made_of_unit_length(mode: str, control: str) -> None:
    for norm in (0.9801, 0.99, 1.0, 1.01, 1.0199):
        values, complaint = checked(scaled(norm), spec(arm_mode=mode, control=control), 8)
        assert complaint == ""
        np.testing.assert_allclose(values, HOLD, rtol=0, atol=1e-15)


@pytest.mark.parametrize("norm", [0.0, 1e-9, 0.5, 0.9799, 1.0201, 2.0])
def test_another_quaternion_is_complained_about_with_its_norm(norm: float) -> None:
    action = scaled(norm)
    values, complaint = checked(action, spec(), 8)
    assert f"norm {norm:.3f} instead of 1" in complaint
    np.testing.assert_array_equal(values, action)


def test_the_tolerance_has_room_for_half_precision() -> None:
    rng = np.random.default_rng(0)
    quaternions = rng.normal(size=(1000, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    off = np.abs(np.linalg.norm(quaternions.astype(np.float16).astype(float), axis=1) - 1)
    assert 0 < off.max() < QUATERNION_TOLERANCE


def test_float32_is_normalised_in_double_precision() -> None:
    # RLBench compares with 1 in double precision, but to 1e-5 only; the rest is for exactness.
    single = HOLD.astype(np.float32)
    assert abs(np.linalg.norm(single[3:7].astype(np.float64)) - 1) > 1e-10
    values, complaint = checked(single, spec(), 8)
    assert complaint == ""
    assert values.dtype == np.float64
    assert abs(np.linalg.norm(values[3:7]) - 1) < 1e-15
    np.testing.assert_array_equal(values[[0, 1, 2, 7]], single[[0, 1, 2, 7]].astype(np.float64))


def test_the_callers_action_is_not_written_to() -> None:
    action = scaled(1.01)
    before = action.copy()
    checked(action, spec(), 8)
    np.testing.assert_array_equal(action, before)


@pytest.mark.parametrize("mode", JOINT_MODES)
def test_actions_of_joints_pass_as_they_are(mode: str) -> None:
    action = np.arange(8, dtype=np.float32) * 0.3
    values, complaint = checked(action, spec(arm_mode=mode), 8)
    assert complaint == ""
    np.testing.assert_array_equal(values, action.astype(np.float64))


def test_a_list_of_numbers_is_an_action() -> None:
    values, complaint = checked(HOLD.tolist(), spec(), 8)
    assert complaint == ""
    np.testing.assert_allclose(values, HOLD, atol=1e-15)


@pytest.mark.parametrize("mode", ["ik", "planning"])
def test_a_delta_from_the_current_pose_is_the_target(mode: str) -> None:
    options = spec(arm_mode=mode, control="delta")
    poses = random_poses(200)
    for pose, goal in pairwise(poses):
        action = towards(target(goal), pose, np.zeros(7), options).astype(np.float64)
        # As RLBench's calculate_delta_pose: the turn is in the world's frame, so it comes first.
        reached = Rotation.from_quat(action[3:7]) * Rotation.from_quat(pose[3:])
        np.testing.assert_allclose(pose[:3] + action[:3], goal[:3], atol=1e-6)
        assert (reached * Rotation.from_quat(goal[3:]).inv()).magnitude() < 1e-6
        assert checked(action, options, 8)[1] == ""


def test_the_order_of_turns_matters_to_that_test() -> None:
    pose, goal = random_poses(2)
    action = towards(target(goal), pose, np.zeros(7), spec(control="delta"))
    swapped = Rotation.from_quat(pose[3:]) * Rotation.from_quat(action[3:7])
    assert (swapped * Rotation.from_quat(goal[3:]).inv()).magnitude() > 0.1


def test_staying_is_a_delta_without_turn() -> None:
    action = towards(target(), POSE, np.zeros(7), spec(control="delta"))
    np.testing.assert_allclose(action, [0, 0, 0, 0, 0, 0, 1, 1], atol=1e-7)


@pytest.mark.parametrize("mode", ["ik", "planning"])
def test_an_absolute_target_is_its_pose_wherever_the_arm_is(mode: str) -> None:
    for pose in random_poses(3):
        action = towards(target(), pose, np.ones(7), spec(arm_mode=mode))
        assert action.dtype == np.float32
        np.testing.assert_array_equal(action, HOLD.astype(np.float32))


@pytest.mark.parametrize(("robot", "joints"), [("panda", 7), ("ur5", 6)])
def test_joint_targets_are_positions_or_the_way_to_them(robot: str, joints: int) -> None:
    now, then = np.linspace(-1, 1, joints), np.linspace(2, -2, joints)
    options = {"arm_mode": "joint_position", "robot_setup": robot}
    there = towards(target(joints=then, opened=0.0), POSE, now, spec(**options))
    np.testing.assert_array_equal(there, np.append(then, 0.0).astype(np.float32))
    way = towards(target(joints=then, opened=0.0), POSE, now, spec(control="delta", **options))
    np.testing.assert_allclose(now + way[:-1], then, atol=1e-6)
    assert way[-1] == 0.0


@pytest.mark.parametrize(("gripper", "metres"), [("discrete", 1.0), ("continuous", 0.04)])
def test_an_open_gripper_is_one_or_metres(gripper: str, metres: float) -> None:
    for opened in (0.0, 0.5, 1.0):
        action = towards(target(opened=opened), POSE, np.zeros(7), spec(gripper=gripper))
        assert action.shape == (8,)
        assert action[7] == np.float32(opened * metres)


@pytest.mark.parametrize("control", ["absolute", "delta"])
def test_an_expert_ignores_collisions_with_the_ninth_number(control: str) -> None:
    options = spec(arm_mode="planning", ignore_collision=True, control=control)
    action = towards(target(opened=0.0), POSE, np.zeros(7), options)
    assert action.shape == action_space(options).shape == (9,)
    assert action[7:].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("control", ["absolute", "delta"])
@pytest.mark.parametrize("mode", ["ik", "planning", "joint_position"])
def test_what_leads_to_a_target_fits_the_action_space(mode: str, control: str) -> None:
    near = POSE + np.array([0.01, -0.01, 0.01, 0, 0, 0, 0])
    for gripper in ("discrete", "continuous"):
        options = spec(arm_mode=mode, control=control, gripper=gripper)
        action = towards(target(near, np.full(7, 0.05)), POSE, np.zeros(7), options)
        assert action_space(options).contains(action)


def moments(opened: str, speeds: list[float]) -> tuple[list[Target], list[float]]:
    """A demonstration from the gripper's states, ``"0"`` or ``"1"``, and the speeds."""
    return [target([number] * 7, opened=float(one)) for number, one in enumerate(opened)], speeds


def numbers(opened: str, speeds: list[float]) -> list[int]:
    """Which moments of a demonstration are keyframes."""
    return [int(one.pose[0]) for one in keyframes(*moments(opened, speeds))]


def test_a_gripper_that_opens_or_closes_is_a_keyframe() -> None:
    assert numbers("1100011", [1.0] * 7) == [2, 5, 6]


def test_an_arm_that_comes_to_rest_is_a_keyframe_once() -> None:
    assert numbers("1" * 8, [1.0, 1.0, 0.01, 0.0, 0.01, 1.0, 0.04, 1.0]) == [2, 6, 7]


def test_an_arm_that_starts_at_rest_is_no_keyframe() -> None:
    assert numbers("1111", [0.0, 0.0, 1.0, 1.0]) == [3]


def test_slow_is_not_at_rest() -> None:
    assert numbers("1" * 5, [1.0, 0.11, 1.0, 0.11, 0.101]) == [4]


def test_the_last_moment_is_a_keyframe_and_no_moment_is_one_twice() -> None:
    assert numbers("111", [1.0, 1.0, 1.0]) == [2]
    assert numbers("110", [1.0, 1.0, 0.0]) == [2]
    assert numbers("1100", [1.0, 1.0, 0.0, 0.0]) == [2, 3]


def test_keyframes_are_the_very_targets() -> None:
    played, speeds = moments("10", [1.0, 1.0])
    assert keyframes(played, speeds)[0] is played[1]


def test_a_demonstration_of_one_moment_has_that_one_keyframe() -> None:
    assert numbers("1", [0.0]) == [0]


@pytest.fixture
def importable(rlbench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """RLBench can be imported in this process; nothing is launched."""
    monkeypatch.setenv("RLBENCH_DOUBLE", "")


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("ik", "EndEffectorPoseViaIK"),
        ("planning", "EndEffectorPoseViaPlanning"),
        ("joint_position", "JointPosition"),
    ],
)
def test_rlbench_is_told_the_arms_mode_and_control(mode: str, name: str) -> None:
    for control, checking in product(("absolute", "delta"), (False, mode == "planning")):
        options = spec(arm_mode=mode, control=control, collision_checking=checking)
        arm = simulator._action_mode(options).arm_action_mode
        assert type(arm).__name__ == name
        assert arm._absolute_mode is (control == "absolute")
        if mode != "joint_position":
            assert arm._collision_checking is checking


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"arm_mode": "joint_velocity"}, ("JointVelocity", "Discrete")),
        ({"arm_mode": "joint_torque"}, ("JointTorque", "Discrete")),
        ({"gripper": "continuous"}, ("EndEffectorPoseViaIK", "GripperJointPosition")),
    ],
)
def test_rlbench_is_told_arm_and_gripper(options: dict[str, Any], names: tuple[str, str]) -> None:
    mode = simulator._action_mode(spec(**options))
    found = (mode.arm_action_mode, mode.gripper_action_mode)
    assert tuple(type(one).__name__ for one in found) == names


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("ninth", "checking", "control"),
    [
        (0.0, True, "absolute"),
        (0.5, True, "delta"),
        (0.51, False, "delta"),
        (1.0, False, "absolute"),
    ],
)
def test_the_ninth_number_chooses_whether_paths_avoid_collisions(
    ninth: float, checking: bool, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlbench.action_modes.arm_action_modes import EndEffectorPoseViaPlanning

    seen = []

    def plan(arm: Any, scene: Any, action: Any) -> None:
        seen.append((arm._collision_checking, arm._absolute_mode, action.tolist()))

    monkeypatch.setattr(EndEffectorPoseViaPlanning, "action", plan)
    mode = simulator._action_mode(spec(arm_mode="planning", ignore_collision=True, control=control))
    opened: list[Any] = []
    monkeypatch.setattr(mode.gripper_action_mode, "action", lambda _, action: opened.append(action))
    assert mode.action_shape(None) == 9
    mode.action(None, np.append(HOLD, ninth))
    assert seen == [(checking, control == "absolute", POSE.tolist())]
    assert [one.tolist() for one in opened] == [[1.0]]


@pytest.mark.usefixtures("importable")
def test_arms_and_their_joints_are_rlbenchs() -> None:
    from rlbench.const import SUPPORTED_ROBOTS

    assert {name: joints for name, (_, _, joints) in SUPPORTED_ROBOTS.items()} == ARMS


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("options", "last", "ignored"),
    [
        ({}, [], True),
        ({"collision_checking": True}, [], False),
        ({"ignore_collision": True}, [1.0], True),
        ({"ignore_collision": True}, [0.0], False),
    ],
)
def test_the_planner_of_peracts_rlbench_is_told_whether_to_ignore_collisions(
    options: dict[str, Any], last: list[float], ignored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlbench.action_modes import arm_action_modes

    told = []

    class PerActPlanner:
        def __init__(self, **settings: Any) -> None:
            """As upstream's."""

        def action(self, scene: Any, action: Any, ignore_collisions: bool = True) -> None:
            told.append((len(action), ignore_collisions))

        def action_shape(self, scene: Any) -> tuple[int]:
            return (7,)

    monkeypatch.setattr(arm_action_modes, "EndEffectorPoseViaPlanning", PerActPlanner)
    mode = simulator._action_mode(spec(arm_mode="planning", **options))
    gripped: list[float] = []
    mode.gripper_action_mode = SimpleNamespace(action=lambda _, action: gripped.extend(action))
    mode.action(None, np.array([0.1, 0.2, 0.3, 0.0, 0.0, 0.0, 1.0, 0.8, *last]))
    assert told == [(7, ignored)]
    assert gripped == [0.8]
