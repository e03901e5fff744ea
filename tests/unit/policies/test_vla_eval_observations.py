"""What a model server is sent, next to what vla-eval's own LIBERO benchmark sends it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from vla_eval.protocol.messages import Message as TheirMessage
from vla_eval.protocol.messages import MessageType, pack_message, unpack_message
from vla_eval.rotation import axisangle_to_matrix, matrix_to_quat
from vla_eval_server import Serving, TinyModel

from polyarm.contracts import EnvSpec, EpisodeKey
from polyarm.errors import PolicyError, WireError
from polyarm.policies.vla_eval import VlaEvalPolicy
from polyarm.policies.vla_eval_messages import Message, pack, unpack
from polyarm.policies.vla_eval_observations import Wishes, axis_angle, quaternion, task_info

KEY = EpisodeKey("libero", "libero_goal/3", 5)
WRIST = "robot0_eye_in_hand"
BOTH = ("agentview", WRIST)
OPTIONS = {
    "protocol": "vla-eval",
    "control": "relative",
    "orientation": "rot180",
    "resize": None,
    "gripper": "sign",
    "robot_state": True,
    "max_steps": 300,
    "settle_steps": 10,
}


# Messages.


def test_messages_are_read_by_vla_eval_and_its_own_by_us():
    obs = {
        "images": {"agentview": np.arange(48, dtype=np.uint8).reshape(4, 4, 3)},
        "state": np.array([1.5, -2.0], np.float32),
        "strided": np.arange(10.0)[::3],
        "empty": np.zeros((0, 3)),
        "single": np.array(3.0),
        "number": np.float32(0.5),
        "task_description": "öffne die Lade",
    }
    theirs = unpack_message(pack(Message("observation", obs, 7)))
    assert (theirs.type, theirs.seq) == (MessageType.OBSERVATION, 7)
    ours = unpack(pack_message(TheirMessage(MessageType.ACTION, {"actions": obs["strided"]}, 9)))
    assert (ours.kind, ours.seq) == ("action", 9)
    np.testing.assert_array_equal(ours.payload["actions"], obs["strided"])
    for name in ("state", "strided", "empty", "single"):
        assert theirs.payload[name].dtype == obs[name].dtype
        np.testing.assert_array_equal(theirs.payload[name], obs[name])
    np.testing.assert_array_equal(theirs.payload["images"]["agentview"], obs["images"]["agentview"])
    assert theirs.payload["number"] == 0.5
    assert theirs.payload["task_description"] == obs["task_description"]


@pytest.mark.parametrize("value", [np.array(["text"]), np.array([object()]), 1j, {1, 2}])
def test_what_servers_refuse_is_not_sent(value):
    with pytest.raises(WireError):
        pack(Message("observation", {"value": value}, 1))


@pytest.mark.parametrize(
    "found",
    [
        [],
        {},
        {"type": "act", "payload": {}, "seq": 1},
        {"type": "action", "payload": [], "seq": 1},
        {"type": "action", "payload": {}, "seq": "1"},
        {"type": "action", "payload": {"a": {"__ndarray__": True}}, "seq": 1},
        {
            "type": "action",
            "payload": {"a": {"__ndarray__": True, "data": b"", "dtype": "|O", "shape": [0]}},
            "seq": 1,
        },
    ],
)
def test_what_is_no_message_is_refused(found):
    import msgpack

    with pytest.raises(WireError):
        unpack(msgpack.packb(found))


# LIBERO.


def rotations():
    """Some anywhere, and some of a hand that points down: near half a turn."""
    generator = np.random.default_rng(3)
    for axis in generator.normal(size=(20, 3)):
        yield axis * generator.uniform(0.1, 3.1) / np.linalg.norm(axis)
    for tilt in generator.normal(scale=1e-3, size=(20, 3)):
        yield np.array([np.pi - 1e-3, 0, 0]) + tilt


def raw_observation(turn):
    """What LIBERO's env observes, its controller, and our observation of the same."""
    generator = np.random.default_rng(4)
    mat = axisangle_to_matrix(turn)
    quat = matrix_to_quat(mat @ axisangle_to_matrix(np.array([0, 0, np.pi / 2])))
    raw = {
        "agentview_image": generator.integers(0, 256, (256, 256, 3), np.uint8),
        f"{WRIST}_image": generator.integers(0, 256, (256, 256, 3), np.uint8),
        "robot0_eef_pos": generator.normal(size=3),
        "robot0_eef_quat": -quat,
        "robot0_gripper_qpos": generator.normal(size=2),
    }
    controller = SimpleNamespace(ee_pos=raw["robot0_eef_pos"], ee_ori_mat=mat)
    ours = {
        "pixels/agentview": raw["agentview_image"][::-1, ::-1],
        f"pixels/{WRIST}": raw[f"{WRIST}_image"][::-1, ::-1],
        "state": np.zeros(8, np.float32),
        "robot_state/eef_pos": raw["robot0_eef_pos"],
        "robot_state/eef_quat": raw["robot0_eef_quat"],
        "robot_state/eef_mat": mat.ravel(),
        "robot_state/gripper_qpos": raw["robot0_gripper_qpos"],
    }
    return raw, controller, {name: value[np.newaxis] for name, value in ours.items()}


@pytest.fixture
def benchmark_class(monkeypatch):
    for name, value in (("EGL_PLATFORM", "device"), ("PYOPENGL_PLATFORM", "egl")):
        monkeypatch.setenv(name, value)  # importing it would set them for good
    from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark

    return LIBEROBenchmark


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"send_wrist_image": True},
        {"send_state": True, "send_wrist_image": True},
        {"send_state": True, "quat_no_antipodal": True},
    ],
)
def test_a_libero_server_gets_what_vla_evals_own_benchmark_sends(
    make_batch, benchmark_class, params
):
    model = TinyModel(lambda obs, ctx: np.zeros(7), params=params)
    with Serving(model) as server, VlaEvalPolicy([server.address]) as policy:
        for turn in rotations():
            raw, controller, ours = raw_observation(turn)
            benchmark = benchmark_class(suite="libero_goal", **params)
            benchmark._env = SimpleNamespace(robots=[SimpleNamespace(controller=controller)])
            expected = benchmark.make_obs(raw, {"name": f"do {KEY.task}"})
            assert policy.act(make_batch([KEY], ours)).shape == (1, 1, 7)
            _, _, sent = model.asked[-1]
            assert sent.keys() == expected.keys()
            # Models take the first image for the main one.
            assert list(sent["images"]) == list(expected["images"])
            for name, image in expected["images"].items():
                np.testing.assert_array_equal(sent["images"][name], image)
            assert sent["task_description"] == expected["task_description"]
            for name in {"states", "controller_states"} & set(expected):
                assert sent[name].dtype == expected[name].dtype
                np.testing.assert_allclose(sent[name], expected[name], atol=2e-6)
    assert model.events[0][2] == {
        "name": f"do {KEY.task}",
        "suite": "libero_goal",
        "task_id": 3,
        "episode_idx": 5,
    }


def test_a_turn_of_nothing_is_zero():
    still = np.array([0.0, 0.0, 0.0, 1.0])
    for canonical in (True, False):
        np.testing.assert_array_equal(axis_angle(still, canonical=canonical), np.zeros(3))
    np.testing.assert_allclose(np.abs(quaternion(np.eye(3))), still)


def test_what_the_user_gives_wins_over_what_the_server_wants(make_batch):
    model = TinyModel(lambda obs, ctx: np.zeros(7), params={"send_state": True})
    given = {"send_state": False, "send_wrist_image": True}
    with Serving(model) as server, VlaEvalPolicy([server.address], given) as policy:
        _, _, ours = raw_observation(np.ones(3))
        policy.act(make_batch([KEY], ours))
        _, _, sent = model.asked[-1]
        assert set(sent) == {"images", "task_description"}
        assert list(sent["images"]) == ["agentview", "wrist"]
        assert policy.fingerprint["params"] == given


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (f"pixels/{WRIST}", "add --cameras agentview wrist"),
        ("robot_state/eef_quat", "add --suite-options robot_state=true"),
    ],
)
def test_an_observation_that_lacks_something_is_refused(make_batch, lacking, message):
    params = {"send_state": True, "send_wrist_image": True}
    _, _, ours = raw_observation(np.ones(3))
    del ours[lacking]
    with (
        Serving(TinyModel(lambda obs, ctx: np.zeros(7), params=params)) as server,
        VlaEvalPolicy([server.address]) as policy,
        pytest.raises(PolicyError, match=message) as caught,
    ):
        policy.act(make_batch([KEY], ours))
    assert caught.value.row == 0


# Other suites.


def test_other_suites_send_every_camera_under_its_own_name(make_batch):
    key = EpisodeKey("rlbench", "reach_target", 0)
    frames = {
        f"pixels/{name}": np.full((1, 8, 8, 3), number, np.uint8)
        for number, name in enumerate(("front", "wrist"))
    }
    model = TinyModel(lambda obs, ctx: np.zeros(8))
    with Serving(model) as server, VlaEvalPolicy([server.address]) as policy:
        policy.act(make_batch([key], {**frames, "state": np.ones((1, 3))}))
        _, _, sent = model.asked[-1]
        assert set(sent) == {"images", "task_description"}
        assert {name: int(image[0, 0, 0]) for name, image in sent["images"].items()} == {
            "front": 0,
            "wrist": 1,
        }
    assert model.events[0][2] == {"name": "reach_target", "suite": "rlbench", "episode_idx": 0}


def test_an_observation_that_is_an_array_is_a_state(make_batch):
    model = TinyModel(lambda obs, ctx: obs["state"], params={"send_state": True})
    with Serving(model) as server, VlaEvalPolicy([server.address]) as policy:
        obs = np.arange(6.0).reshape(2, 3)
        np.testing.assert_array_equal(policy.act(make_batch(range(2), obs))[:, 0], obs)


# Envs that a model was not made for.


def checked(params=None, action_spec=None, spec=None, **options):
    spec = spec or EnvSpec("libero", "libero_goal/3", BOTH, (256, 256), {**OPTIONS, **options})
    model = TinyModel(lambda obs, ctx: np.zeros(7), params=params, action_spec=action_spec)
    with Serving(model) as server, VlaEvalPolicy([server.address]) as policy:
        policy.check_spec(spec)


@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({}, {}),
        ({}, {"robot_state": False}),
        ({"send_state": True}, {}),
        ({"absolute_action": True}, {"control": "absolute"}),
        ({"max_steps": 100, "num_steps_wait": 0}, {"max_steps": 100, "settle_steps": 0}),
    ],
)
def test_an_env_that_fits_passes(params, options, caplog):
    checked(params, **options)
    assert not caplog.text


@pytest.mark.parametrize(
    ("params", "options", "fix"),
    [
        ({"absolute_action": True}, {}, "control=absolute"),
        ({"absolute_action": False}, {"control": "absolute"}, "control=relative"),
        ({}, {"control": "absolute"}, "control=relative"),
        ({"send_state": True}, {"robot_state": False}, "robot_state=true"),
        ({}, {"gripper": "oft"}, "gripper=sign"),
        ({}, {"gripper": "as_is"}, "gripper=sign"),
        ({}, {"orientation": "raw"}, "orientation=rot180"),
        ({}, {"resize": 224}, "resize=none"),
        ({"max_steps": 100}, {}, "max_steps=100"),
        ({"num_steps_wait": 0}, {}, "settle_steps=0"),
        (
            {"absolute_action": True, "send_state": True},
            {"gripper": "oft", "robot_state": False},
            "control=absolute gripper=sign robot_state=true",
        ),
    ],
)
def test_an_env_that_does_not_fit_is_refused_with_the_options_to_give(params, options, fix):
    with pytest.raises(PolicyError, match=rf"libero_goal/3 with .*add --suite-options {fix}$"):
        checked(params, **options)


@pytest.mark.parametrize(
    ("cameras", "size", "fix"),
    [
        (("agentview",), (256, 256), "--cameras agentview wrist"),
        ((), (256, 256), "--cameras agentview wrist"),
        (BOTH, (128, 128), "--image-size 256 256"),
    ],
)
def test_missing_cameras_and_other_sizes_are_refused(cameras, size, fix):
    spec = EnvSpec("libero", "libero_goal/3", cameras, size, OPTIONS)
    with pytest.raises(PolicyError, match=f"add {fix}$"):
        checked({"send_wrist_image": True}, spec=spec)


def test_a_spec_of_absolute_positions_asks_for_absolute_control():
    """But a parameter counts before it: X-VLA's server says delta_xyz and sends poses."""
    with pytest.raises(PolicyError, match="control=absolute"):
        checked(action_spec={"position": "absolute_xyz"})
    poses = {"position": "delta_xyz"}
    checked({"absolute_action": True}, poses, control="absolute")
    assert not Wishes(
        "", {"absolute_action": False}, {"position": {"format": "absolute_xyz"}}
    ).absolute


def test_actions_of_another_format_and_wishes_that_are_not_granted_are_warned_of(caplog):
    checked({"env_seed": 0, "success_mode": "any"}, {"gripper": "continuous_01", "rotation": "raw"})
    assert "gripper is continuous_01, and LIBERO takes binary_close_positive" in caplog.text
    assert "rotation" not in caplog.text
    assert "asks for success_mode, which libero does not have" in caplog.text
    assert "asks for the env seed 0, which protocol vla-eval does not use" in caplog.text
    caplog.clear()
    checked({"env_seed": 0}, protocol="oft")  # whose gripper is that of LIBERO here
    checked({"seed": 7})
    assert not caplog.text


def test_a_warning_is_not_repeated_for_every_task(caplog):
    model = TinyModel(lambda obs, ctx: np.zeros(7), params={"success_mode": "any"})
    with Serving(model) as server, VlaEvalPolicy([server.address]) as policy:
        for number in range(3):
            policy.check_spec(EnvSpec("libero", f"libero_goal/{number}", BOTH, (256, 256), OPTIONS))
    assert caplog.text.count("success_mode") == 1


def test_other_suites_are_not_checked_for_libero(caplog):
    spec = EnvSpec("metaworld", "reach-v3", ("corner2",), (64, 64))
    checked({"send_state": True}, spec=spec)
    assert not caplog.text
    checked({"absolute_action": True}, spec=spec)
    assert "asks for absolute_action, which metaworld does not have" in caplog.text


def test_the_task_of_any_suite_has_a_name():
    assert task_info(EpisodeKey("metaworld", "reach-v3", 2), "reach")["name"] == "reach-v3"
