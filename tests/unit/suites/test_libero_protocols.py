"""The protocols' rules as numbers: seeds, horizons, grippers, angles and defaults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from polyarm import registry
from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import UnknownName
from polyarm.suites.libero import Libero, catalogue
from polyarm.suites.libero.protocols import GRIPPERS, PROTOCOLS, axis_angle

SUITE = Libero()
TASK = "libero_spatial/4"
MOST = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}


def spec(*cameras: str, task: str = TASK, **options: Any) -> EnvSpec:
    return EnvSpec("libero", task, cameras, options=options)


# Seed, resets since it, resets since the build; of the episodes 0, 1 and 7 of streams 0 and 3.
@pytest.mark.parametrize(
    ("protocol", "first", "third"),
    [
        ("openpi", [(7, 0, 0), (7, 1, 1), (7, 7, 7)], [(10, 0, 0), (10, 1, 1), (10, 7, 7)]),
        ("oft", [(0, 0, 0), (0, 1, 1), (0, 7, 7)], [(3, 0, 0), (3, 1, 1), (3, 7, 7)]),
        ("ript-oft", [(0, 0, 0), (0, 1, 1), (0, 7, 7)], [(3, 0, 0), (3, 1, 1), (3, 7, 7)]),
        ("vla-eval", [(7, 0, 0), (7, 1, 1), (7, 7, 7)], [(10, 0, 0), (10, 1, 1), (10, 7, 7)]),
        ("simplevla", [(0, 0, 0), (0, 0, 0), (0, 0, 0)], [(3, 0, 0), (3, 0, 0), (3, 0, 0)]),
        (
            "lerobot",
            [(1000, 0, 1), (1001, 0, 2), (1007, 0, 8)],
            [(1003, 0, 1), (1004, 0, 2), (1010, 0, 8)],
        ),
    ],
)
def test_the_fixtures_hang_on_seed_and_resets(protocol: str, first: Any, third: Any) -> None:
    for stream, expected in ((0, first), (3, third)):
        indices = [stream * STREAM + episode for episode in (0, 1, 7)]
        assert [PROTOCOLS[protocol].seeding(TASK, index) for index in indices] == expected


@pytest.mark.parametrize(("protocol", "resets"), [("polyarm", 0), ("ript-quest", 1)])
def test_without_a_seed_of_the_protocols_each_episode_has_its_own(
    protocol: str, resets: int
) -> None:
    rule = PROTOCOLS[protocol]
    starts = [rule.seeding(TASK, index) for index in (0, 1, 7, 50, STREAM, STREAM + 1)]
    starts.append(rule.seeding("libero_spatial/5", 0))
    assert len({seed for seed, _, _ in starts}) == len(starts)
    assert all(0 <= seed < 2**32 for seed, _, _ in starts)
    assert {others for _, *rest in starts for others in [tuple(rest)]} == {(0, resets)}
    assert rule.seeding(TASK, 7) == rule.seeding(TASK, 7)


def test_polyarms_own_seeds_are_fixed_for_good() -> None:
    seeds = [PROTOCOLS["polyarm"].seeding(TASK, index)[0] for index in (0, 1)]
    assert seeds == [4033457534, 1489480876]


@pytest.mark.parametrize(
    ("protocol", "horizons"),
    [
        ("polyarm", MOST),
        ("openpi", MOST),
        ("oft", MOST),
        ("ript-oft", MOST),
        ("vla-eval", MOST),
        ("simplevla", dict.fromkeys(MOST, 512)),
        ("ript-quest", dict.fromkeys(MOST, 600)),
        ("lerobot", {**MOST, "libero_spatial": 280}),
    ],
)
def test_horizons_are_the_protocols(protocol: str, horizons: dict[str, int]) -> None:
    for suite, horizon in horizons.items():
        checked = SUITE.check(spec(task=f"{suite}/0", protocol=protocol))
        assert checked.options["max_steps"] == horizon
    given = SUITE.check(spec(protocol=protocol, max_steps=5))
    assert given.options["max_steps"] == 5


@pytest.mark.parametrize(
    ("protocol", "episodes", "side"),
    [
        *((protocol, 50, 256) for protocol in ("polyarm", "openpi", "oft", "simplevla")),
        *((protocol, 50, 256) for protocol in ("ript-oft", "vla-eval")),
        ("ript-quest", 48, 128),
        ("lerobot", 50, 360),
    ],
)
def test_episodes_and_image_size_default_to_the_protocols(
    protocol: str, episodes: int, side: int
) -> None:
    found = registry.defaults("libero", {"protocol": protocol})
    assert found == {"episodes": episodes, "image_size": (side, side)}


def test_without_a_protocol_our_own_holds() -> None:
    assert registry.defaults("libero", {}) == {"episodes": 50, "image_size": (256, 256)}
    assert SUITE.check(spec()) == SUITE.check(spec(protocol="polyarm"))


@pytest.mark.parametrize(
    ("gripper", "commands"),
    [
        ("as_is", {-1.0: -1.0, -0.3: -0.3, 0.0: 0.0, 0.7: 0.7}),
        ("sign", {-1.0: -1.0, -1e-9: -1.0, 0.0: 1.0, 1e-9: 1.0, 0.7: 1.0}),
        ("oft", {0.0: 1.0, 0.4999: 1.0, 0.5: 0.0, 0.5001: -1.0, 1.0: -1.0}),
    ],
)
def test_gripper_commands_are_understood_as_the_code_bases_do(
    gripper: str, commands: dict[float, float]
) -> None:
    assert {said: GRIPPERS[gripper](said) for said in commands} == commands
    checked = {name: SUITE.check(spec(protocol=name)).options["gripper"] for name in PROTOCOLS}
    assert {name for name, value in checked.items() if value == "oft"} == {
        "oft",
        "simplevla",
        "ript-oft",
    }
    assert {name for name, value in checked.items() if value == "sign"} == {"vla-eval"}


def test_protocols_whose_policies_read_the_robot_state_deliver_it() -> None:
    delivered = {
        name for name in PROTOCOLS if SUITE.check(spec(protocol=name)).options["robot_state"]
    }
    assert delivered == {"ript-quest", "lerobot", "vla-eval"}


def robosuites(quat: Any) -> Any:
    """As openpi, OpenVLA-OFT and SimpleVLA-RL compute it."""
    w = min(max(quat[3], -1.0), 1.0)
    den = np.sqrt(1.0 - w * w)
    if math.isclose(den, 0.0):
        return np.zeros(3)
    return (quat[:3] * 2.0 * math.acos(w)) / den


def vla_evals(quat: Any) -> Any:
    """As vla-eval computes it."""
    q = -quat if quat[3] < 0 else quat.copy()
    w = float(np.clip(q[3], -1.0, 1.0))
    sin_half = np.sqrt(1.0 - w * w)
    if sin_half < 1e-8:
        return np.zeros(3, dtype=np.float32)
    angle = 2.0 * np.arccos(w)
    return (q[:3] / sin_half * angle).astype(np.float32)


def quaternions() -> Any:
    rng = np.random.default_rng(0)
    quats = rng.normal(size=(5000, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    # Close to the hand's, which points down: w is about 0.
    down = np.array([1.0, 0.0, 0.0, 0.0]) + rng.normal(scale=0.05, size=(5000, 4))
    down /= np.linalg.norm(down, axis=1, keepdims=True)
    special = [
        [0.0, 0.0, 0.0, 1.0],
        [0.0, 0.0, 0.0, -1.0],
        [0.0, 0.0, 0.0, 1.0 + 1e-12],
        [0.0, 0.0, 1e-9, -1.0 - 1e-12],
        [0.0, 0.0, 1e-9, 1.0],
        [0.0, 0.0, 1e-7, 1.0 - 1e-14],
        [1.0, 0.0, 0.0, 0.0],
        [0.6, 0.0, 0.0, -0.8],
    ]
    return np.concatenate([quats, down, special])


def test_axis_angles_are_robosuites_to_the_bit() -> None:
    for quat in quaternions():
        np.testing.assert_array_equal(axis_angle(quat, canonical=False), robosuites(quat))


def test_canonical_axis_angles_are_vla_evals_to_the_bit() -> None:
    for quat in quaternions():
        found = axis_angle(quat, canonical=True).astype(np.float32)
        np.testing.assert_array_equal(found, vla_evals(quat), err_msg=str(quat))


def test_of_two_angles_the_canonical_one_is_the_smaller() -> None:
    turn = np.array([0.6, 0.0, 0.0, -0.8])
    wide, narrow = axis_angle(turn, canonical=False), axis_angle(turn, canonical=True)
    assert np.linalg.norm(wide) == pytest.approx(2 * math.acos(-0.8))
    assert np.linalg.norm(narrow) == pytest.approx(2 * math.acos(0.8))
    assert wide[0] > 0 > narrow[0]


@pytest.mark.parametrize("w", [1.0, 1.0 + 1e-9, -1.0, -1.0 - 1e-9])
def test_no_rotation_is_zero(w: float) -> None:
    quat = np.array([0.0, 0.0, 0.0, w])
    before = quat.copy()
    for canonical in (True, False):
        assert axis_angle(quat, canonical=canonical).tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_array_equal(quat, before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (spec(protocol="openvla"), "protocol of libero 'openvla'; did you mean .*'openpi'"),
        (spec(protocol=7), "protocol of libero '7'"),
        (spec("agent_view"), "camera of libero 'agent_view'; did you mean 'agentview'"),
        (spec("wirst"), "camera of libero 'wirst'; did you mean 'wrist'"),
        (spec(controll="absolute"), "option of libero 'controll'; did you mean 'control'"),
        (spec(control="absolut"), "value of control \"'absolut'\"; did you mean \"'absolute'\""),
        (spec(orientation="rot90"), "value of orientation \"'rot90'\"; did you mean \"'rot180'\""),
        (spec(gripper=None), "value of gripper 'None'"),
        (spec(soft_reset=1), "value of soft_reset '1'"),
        (spec(robot_state="yes"), "value of robot_state"),
        (spec(max_steps=0), "value of max_steps '0'. Give an int of at least 1"),
        (spec(max_steps=None), "value of max_steps 'None'"),
        (spec(max_steps=True), "value of max_steps 'True'"),
        (spec(settle_steps=-1), "value of settle_steps '-1'. Give an int of at least 0"),
        (spec(resize=0), "value of resize '0'"),
        (spec(resize=224.0), "value of resize '224.0'"),
    ],
)
def test_what_does_not_exist_is_refused(wrong: EnvSpec, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        SUITE.check(wrong)


def test_the_wrist_camera_has_a_short_name() -> None:
    checked = SUITE.check(spec("agentview", "wrist"))
    assert checked.cameras == ("agentview", "robot0_eye_in_hand")
    assert SUITE.check(checked) == checked
    space: Any = SUITE.describe(checked).observation_space
    assert space["pixels/robot0_eye_in_hand"].shape == (256, 256, 3)


def test_every_option_that_a_protocol_sets_can_be_given() -> None:
    options = {
        "orientation": "upright",
        "resize": 100,
        "gripper": "sign",
        "quaternion": "canonical",
        "robot_state": False,
        "max_steps": 9,
        "settle_steps": 0,
        "control": "absolute",
    }
    for protocol in PROTOCOLS:
        checked = SUITE.check(spec(protocol=protocol, **options))
        assert {name: checked.options[name] for name in options} == options
        assert SUITE.check(checked) == checked


def test_the_description_holds_spaces_and_everything_that_shapes_an_episode() -> None:
    lerobot = SUITE.describe(spec("wrist", protocol="lerobot"))
    space: Any = lerobot.observation_space
    shapes = {key: space[key].shape for key in space if key.startswith("robot_state/")}
    assert shapes == {
        "robot_state/eef_pos": (3,),
        "robot_state/eef_quat": (4,),
        "robot_state/eef_mat": (9,),
        "robot_state/gripper_qpos": (2,),
        "robot_state/gripper_qvel": (2,),
        "robot_state/joint_pos": (7,),
        "robot_state/joint_vel": (7,),
    }
    assert space["state"].shape == (8,)
    assert lerobot.action_space.shape == (7,)
    provenance = lerobot.provenance
    assert {"hf-libero", "robosuite", "mujoco", "assets", "settle_steps"} <= provenance.keys()
    assert provenance["protocol"] == "lerobot"
    assert provenance["libero_name"] == catalogue.find(TASK).stem
    assert not {"soft_reset", "lean_step", "share_gl"} & provenance.keys()


def test_actions_are_bounded_unless_they_are_poses() -> None:
    relative: Any = SUITE.describe(spec()).action_space
    absolute: Any = SUITE.describe(spec(control="absolute")).action_space
    assert relative.high.tolist() == [1.0] * 7
    assert absolute.high.tolist() == [np.inf] * 6 + [1.0]
