"""A disk that takes no more: the error arrives with its number, and nothing stays behind."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from polyarm.contracts import EpisodeKey, ObservedEpisode
from polyarm.errors import StorageError
from polyarm.recording import encoder
from polyarm.recording.trajectory import save_trajectory
from polyarm.recording.video import VideoRecorder, stale_parts, video_recorder

KEY = EpisodeKey("s", "t", 0)


def encoders() -> list[str]:
    """Threads that encode; libraries that other tests use may keep threads of their own."""
    return [each.name for each in threading.enumerate() if each.name.startswith("encoder of ")]


def play(recorder: VideoRecorder, steps: int = 20, cameras: tuple[str, ...] = ("a",)) -> list[str]:
    """Noise, which no encoder makes small, and always the same."""
    noise = np.random.default_rng(0)
    recorder.begin(ObservedEpisode(KEY, "", steps))
    for step in range(steps + 1):
        frames = {f"pixels/{c}": noise.integers(0, 256, (64, 64, 3), np.uint8) for c in cameras}
        recorder.observe(step, frames, 0.0, success=False)
    return list(recorder.end(success=False))


def recorder_in(folder: Path, **options: object) -> VideoRecorder:
    return video_recorder(**{"folder": str(folder / "videos"), "cameras": ("a",), **options})


@pytest.fixture
def full_disk(tmp_path: Path, small_disk: Any) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "100k") as mounted:
        yield mounted


def free(folder: Path) -> int:
    return os.statvfs(folder).f_bavail


@pytest.mark.parametrize("layout", ["side", "separate"])
def test_a_full_disk_fails_the_episode_and_is_left_as_free_as_before(full_disk: Path, layout: str):
    cameras = ("a", "b")
    recorder = recorder_in(full_disk, layout=layout, cameras=cameras)
    (full_disk / "videos" / "s" / "t").mkdir(parents=True)
    before = free(full_disk)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left") as caught:
            play(recorder, 300, cameras)
        assert isinstance(caught.value, StorageError)
        assert caught.value.errno == errno.ENOSPC
        assert "0" in caught.value.filename
        assert stale_parts(full_disk) == []
        assert encoders() == []
        assert free(full_disk) == before
        assert list(recorder.end(success=False)) == []
    assert len(play(recorder, 2, cameras)) == (1 if layout == "side" else 2)


def test_a_device_that_takes_nothing_fails_with_its_number(tmp_path: Path):
    folder = tmp_path / "videos" / "s" / "t"
    folder.mkdir(parents=True)
    (folder / "0.mp4.part").symlink_to("/dev/full")
    recorder = recorder_in(tmp_path)
    with pytest.raises(OSError, match="No space left") as caught:
        play(recorder)
    assert caught.value.errno == errno.ENOSPC
    assert list(folder.iterdir()) == []
    assert play(recorder) == ["videos/s/t/0.mp4"]


def test_a_file_that_lacks_its_last_bytes_is_never_kept(tmp_path: Path):
    recorder = recorder_in(tmp_path)
    (name,) = play(recorder)
    whole = (tmp_path / name).stat().st_size
    (tmp_path / name).unlink()
    # libx264 makes some tens of bytes more or less of the same frames from run to run.
    for limit in [0, 1, 40, 5_000, whole // 2, *range(whole - 3_000, whole - 200, 400)]:
        with file_size_limit(limit), pytest.raises(StorageError) as caught:
            play(recorder)
        assert caught.value.errno == errno.EFBIG
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    for limit in range(whole - 100, whole + 100, 10):
        with file_size_limit(limit), contextlib.suppress(StorageError):
            play(recorder)
            with av.open(str(tmp_path / name)) as container:
                assert len(list(container.decode(video=0))) == 21
            (tmp_path / name).unlink()
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@contextlib.contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_cannot_be_made_fails_with_its_number(tmp_path: Path):
    (tmp_path / "videos").write_text("a file where a folder should be")
    with pytest.raises(StorageError) as caught:
        play(recorder_in(tmp_path))
    assert caught.value.errno in {errno.ENOTDIR, errno.EEXIST}


def test_an_error_surfaces_while_the_episode_goes_on(tmp_path: Path):
    (tmp_path / "videos").write_text("a file where a folder should be")
    recorder = recorder_in(tmp_path)
    recorder.begin(ObservedEpisode(KEY, "", 0))
    frame = {"pixels/a": np.zeros((16, 16, 3), np.uint8)}
    with pytest.raises(StorageError):
        observe_forever(recorder, frame)
    assert encoders() == []
    assert not recorder.wants_frames(0)
    recorder.observe(1, frame, 0.0, success=False)
    assert list(recorder.end(success=False)) == []


def observe_forever(recorder: VideoRecorder, frame: dict[str, np.ndarray]) -> None:
    for step in itertools.count():
        recorder.observe(step, frame, 0.0, success=False)


def test_an_encoder_that_fails_surfaces_as_an_error_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(encoder._ENCODER_OPTIONS, "preset", "no-such-preset")
    with pytest.raises(StorageError, match=r"encoder failed|0\.mp4"):
        play(recorder_in(tmp_path))
    assert stale_parts(tmp_path) == []
    assert encoders() == []


def test_a_disk_that_stops_answering_is_given_up_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = threading.Event()
    monkeypatch.setattr(encoder, "_DEADLINE_S", 0.05)
    monkeypatch.setattr(encoder.os, "fsync", lambda _: answers.wait(60))
    recorder = recorder_in(tmp_path)
    with pytest.raises(StorageError) as caught:
        play(recorder)
    assert caught.value.errno == errno.ETIMEDOUT
    answers.set()
    for thread in threading.enumerate():
        if "encoder" in thread.name:
            thread.join(60)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_trajectory_that_does_not_fit_leaves_the_older_one_alone(full_disk: Path):
    path = full_disk / "trajectory.npz"
    save_trajectory(path, {"a": np.arange(3)})
    before = path.read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, 200_000, np.uint8)
    with pytest.raises(OSError, match="No space left") as caught:
        save_trajectory(path, {"a": noise})
    assert caught.value.errno == errno.ENOSPC
    assert list(full_disk.iterdir()) == [path]
    assert path.read_bytes() == before
