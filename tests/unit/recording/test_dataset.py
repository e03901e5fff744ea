"""What a worker stages of an episode: every step that was acted on, and nothing half-done."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyarm.contracts import EpisodeKey, ObservedEpisode
from polyarm.errors import InvalidObservation, MissingExtra, StorageError
from polyarm.recording.dataset import (
    DatasetOptions,
    dataset_recorder,
    require_dataset_extra,
    staged_files,
)
from polyarm.recording.dataset_columns import observation_columns
from polyarm.recording.dataset_stats import QUANTILES, Histogram, column_stats
from polyarm.recording.filenames import stale_parts
from polyarm.recording.trajectory import load_trajectory

KEY = EpisodeKey("metaworld", "reach-v3", 12)
CAMERAS = {"front": "observation.images.front", "wrist": "observation.images.wrist"}
SIZE = (32, 48)


@pytest.fixture(autouse=True)
def no_threads_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def image(camera: str, step: int) -> np.ndarray:
    """Brighter to the right and downwards, another colour at each step."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    tone = np.stack([rows * 4, columns * 4, np.full(SIZE, 60 * step % 256)], -1)
    return (tone + (15 if camera == "wrist" else 0)).clip(0, 255).astype(np.uint8)


def observation(step: int, cameras=CAMERAS) -> dict:
    frames = {f"pixels/{camera}": image(camera, step) for camera in cameras}
    return {"state": np.arange(6, dtype=np.float64) + step, **frames}


def recorder_in(folder: Path, **options):
    return dataset_recorder(**{"folder": str(folder), "fps": 20.0, "cameras": CAMERAS, **options})


def play(recorder, steps: int, *, key=KEY, upright=(1, 1), first_success=2) -> list[str]:
    """Like a worker: observations that are overwritten after each call."""
    recorder.begin(ObservedEpisode(key, "", 500, upright=upright))
    for step in range(steps + 1):
        assert recorder.wants_frames(step)
        obs = observation(step)
        recorder.observe(step, obs, 1.0, success=step >= first_success)
        for array in obs.values():
            array[:] = 0
    return list(recorder.end(success=True))


def staged(folder: Path, key=KEY, cameras=CAMERAS):
    options = DatasetOptions(folder=str(folder), fps=20.0, cameras=cameras)
    return staged_files(options, "", key)


def decoded(path: Path) -> tuple[list[np.ndarray], list[float]]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        # Some readers find a frame by its time and the mean rate alone.
        assert container.streams.video[0].average_rate == 20
        return [frame.to_ndarray(format="rgb24") for frame in frames], [f.time for f in frames]


def test_every_observation_but_the_last_is_kept_with_what_followed_it(tmp_path):
    recorder = recorder_in(tmp_path, state_size=4)
    assert play(recorder, 5) == []
    files = staged(tmp_path)
    observed = load_trajectory(files.observed)
    state = observed["columns"]["observation.state"]
    assert state.dtype == np.float32
    np.testing.assert_array_equal(state, np.arange(4) + np.arange(5)[:, None])
    assert observed["columns"]["extra.state"].shape == (5, 6)
    assert observed["columns"]["next.success"].tolist() == [False, True, True, True, True]
    for camera, feature in CAMERAS.items():
        frames, times = decoded(files.videos[feature])
        assert times == [step / 20 for step in range(5)]
        for step, frame in enumerate(frames):
            assert np.abs(frame.astype(int) - image(camera, step)).mean() < 4
        pixels = np.stack([image(camera, step) for step in range(5)])
        counts = observed["histograms"][feature]
        for channel in range(3):
            expected = np.bincount(pixels[..., channel].ravel(), minlength=256)
            np.testing.assert_array_equal(counts[channel], expected)
        assert observed["shapes"][feature].tolist() == [*SIZE, 3]


@pytest.mark.parametrize("upright", [(1, 1), (-1, 1), (1, -1)])
def test_mirrored_frames_are_the_same_however_they_are_delivered(tmp_path, upright):
    play(recorder_in(tmp_path, mirrored=True), 1, upright=upright)
    (frame,), _ = decoded(staged(tmp_path).videos[CAMERAS["front"]])
    person_sees = image("front", 0)[:: upright[0], :: upright[1]]
    assert np.abs(frame.astype(int) - person_sees[:, ::-1]).mean() < 4


def test_an_episode_that_is_cut_short_leaves_nothing_and_its_rerun_everything(tmp_path):
    recorder = recorder_in(tmp_path)
    recorder.begin(ObservedEpisode(KEY, "", 500))
    for step in range(4):
        recorder.observe(step, observation(step), 0.0, success=False)
    recorder.begin(ObservedEpisode(KEY, "", 500, attempt=2))
    assert not staged(tmp_path).observed.exists()
    recorder.observe(0, observation(0), 0.0, success=False)
    recorder.close()
    assert stale_parts(tmp_path) == []
    play(recorder, 3)
    play(recorder, 6)
    assert len(load_trajectory(staged(tmp_path).observed)["columns"]["next.success"]) == 6
    assert len(decoded(staged(tmp_path).videos[CAMERAS["wrist"]])[0]) == 6
    assert stale_parts(tmp_path) == []


def test_frames_are_not_asked_for_without_cameras(tmp_path):
    recorder = recorder_in(tmp_path, cameras={})
    recorder.begin(ObservedEpisode(KEY, "", 500))
    assert not recorder.wants_frames(0)
    for step in range(3):
        recorder.observe(step, np.arange(3.0), 0.0, success=False)
    recorder.end(success=False)
    columns = load_trajectory(staged(tmp_path, cameras={}).observed)["columns"]
    assert columns["observation.state"].shape == (2, 3)


@pytest.mark.parametrize(
    ("obs", "cameras", "match"),
    [
        ({"state": np.zeros(2)}, CAMERAS, "step 0 lacks a frame of front, wrist; it holds"),
        ({"depth/front": np.zeros((4, 4))}, {}, "step 0 lacks numbers"),
        ({"pixels/front": np.zeros((4, 4))}, {"front": "observation.image"}, "only uint8"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path, obs, cameras, match):
    recorder = recorder_in(tmp_path, cameras=cameras)
    recorder.begin(ObservedEpisode(KEY, "", 500))
    with pytest.raises(InvalidObservation, match=match):
        recorder.observe(0, obs, 0.0, success=False)
    recorder.observe(1, obs, 0.0, success=False)  # the rest of the episode is ignored
    assert recorder.end(success=False) == ()
    assert list(tmp_path.rglob("*.*")) == []


def test_observations_must_not_change_their_shapes(tmp_path):
    recorder = recorder_in(tmp_path, cameras={})
    recorder.begin(ObservedEpisode(KEY, "", 500))
    recorder.observe(0, {"state": np.zeros(2)}, 0.0, success=False)
    recorder.observe(1, {"state": np.zeros(3)}, 0.0, success=False)
    with pytest.raises(InvalidObservation, match=r"\(3,\).*had.*\(2,\)"):
        recorder.observe(2, {"state": np.zeros(3)}, 0.0, success=False)


def test_a_full_disk_is_an_error_of_the_storage_and_nothing_stays(tmp_path, small_disk):
    def show_noise(recorder):
        noise = np.random.default_rng(0)
        recorder.begin(ObservedEpisode(KEY, "", 500))
        for step in range(200):
            frame = noise.integers(0, 256, (64, 64, 3), np.uint8)
            recorder.observe(step, {"pixels/front": frame}, 0.0, success=False)
        recorder.end(success=False)

    with small_disk(tmp_path / "small", "60k") as disk:
        recorder = recorder_in(disk, cameras={"front": "observation.image"})
        with pytest.raises(StorageError, match="No space left"):
            show_noise(recorder)
        assert [path for path in disk.rglob("*") if path.is_file()] == []


def test_observations_become_columns_of_lerobots_types():
    obs = {
        "state": np.arange(5, dtype=np.float64),
        "robot_state/eef_pos": np.zeros(3, np.float64),
        "nested": {"depth": 3, "flag": np.bool_(True)},
        "count": np.uint8(7),
        "matrix": np.eye(3),
        "name": "reach",
        "pixels/front": np.zeros((4, 4, 3), np.uint8),
        "point_cloud/front": np.zeros((4, 4, 3)),
    }
    columns = observation_columns(obs)
    assert {name: (column.dtype, column.shape) for name, column in columns.items()} == {
        "observation.state": (np.float32, (5,)),
        "extra.robot_state.eef_pos": (np.float32, (3,)),
        "extra.nested.depth": (np.int64, ()),
        "extra.nested.flag": (np.bool_, ()),
        "extra.count": (np.int64, ()),
    }
    assert observation_columns(np.int64(3)) == {"observation.state": 3}
    columns["observation.state"][:] = -1
    assert obs["state"][1] == 1


@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 4), st.just(2), st.just(2), st.just(3))))
def test_statistics_of_frames_are_those_of_their_pixels(frames):
    histogram = Histogram()
    for frame in frames:
        histogram.add(frame)
    stats = histogram.stats(len(frames))
    pixels = frames.reshape(-1, 3) / 255
    expected = {"min": pixels.min(0), "max": pixels.max(0), "mean": pixels.mean(0)}
    expected |= {"std": pixels.std(0)}
    expected |= {name: np.quantile(pixels, share, axis=0) for name, share in QUANTILES.items()}
    for name, values in expected.items():
        np.testing.assert_allclose(stats[name], values.reshape(3, 1, 1), atol=1e-12)
    assert stats["count"] == [len(frames)]
    assert set(stats) == {*expected, "count"}


@pytest.mark.parametrize("values", [np.arange(7, dtype=np.int64), np.arange(7) % 2 == 0])
def test_statistics_of_scalars_are_vectors_of_one_number(values):
    stats = column_stats(values)
    assert stats["mean"] == [pytest.approx(values.mean())]
    assert stats["q10"] == [pytest.approx(np.quantile(values.astype(float), 0.1))]
    assert stats["count"] == [7]


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(fps):
    with pytest.raises(ValueError, match="more than 0 steps per second"):
        DatasetOptions(folder="x", fps=fps)


@pytest.mark.parametrize("missing", ["av", "pyarrow"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=rf"{missing}.*pip install 'polyarm\[dataset\]'"):
        require_dataset_extra()


def test_importing_the_modules_imports_neither():
    names = "polyarm.recording.dataset, polyarm.recording.dataset_writer, polyarm.rollout.dataset"
    check = f"import sys, {names}; sys.exit(bool({{'av', 'pyarrow'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
