"""Records episodes as videos, in the worker that runs them.

Of an episode of T steps, recorded with stride s, a video shows the steps 0, s, 2s, … and the last
step T: ``ceil(T / s) + 1`` frames. A file bears its name only when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyarm.contracts import ObservedEpisode
from polyarm.errors import InvalidObservation
from polyarm.recording.caption import Caption, Label
from polyarm.recording.encoder import Pixels, VideoFile, require_video_extra
from polyarm.recording.filenames import episode_file, safe_name, stale_parts
from polyarm.recording.options import Record, VideoOptions, parse_record

__all__ = [
    "VideoRecorder",
    "video_recorder",
    "VideoOptions",
    "Record",
    "parse_record",
    "require_video_extra",
    "stale_parts",
    "camera_images",
]

_IMAGE_DIMENSIONS = 3
_RGB = 3


def video_recorder(**options: Any) -> VideoRecorder:
    """Make a recorder from keyword arguments, the fields of `VideoOptions`."""
    return VideoRecorder(VideoOptions(**options))


@dataclass(frozen=True, slots=True)
class _Film:
    """One file of an episode and the cameras it shows, from left to right."""

    file: VideoFile
    cameras: tuple[str, ...]
    band: int


@dataclass(frozen=True, slots=True)
class _Shot:
    """Copies of one step's frames, a picture for each film."""

    step: int
    pictures: Sequence[Pixels]
    success: bool


class VideoRecorder:
    """An `Observer` that makes a video of each episode it is asked to record.

    A frame waits for the next one before it is encoded: only then is it known not to be the last,
    which bears the outcome. Frames off the stride, which a policy may have asked for, are dropped
    unless they are the last.

    Args:
        options: What is recorded, how and where.

    Raises:
        MissingExtra: PyAV or Pillow is not installed.
    """

    def __init__(self, options: VideoOptions) -> None:
        self._options = options
        self._record = parse_record(options.record)
        if self._record.kind != "none":
            require_video_extra()
        self._folder = Path(options.folder).absolute()
        self._cameras = tuple(dict.fromkeys(options.cameras))
        self._episode: ObservedEpisode | None = None
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._films: list[_Film] = []
        self._on_stride: _Shot | None = None
        self._off_stride: _Shot | None = None

    def begin(self, episode: ObservedEpisode) -> None:
        """Get ready for an episode; one that has not ended is discarded."""
        self._discard()
        if self._record.starts(episode.key, self._options.start):
            self._episode = episode

    def wants_frames(self, step: int) -> bool:
        """Whether ``step`` is on the stride of a recorded episode."""
        return self._episode is not None and step % self._options.stride == 0

    def observe(self, step: int, obs: Any, reward: float, *, success: bool) -> None:
        """Copy the frames of a step, and hand those that came before to the encoder.

        Raises:
            InvalidObservation: A frame that was asked for is missing, or is no RGB image.
            StorageError: The video could not be written. It is discarded, and the rest of the
                episode ignored.
        """
        if self._episode is None:
            return
        try:
            self._observe(self._episode, step, obs, success=success)
        except BaseException:
            self._discard()
            raise

    def end(self, *, success: bool) -> Sequence[str]:
        """Finish the videos; returns those that are kept, relative to the folder's parent.

        Raises:
            StorageError: A video could not be written; the episode's videos are discarded.
        """
        films = list(self._films)
        try:
            if not self._record.keeps(success=success):
                for film in films:  # of an earlier attempt that ended otherwise
                    film.file.path.unlink(missing_ok=True)
                return ()
            self._write(self._on_stride, outcome="" if self._off_stride else _outcome(success))
            self._write(self._off_stride, outcome=_outcome(success))
            for film in films:
                film.file.finish()
            for film in films:
                film.file.keep()
        finally:
            self._discard()
        return [film.file.path.relative_to(self._folder.parent).as_posix() for film in films]

    def close(self) -> None:
        """Discard what has not ended."""
        self._discard()

    def _observe(self, episode: ObservedEpisode, step: int, obs: Any, *, success: bool) -> None:
        self._off_stride = None
        wanted = self.wants_frames(step)
        images = camera_images(obs, self._cameras, episode.upright)
        if images is None:
            if wanted:
                raise InvalidObservation(self._missing(episode, step, obs))
            return
        sizes = {camera: image.shape for camera, image in images.items()}
        if not self._films:
            self._sizes = sizes
            self._films = self._open(episode, images)
        elif sizes != self._sizes:
            raise InvalidObservation(
                f"frames of {episode.key} have shapes {sizes} at step {step}, but had "
                f"{self._sizes} before; a video cannot change its size"
            )
        pictures = [
            _picture([images[camera] for camera in film.cameras], film.band) for film in self._films
        ]
        shot = _Shot(step, pictures, success)
        if wanted:
            self._write(self._on_stride)
            self._on_stride = shot
        else:
            self._off_stride = shot

    def _open(self, episode: ObservedEpisode, images: Mapping[str, Pixels]) -> list[_Film]:
        groups = [self._cameras]
        endings = [".mp4"]
        if self._options.layout == "separate":
            groups = [(camera,) for camera in self._cameras]
            endings = [f"_{safe_name(camera)}.mp4" for camera in self._cameras]
        films = []
        for cameras, ending in zip(groups, endings, strict=True):
            caption = None
            if self._options.caption:
                height, width = _size([images[camera] for camera in cameras])
                caption = Caption(episode.key.task, episode.max_steps, height, width)
            home = self._folder / safe_name(episode.policy) if episode.policy else self._folder
            path = home / episode_file(episode.key, ending)
            file = VideoFile(path, self._options.rate, caption)
            films.append(_Film(file, cameras, caption.height if caption else 0))
        return films

    def _write(self, shot: _Shot | None, *, outcome: str = "") -> None:
        if shot is not None:
            label = Label(shot.step, shot.success, outcome)
            for film, picture in zip(self._films, shot.pictures, strict=True):
                film.file.add(picture, label)

    def _discard(self) -> None:
        """Drop what is under way; files that were kept are no longer affected."""
        films, self._films = self._films, []
        self._episode = self._on_stride = self._off_stride = None
        for film in films:
            film.file.discard()

    def _missing(self, episode: ObservedEpisode, step: int, obs: Any) -> str:
        found = sorted(map(str, obs)) if isinstance(obs, Mapping) else type(obs).__name__
        return (
            f"{episode.key} is recorded, but its observation at step {step} lacks a frame of "
            f"{', '.join(self._cameras)}; it holds {found}. Build the env with these cameras."
        )


def camera_images(
    obs: Any, cameras: Sequence[str], turn: tuple[int, int]
) -> dict[str, Pixels] | None:
    """The frame of each camera, turned but not copied; None unless all are there.

    Raises:
        InvalidObservation: A frame is no RGB image.
    """
    if not isinstance(obs, Mapping):
        return None
    images = {}
    for camera in cameras:
        image = obs.get(f"pixels/{camera}")
        if image is None:
            return None
        image = np.asarray(image)
        if image.dtype != np.uint8 or image.ndim != _IMAGE_DIMENSIONS or image.shape[2] != _RGB:
            raise InvalidObservation(
                f"the frame of camera {camera!r} is {image.dtype} {image.shape}; "
                "only uint8 (height, width, 3) can be recorded"
            )
        images[camera] = image[:: turn[0], :: turn[1]]
    return images


def _size(images: Sequence[Pixels]) -> tuple[int, int]:
    """Height and width of images side by side; even, as the encoder needs them."""
    height = max(image.shape[0] for image in images)
    width = sum(image.shape[1] for image in images)
    return height + height % 2, width + width % 2


def _picture(images: Sequence[Pixels], band: int) -> Pixels:
    """Copies the images side by side above an empty band; an odd size repeats its last pixels."""
    height, width = _size(images)
    picture = np.zeros((height + band, width, _RGB), np.uint8)
    left = 0
    for image in images:
        rows, columns = image.shape[:2]
        picture[:rows, left : left + columns] = image
        if rows == height - 1:
            picture[rows, left : left + columns] = image[-1]
        left += columns
    if left < width:
        picture[:height, left] = picture[:height, left - 1]
    return picture


def _outcome(success: bool) -> str:  # noqa: FBT001  the whole of what it says
    return "success" if success else "failure"
