"""Each protocol against the code base it is named for, whose rules `libero_reference` spells out.

The task is one whose fixtures depend on the resets before an episode and on those since the env
was made. What a policy is shown is computed here as the code bases compute it.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from libero_play import SUITE, differences, play
from libero_reference import ACTIONS, CAMERAS, Plan
from PIL import Image

from polyarm.suites.libero.protocols import PROTOCOLS
from polyarm.vector.make import specify

pytestmark = [pytest.mark.simulator, pytest.mark.frames]

TASK = "libero_spatial/4"
EPISODES = (0, 1, 7)
STEPS = 10


def reference_plan(rules: str, seeds: tuple[int, ...], side: int = 256) -> Plan:
    return Plan(rules, TASK, EPISODES, STEPS, seeds=seeds, look="first", image_size=(side, side))


def robosuite_axis_angle(quat: Any) -> Any:
    """openpi's, OpenVLA-OFT's and SimpleVLA-RL's ``quat2axisangle``."""
    quat = quat.copy()
    if quat[3] > 1.0:
        quat[3] = 1.0
    elif quat[3] < -1.0:
        quat[3] = -1.0
    den = np.sqrt(1.0 - quat[3] * quat[3])
    if math.isclose(den, 0.0):
        return np.zeros(3)
    return (quat[:3] * 2.0 * math.acos(quat[3])) / den


def vla_eval_axis_angle(quat: Any) -> Any:
    """vla-eval's ``quat_to_axisangle``."""
    q = -quat if quat[3] < 0 else quat.copy()
    w = float(np.clip(q[3], -1.0, 1.0))
    sin_half = np.sqrt(1.0 - w * w)
    if sin_half < 1e-8:
        return np.zeros(3, dtype=np.float32)
    angle = 2.0 * np.arccos(w)
    return (q[:3] / sin_half * angle).astype(np.float32)


def lerobot_axis_angle(quat: Any) -> Any:
    """LeRobot's ``LiberoProcessorStep._quat2axisangle``."""
    import torch

    quat = torch.from_numpy(quat)[None].to(dtype=torch.float32)
    w = quat[:, 3].clamp(-1.0, 1.0)
    den = torch.sqrt(torch.clamp(1.0 - w * w, min=0.0))
    result = torch.zeros((1, 3))
    mask = den > 1e-10
    if mask.any():
        angle = 2.0 * torch.acos(w[mask])
        axis = quat[mask, :3] / den[mask].unsqueeze(1)
        result[mask] = axis * angle.unsqueeze(1)
    return result[0].numpy()


def as_rendered(frame: Any) -> Any:
    return frame


def rotated(frame: Any) -> Any:
    return frame[::-1, ::-1]


def openpi_image(frame: Any) -> Any:
    image = Image.fromarray(np.ascontiguousarray(frame[::-1, ::-1]))
    return np.asarray(image.resize((224, 224), resample=Image.BILINEAR))


def as_it_is(gripper: Any) -> Any:
    return gripper


def open_is_one(gripper: Any) -> Any:
    """OpenVLA's language, which becomes LIBERO's by ``-sign(2 * g - 1)``."""
    return (1 - gripper) / 2


@dataclass(frozen=True)
class Expected:
    """What a code base does.

    Attributes:
        plan: How it runs LIBERO.
        horizon: Policy steps in libero_spatial.
        image: What it makes of a frame.
        axis_angle: What it makes of the hand's orientation; None if its env does not.
        spoken: What its policies say for a gripper command of LIBERO.
        keys: What else its observations hold, by our name.
    """

    plan: Plan
    horizon: int
    image: Any
    axis_angle: Any
    spoken: Any = as_it_is
    keys: tuple[str, ...] = ()


QUEST_SEEDS = tuple(PROTOCOLS["ript-quest"].seeding(TASK, episode)[0] for episode in EPISODES)
LEROBOT_KEYS = (
    "eef_pos",
    "eef_quat",
    "eef_mat",
    "gripper_qpos",
    "gripper_qvel",
    "joint_pos",
    "joint_vel",
)
EXPECTED = {
    "openpi": Expected(reference_plan("oft", (7,)), 220, openpi_image, robosuite_axis_angle),
    "oft": Expected(reference_plan("oft", (0,)), 220, rotated, robosuite_axis_angle, open_is_one),
    "simplevla": Expected(
        reference_plan("simplevla", (0,)), 512, rotated, robosuite_axis_angle, open_is_one
    ),
    "ript-oft": Expected(
        reference_plan("oft", (0,)), 220, rotated, robosuite_axis_angle, open_is_one
    ),
    "ript-quest": Expected(
        reference_plan("ript_quest", QUEST_SEEDS, 128),
        600,
        as_rendered,
        None,
        keys=("joint_pos", "eef_pos", "gripper_qpos"),
    ),
    "lerobot": Expected(
        reference_plan("lerobot", (1000,), 360),
        280,
        as_rendered,
        None,  # of its processor: see below
        keys=LEROBOT_KEYS,
    ),
    "vla-eval": Expected(reference_plan("oft", (7,)), 220, rotated, vla_eval_axis_angle),
}


@pytest.mark.parametrize(
    ("protocol", "reference"),
    [(protocol, expected.plan) for protocol, expected in EXPECTED.items()],
    indirect=["reference"],
    ids=list(EXPECTED),
)
def test_a_protocol_does_what_its_code_base_does(protocol: str, reference: Any) -> None:
    expected = EXPECTED[protocol]
    actions = ACTIONS[:STEPS].copy()
    actions[:, 6] = expected.spoken(actions[:, 6])
    with closing(protocol_env(protocol)) as env:
        assert env.max_steps == expected.horizon
        for episode in (7, 0, 1):
            seen = play(env, episode, actions, look="first")
            for camera in CAMERAS:
                frame = reference.pop(f"{episode}/frames/{camera}")[0]
                shown = seen[f"frames/{camera}"][0]
                np.testing.assert_array_equal(shown, expected.image(frame), err_msg=camera)
            assert differences(seen, reference, episode) == {}
            for key in expected.keys:
                value = reference[f"{episode}/{key}"].reshape(STEPS + 1, -1)
                np.testing.assert_array_equal(seen[f"robot_state/{key}"], value, err_msg=key)
            if expected.axis_angle is not None:
                state = shown_state(reference, episode, expected.axis_angle)
                np.testing.assert_array_equal(seen["state"], state)


@pytest.mark.parametrize("reference", [EXPECTED["lerobot"].plan], indirect=True, ids=[""])
def test_lerobots_state_is_that_of_its_processor_but_for_its_rounding(reference: Any) -> None:
    env = protocol_env("lerobot")
    for episode in (0, 1):
        seen = play(env, episode, ACTIONS[:STEPS], look="never")
        state = shown_state(reference, episode, lerobot_axis_angle)
        np.testing.assert_allclose(seen["state"], state, rtol=3e-7, atol=1e-9)


def protocol_env(protocol: str) -> Any:
    return SUITE.make(specify(f"libero/{TASK}", CAMERAS, None, {"protocol": protocol}))


def shown_state(reference: Any, episode: int, axis_angle: Any) -> Any:
    """The hand's position and orientation and the fingers, float32 (n, 8)."""
    return np.concatenate(
        [
            reference[f"{episode}/eef_pos"],
            [axis_angle(quat) for quat in reference[f"{episode}/eef_quat"]],
            reference[f"{episode}/gripper_qpos"],
        ],
        axis=1,
    ).astype(np.float32)
