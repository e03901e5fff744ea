"""Videos are decoded again with PyAV: how many frames, how fast, how large, showing what."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from polyarm.contracts import STREAM, EpisodeKey, ObservedEpisode, Observer
from polyarm.errors import InvalidObservation
from polyarm.recording.video import VideoRecorder, stale_parts, video_recorder

SIZE = (48, 64)
COLOUR_TOLERANCE = 10


def encoders() -> list[str]:
    """Threads that encode; libraries that other tests use may keep threads of their own."""
    return [each.name for each in threading.enumerate() if each.name.startswith("encoder of ")]


@pytest.fixture(autouse=True)
def no_threads_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "videos"


@dataclass
class Video:
    frames: list[np.ndarray]
    rate: Fraction
    times: list[float]


def decoded(path: Path) -> Video:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        frames = list(container.decode(stream))
        assert stream.frames == len(frames)
        pixels = [frame.to_ndarray(format="rgb24") for frame in frames]
        return Video(pixels, stream.average_rate, [frame.time for frame in frames])


def colour(step: int) -> tuple[int, int, int]:
    """Far apart for neighbouring steps."""
    return (40 + 50 * (step % 4), 220 - 60 * (step // 4 % 4), 60 + 40 * (step // 16 % 4))


def flat(step: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.full((*size, 3), colour(step), np.uint8)


def play(
    recorder: VideoRecorder,
    steps: int,
    key: EpisodeKey | None = None,
    *,
    cameras: tuple[str, ...] = ("corner",),
    success: bool = False,
    always_frames: bool = False,
    size: tuple[int, int] = SIZE,
) -> list[str]:
    """Like a worker: frames where they are wanted and at the last step, then overwritten."""
    key = key or EpisodeKey("metaworld", "reach-v3", 12)
    recorder.begin(ObservedEpisode(key, "reach it", 500))
    wants_last = recorder.wants_frames(0)
    for step in range(steps + 1):
        obs: dict[str, Any] = {"state": np.zeros(4, np.float32)}
        last = wants_last and step == steps
        if recorder.wants_frames(step) or last or always_frames:
            obs |= {
                f"pixels/{camera}": flat(step + shift, size) for shift, camera in enumerate(cameras)
            }
        recorder.observe(step, obs, 0.0, success=success and step == steps)
        for array in obs.values():
            array[...] = 0
    return list(recorder.end(success=success))


def recorded(folder: Path, **options: Any) -> VideoRecorder:
    return video_recorder(**{"folder": str(folder), "cameras": ("corner",), **options})


def test_a_recorder_is_an_observer(folder: Path):
    observer: Observer = recorded(folder)
    observer.close()


def test_a_video_shows_every_step_from_the_reset_to_the_last(folder: Path):
    files = play(recorded(folder, caption=False), steps=40)
    assert files == ["videos/metaworld/reach-v3/12.mp4"]
    video = decoded(folder.parent / files[0])
    assert len(video.frames) == 41
    assert video.rate == 20
    assert video.times == pytest.approx([step / 20 for step in range(41)])
    for step, frame in enumerate(video.frames):
        assert frame.shape == (*SIZE, 3)
        assert frame.mean((0, 1)) == pytest.approx(colour(step), abs=COLOUR_TOLERANCE)


@pytest.mark.parametrize(
    ("steps", "stride", "shown"),
    [
        (9, 3, [0, 3, 6, 9]),
        (10, 3, [0, 3, 6, 9, 10]),
        (11, 3, [0, 3, 6, 9, 11]),
        (2, 5, [0, 2]),
        (1, 1, [0, 1]),
        (0, 1, [0]),
    ],
)
@pytest.mark.parametrize("always_frames", [False, True])
def test_the_stride_counts_from_the_reset_and_the_last_step_is_always_shown(
    folder: Path, steps: int, stride: int, shown: list[int], always_frames: bool
):
    recorder = recorded(folder, stride=stride, caption=False)
    (file,) = play(recorder, steps, always_frames=always_frames)
    video = decoded(folder.parent / file)
    assert len(video.frames) == len(shown) == -(-steps // stride) + 1
    for step, frame in zip(shown, video.frames, strict=True):
        assert frame.mean((0, 1)) == pytest.approx(colour(step), abs=COLOUR_TOLERANCE)


def test_frames_are_wanted_on_the_stride_of_recorded_episodes_only(folder: Path):
    recorder = recorded(folder, stride=4, record="first:1")
    assert not recorder.wants_frames(0)
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
    assert [step for step in range(10) if recorder.wants_frames(step)] == [0, 4, 8]
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 1), "", 10))
    assert not any(recorder.wants_frames(step) for step in range(10))
    recorder.close()


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({"fps": 12.5}, Fraction(25, 2)),
        ({"fps": 29.97}, Fraction(2997, 100)),
        ({"fps": 30000 / 1001}, Fraction(30000, 1001)),
        ({"fps": 0.5}, Fraction(1, 2)),
        ({"env_fps": 80.0}, Fraction(20)),
        ({"env_fps": 80.0, "realtime": True}, Fraction(80)),
        ({"env_fps": 80.0, "realtime": True, "stride": 3}, Fraction(80, 3)),
        ({"env_fps": 100 / 3, "realtime": True, "stride": 2}, Fraction(50, 3)),
        ({"env_fps": 0.0, "realtime": True, "fps": 10.0}, Fraction(10)),
    ],
)
def test_the_rate_of_the_file_is_exact(folder: Path, options: dict[str, Any], rate: Fraction):
    (file,) = play(recorded(folder, **options), steps=6)
    assert decoded(folder.parent / file).rate == rate


@pytest.mark.parametrize("upright", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
def test_a_video_is_upright_whatever_the_policy_sees(folder: Path, upright: tuple[int, int]):
    scene = np.zeros((*SIZE, 3), np.uint8)
    scene[: SIZE[0] // 2, : SIZE[1] // 2] = (250, 20, 20)  # what a person sees at the upper left
    rows, columns = upright
    recorder = recorded(folder, caption=False)
    key = EpisodeKey("libero", "libero_goal/0", 0)
    recorder.begin(ObservedEpisode(key, "put it there", 300, upright=upright))
    recorder.observe(0, {"pixels/corner": scene[::rows, ::columns]}, 0.0, success=False)
    (file,) = recorder.end(success=False)
    shown = decoded(folder.parent / file).frames[0].astype(int)
    assert np.abs(shown - scene).mean() < COLOUR_TOLERANCE


def test_cameras_stand_side_by_side_in_their_order(folder: Path):
    cameras = ("corner", "wrist", "top")
    recorder = recorded(folder, cameras=cameras, caption=False)
    (file,) = play(recorder, 3, cameras=cameras)
    for step, frame in enumerate(decoded(folder.parent / file).frames):
        assert frame.shape == (SIZE[0], 3 * SIZE[1], 3)
        for shift in range(3):
            part = frame[:, shift * SIZE[1] + 4 : (shift + 1) * SIZE[1] - 4]
            assert part.mean((0, 1)) == pytest.approx(colour(step + shift), abs=COLOUR_TOLERANCE)


def test_separate_cameras_have_files_of_their_own(folder: Path):
    cameras = ("corner", "gripper/eye")
    recorder = recorded(folder, cameras=cameras, layout="separate", caption=False)
    first, second = play(recorder, 3, cameras=cameras)
    assert first == "videos/metaworld/reach-v3/12_corner.mp4"
    assert second.startswith("videos/metaworld/reach-v3/12_gripper_eye~")
    for shift, file in enumerate([first, second]):
        for step, frame in enumerate(decoded(folder.parent / file).frames):
            assert frame.shape == (*SIZE, 3)
            assert frame.mean((0, 1)) == pytest.approx(colour(step + shift), abs=COLOUR_TOLERANCE)


@pytest.mark.parametrize("size", [(63, 85), (64, 85), (63, 64), (1, 1)])
def test_odd_sizes_are_made_even_by_repeating_the_last_pixels(folder: Path, size: tuple[int, int]):
    (file,) = play(recorded(folder, caption=False), 2, size=size)
    frames = decoded(folder.parent / file).frames
    assert frames[0].shape == (size[0] + size[0] % 2, size[1] + size[1] % 2, 3)
    for step, frame in enumerate(frames):
        spread = np.abs(frame - np.array(colour(step), float))
        assert spread.max() < 2 * COLOUR_TOLERANCE


def test_cameras_of_different_heights_share_a_file(folder: Path):
    recorder = recorded(folder, cameras=("low", "high"), caption=False)
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
    obs = {"pixels/low": flat(1, (32, 32)), "pixels/high": flat(2, (64, 48))}
    recorder.observe(0, obs, 0.0, success=False)
    (file,) = recorder.end(success=False)
    (frame,) = decoded(folder.parent / file).frames
    assert frame.shape == (64, 80, 3)
    assert frame[36:, :28].mean() < COLOUR_TOLERANCE
    assert frame[:, 36:].mean((0, 1)) == pytest.approx(colour(2), abs=COLOUR_TOLERANCE)


def test_the_file_says_which_yuv_it_holds(folder: Path):
    recorder = recorded(folder, caption=False)
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
    red = np.full((32, 32, 3), (255, 0, 0), np.uint8)
    recorder.observe(0, {"pixels/corner": red}, 0.0, success=False)
    (file,) = recorder.end(success=False)
    with av.open(str(folder.parent / file)) as container:
        (frame,) = container.decode(video=0)
        assert (int(frame.colorspace), int(frame.color_range)) == (5, 1)
        luma = frame.to_ndarray()[:32]
    assert luma.mean() == pytest.approx(81, abs=2)  # of red in BT.601; 63 in BT.709


def test_the_index_comes_first_so_that_a_browser_can_start_playing(folder: Path):
    (file,) = play(recorded(folder), 30)
    content = (folder.parent / file).read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat")


@pytest.mark.parametrize("size", [(84, 84), (480, 480)])
def test_a_caption_stands_below_the_picture_and_hides_nothing(folder: Path, size: tuple[int, int]):
    (file,) = play(recorded(folder), 3, size=size)
    for step, frame in enumerate(decoded(folder.parent / file).frames):
        assert frame.shape[0] > size[0]
        assert frame.shape[1] == size[1]
        picture, band = frame[: size[0] - 4], frame[size[0] :]
        assert picture.mean((0, 1)) == pytest.approx(colour(step), abs=COLOUR_TOLERANCE)
        assert (band > 180).all(2).any()  # white letters


def test_captions_follow_the_step_and_the_last_frame_bears_the_outcome(folder: Path):
    bands = {}
    for success in (False, True):
        (file,) = play(recorded(folder), 3, success=success)
        bands[success] = [frame[SIZE[0] :] for frame in decoded(folder.parent / file).frames]
    for before, after in zip(bands[True][:-1], bands[True][1:], strict=True):
        assert np.abs(before.astype(int) - after).max() > 60
    red, green = (bands[success][-1].mean((0, 1)) for success in (False, True))
    assert red[0] > green[0] + 60
    assert green[1] > red[1] + 30
    for early in bands[False][:-1]:
        assert early.mean((0, 1)) == pytest.approx([40, 40, 40], abs=30)


def test_frames_handed_in_are_never_changed(folder: Path):
    recorder = recorded(folder)
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
    frames = [flat(step) for step in range(5)]
    for frame in frames:
        frame.flags.writeable = False
    for step, frame in enumerate(frames):
        recorder.observe(step, {"pixels/corner": frame}, 0.0, success=False)
    recorder.end(success=True)
    for step, frame in enumerate(frames):
        assert (frame == flat(step)).all()


def test_only_failures_are_kept_when_failures_are_asked_for(folder: Path):
    recorder = recorded(folder, record="failures")
    assert play(recorder, 3, EpisodeKey("s", "t", 0), success=True) == []
    assert play(recorder, 3, EpisodeKey("s", "t", 1)) == ["videos/s/t/1.mp4"]
    assert files_under(folder) == ["s/t/1.mp4"]


def test_a_failure_kept_by_an_earlier_attempt_goes_when_the_episode_succeeds(folder: Path):
    recorder = recorded(folder, record="failures")
    play(recorder, 3)
    play(recorder, 3, success=True)
    assert files_under(folder) == []


def test_the_first_episodes_of_every_task_and_seed_are_recorded_once(folder: Path):
    recorder = recorded(folder, record="first:2")
    for task in ("a", "b"):
        for index in (0, 1, 2, STREAM, STREAM + 1, STREAM + 2):
            for repeat in (0, 1):
                play(recorder, 1, EpisodeKey("s", task, index, repeat))
    names = [f"{index}.mp4" for index in (0, 1, STREAM, STREAM + 1)]
    assert files_under(folder) == [f"s/{task}/{name}" for task in "ab" for name in names]


def test_repeats_have_files_of_their_own(folder: Path):
    recorder = recorded(folder)
    files = [play(recorder, 1, EpisodeKey("s", "t", 7, repeat)) for repeat in range(3)]
    assert files == [["videos/s/t/7.mp4"], ["videos/s/t/7.1.mp4"], ["videos/s/t/7.2.mp4"]]


def test_tasks_with_confusable_names_have_files_of_their_own(folder: Path):
    recorder = recorded(folder, caption=False)
    tasks = ["reach v3", "reach/v3", "reach_v3", "../s/reach_v3", ".reach_v3", "reach_v3" * 50]
    for steps, task in enumerate(tasks):
        play(recorder, steps, EpisodeKey("s", task, 0))
    assert len(files_under(folder)) == len(tasks)
    counts = [len(decoded(folder / file).frames) for file in files_under(folder)]
    assert sorted(counts) == [1, 2, 3, 4, 5, 6]


def test_nothing_is_recorded_when_none_is_asked_for(folder: Path):
    recorder = recorded(folder, record="none", cameras=())
    assert play(recorder, 3) == []
    assert not folder.exists()


def test_a_missing_frame_is_named(folder: Path):
    recorder = recorded(folder)
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
    with pytest.raises(InvalidObservation, match=r"s/t#0 .* step 0 .* corner.*pixels/top"):
        recorder.observe(0, {"pixels/top": flat(0)}, 0.0, success=False)


@pytest.mark.parametrize(
    "frame", [np.zeros((8, 8, 3), np.float32), np.zeros((8, 8), np.uint8), flat(0, (10, 10))]
)
def test_a_frame_that_is_no_rgb_image_of_the_same_size_is_refused(folder: Path, frame: np.ndarray):
    recorder = recorded(folder)
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
    for step in range(3):
        recorder.observe(step, {"pixels/corner": flat(0, (8, 8))}, 0.0, success=False)
    with pytest.raises(InvalidObservation, match=r"\(8, 8|\(10, 10"):
        recorder.observe(3, {"pixels/corner": frame}, 0.0, success=False)
    assert files_under(folder) == []


def test_an_episode_that_never_ends_leaves_nothing(folder: Path):
    recorder = recorded(folder)
    for leave in (lambda: play(recorder, 2, EpisodeKey("s", "next", 0)), recorder.close):
        recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
        for step in range(60):
            recorder.observe(step, {"pixels/corner": flat(step)}, 0.0, success=False)
        assert stale_parts(folder) or encoders()
        leave()
        assert files_under(folder) == ["s/next/0.mp4"]
    assert encoders() == []


def test_an_episode_without_any_observation_makes_no_video(folder: Path):
    recorder = recorded(folder)
    recorder.begin(ObservedEpisode(EpisodeKey("s", "t", 0), "", 10))
    assert list(recorder.end(success=False)) == []
    assert list(recorder.end(success=False)) == []


def test_parts_that_a_killed_run_left_are_found_and_overwritten(folder: Path):
    part = folder / "metaworld" / "reach-v3" / "12.mp4.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1_000_000)
    assert stale_parts(folder) == [part]
    (file,) = play(recorded(folder), 3)
    assert len(decoded(folder.parent / file).frames) == 4
    assert stale_parts(folder) == []
    assert stale_parts(folder / "nowhere") == []


def test_a_recorder_made_before_a_fork_records_in_the_child(folder: Path):
    recorder = recorded(folder, caption=False)
    assert encoders() == []
    child = os.fork()
    if child == 0:
        status = 1
        try:
            play(recorder, 10)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(decoded(folder / "metaworld" / "reach-v3" / "12.mp4").frames) == 11


def test_a_folder_given_relative_to_where_the_recorder_was_made_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    recorder = recorded(Path("videos"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (file,) = play(recorder, 1)
    assert (tmp_path / file).exists()


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
