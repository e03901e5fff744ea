"""LIBERO's frames: its own pixels, drawn only when somebody looks."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from libero_play import DRAWER, KNOB, STOVE, differences, make, play
from libero_reference import ACTIONS, CAMERAS, Plan
from PIL import Image

from polyarm.suites.libero.env import _resize_with_padding

pytestmark = [pytest.mark.simulator, pytest.mark.frames]

LARGE = Plan("oft", "libero_object/2", (0,), look="first", image_size=(500, 700))


def libero_env(plan: Plan, **options: Any) -> Any:
    """An env by the rules of a plan, with both cameras."""
    given = {"image_size": plan.image_size, "gripper": "as_is", "orientation": "raw", **options}
    return make(plan.task, *CAMERAS, protocol="oft", **given)


@pytest.mark.parametrize(
    ("plan", "reference"),
    [(STOVE, STOVE), (DRAWER, DRAWER)],
    indirect=["reference"],
    ids=["stove", "drawer"],
)
def test_frames_are_liberos_own(plan: Plan, reference: Any) -> None:
    with closing(libero_env(plan)) as env:
        play(env, 3, ACTIONS[50:53], plan.forced, look="never")
        seen = play(env, 1, ACTIONS[:4], plan.forced)
    assert differences(seen, reference, 1) == {}
    frames = reference["1/frames/agentview"].astype(int)
    assert (frames.std(axis=(1, 2, 3)) > 10).all()  # pictures, not blanks
    if plan is STOVE:
        assert np.abs(frames[3] - frames[2]).max() > 100  # the burner


@pytest.mark.parametrize("reference", [STOVE], indirect=True, ids=[""])
def test_looking_on_demand_leaves_no_trace(reference: Any) -> None:
    when, joint, (position,) = KNOB
    with closing(libero_env(STOVE)) as env:
        env.frames_enabled = False
        obs, _ = env.reset(options={"episode": 1})
        for step in range(5):
            if step:
                if step - 1 == when:
                    env._sim.problem.sim.data.set_joint_qpos(joint, position)
                obs, *_ = env.step(ACTIONS[step - 1])
            assert set(obs) == {"state"}
            np.testing.assert_array_equal(env.sim_state(), reference["1/states"][step])
            if step in (2, 4):
                looked = [env.terminal_frame(), env.terminal_frame()]
                for camera in CAMERAS:
                    expected = reference[f"1/frames/{camera}"][step]
                    for frames in looked:
                        np.testing.assert_array_equal(frames[f"pixels/{camera}"], expected)
                shown = reference["1/frames/agentview"][step][::-1]
                np.testing.assert_array_equal(env.render(), shown)
        assert env.frame_seconds > 0


@pytest.mark.parametrize("switch", ["soft_reset", "share_gl"])
@pytest.mark.parametrize("reference", [DRAWER], indirect=True, ids=[""])
def test_without_a_short_cut_the_pixels_are_the_same(switch: str, reference: Any) -> None:
    with (
        closing(libero_env(DRAWER, **{switch: False})) as env,
        closing(libero_env(DRAWER)) as neighbour,
    ):
        neighbour.reset(options={"episode": 0})
        env.reset(options={"episode": 0})
        seen = play(env, 1, ACTIONS[:1])
        neighbour.close()
        again = play(env, 1, ACTIONS[:1], look="first")
    for camera in CAMERAS:
        expected = reference[f"1/frames/{camera}"]
        np.testing.assert_array_equal(seen[f"frames/{camera}"], expected[:2])
        np.testing.assert_array_equal(again[f"frames/{camera}"], expected[:1])


@pytest.mark.parametrize(("orientation", "resize"), [("upright", None), ("rot180", 224)])
@pytest.mark.parametrize("reference", [DRAWER], indirect=True, ids=[""])
def test_frames_are_turned_and_resized_as_asked(
    orientation: str, resize: int | None, reference: Any
) -> None:
    turns = {"upright": np.s_[::-1, :], "rot180": np.s_[::-1, ::-1]}
    with closing(libero_env(DRAWER, orientation=orientation, resize=resize)) as env:
        obs, _ = env.reset(options={"episode": 1})
        rendered = env.render()
        assert obs in env.observation_space
    for camera in CAMERAS:
        raw = reference[f"1/frames/{camera}"][0]
        expected = raw[turns[orientation]]
        if resize:
            expected = pillow(expected, resize)
        np.testing.assert_array_equal(obs[f"pixels/{camera}"], expected)
    rows, columns = env.upright
    np.testing.assert_array_equal(obs["pixels/agentview"][::rows, ::columns], rendered)
    if not resize:
        upright = reference["1/frames/agentview"][0][::-1]
        np.testing.assert_array_equal(rendered, upright)


def pillow(frame: Any, side: int) -> Any:
    image = Image.fromarray(np.ascontiguousarray(frame))
    return np.asarray(image.resize((side, side), resample=Image.Resampling.BILINEAR))


def resize_with_pad(frame: Any, side: int) -> Any:
    """As in openpi-client's ``image_tools``."""
    image = Image.fromarray(frame)
    width, height = image.size
    if (width, height) == (side, side):
        return np.array(image)
    ratio = max(width / side, height / side)
    resized_height, resized_width = int(height / ratio), int(width / ratio)
    resized = image.resize((resized_width, resized_height), resample=Image.BILINEAR)
    zero = Image.new(resized.mode, (side, side), 0)
    pad_height = max(0, int((side - resized_height) / 2))
    pad_width = max(0, int((side - resized_width) / 2))
    zero.paste(resized, (pad_width, pad_height))
    return np.array(zero)


@pytest.mark.parametrize("size", [(256, 256), (224, 224), (100, 160), (360, 200), (331, 479)])
def test_frames_that_are_not_square_are_padded_as_openpi_does(size: tuple[int, int]) -> None:
    frame = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    expected = resize_with_pad(frame, 224)
    np.testing.assert_array_equal(_resize_with_padding(frame, 224), expected)


@pytest.mark.parametrize("reference", [LARGE], indirect=True, ids=[""])
def test_frames_may_be_larger_than_mujocos_buffer(reference: Any) -> None:
    with (
        closing(libero_env(LARGE, image_size=(64, 64))) as small,
        closing(libero_env(LARGE)) as large,
    ):
        before, _ = small.reset(options={"episode": 0})
        obs, _ = large.reset(options={"episode": 0})
        beside = small.terminal_frame()
        small.close()
        again = large.terminal_frame()
    for camera in CAMERAS:
        key, expected = f"pixels/{camera}", reference[f"0/frames/{camera}"][0]
        np.testing.assert_array_equal(obs[key], expected)
        np.testing.assert_array_equal(beside[key], before[key])
        np.testing.assert_array_equal(again[key], expected)


def test_observations_are_written_into_bound_buffers() -> None:
    with closing(make("libero_object/2", "wrist", image_size=(64, 64), robot_state=True)) as env:
        space = env.observation_space
        plain, _ = env.reset(options={"episode": 6})
        buffers = {key: np.zeros(space[key].shape, space[key].dtype) for key in space}
        env.bind(buffers)
        obs, _ = env.reset(options={"episode": 6})
    for key in space:
        assert obs[key] is buffers[key], key
        np.testing.assert_array_equal(obs[key], plain[key])
