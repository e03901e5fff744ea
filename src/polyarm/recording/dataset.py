"""Records episodes for a dataset, in the worker that runs them: every step, every frame.

Of an episode of T steps the observations 0 to T - 1 are kept, each with what followed it; the last
one has no action and is dropped. An episode is staged as one file of columns and one video per
camera, under names that its key fixes; `dataset_writer` puts staged episodes together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from polyarm.contracts import EpisodeKey, ObservedEpisode
from polyarm.errors import InvalidObservation, MissingExtra
from polyarm.recording.dataset_columns import SUCCESS, Array, observation_columns
from polyarm.recording.dataset_stats import Histogram
from polyarm.recording.encoder import Pixels, VideoFile
from polyarm.recording.filenames import episode_file, safe_name
from polyarm.recording.options import rational
from polyarm.recording.trajectory import save_trajectory
from polyarm.recording.video import camera_images

ENCODING = {"preset": "veryfast", "crf": "12", "g": "2", "bf": "0"}
"""Every second frame is a key frame, as in LeRobot's files: training reads single frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """How episodes are staged; the keyword arguments of `dataset_recorder`.

    Attributes:
        folder: Holds staged episodes.
        fps: Steps per second of simulated time.
        cameras: Whose frames are kept, and the feature that each becomes.
        state_size: How many numbers of the state are LeRobot's state; 0 for all.
        mirrored: Whether frames are upright and mirrored left to right, as LeRobot and others
            keep LIBERO's, instead of as they are delivered.
    """

    folder: str
    fps: float
    cameras: Mapping[str, str] = field(default_factory=dict)
    state_size: int = 0
    mirrored: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"fps is {self.fps}; a dataset needs more than 0 steps per second")

    @property
    def rate(self) -> Fraction:
        """Frames per second, exactly."""
        return rational(self.fps)


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Where the parts of a staged episode are.

    Attributes:
        observed: Columns of observations, and counts of pixel values; written by the worker.
        executed: Actions, rewards and the task's words; written by whoever decides.
        videos: A file for each feature that is filmed.
    """

    observed: Path
    executed: Path
    videos: Mapping[str, Path]

    def complete(self) -> bool:
        """Whether all of them are there."""
        return all(path.exists() for path in (self.observed, self.executed, *self.videos.values()))


def staged_files(options: DatasetOptions, policy: str, key: EpisodeKey) -> StagedFiles:
    """The files of an episode."""
    home = Path(options.folder, safe_name(policy)) if policy else Path(options.folder)
    return StagedFiles(
        home / episode_file(key, ".observed.npz"),
        home / episode_file(key, ".executed.npz"),
        {
            feature: home / episode_file(key, f"_{safe_name(camera)}.mp4")
            for camera, feature in options.cameras.items()
        },
    )


def require_dataset_extra() -> None:
    """Import what datasets need.

    Raises:
        MissingExtra: PyAV or pyarrow is not installed.
    """
    try:
        import av  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"datasets need {error.name or 'av'}, which cannot be imported ({error}). "
            "Install it with: pip install 'polyarm[dataset]'"
        ) from error


def dataset_recorder(**options: Any) -> DatasetRecorder:
    """Make a recorder from keyword arguments, the fields of `DatasetOptions`."""
    return DatasetRecorder(DatasetOptions(**options))


class DatasetRecorder:
    """An `Observer` that stages every episode it watches.

    Args:
        options: What is kept, how and where.
    """

    def __init__(self, options: DatasetOptions) -> None:
        self._options = options
        self._recording: _Recording | None = None

    def begin(self, episode: ObservedEpisode) -> None:
        """Get ready for an episode; one that has not ended is discarded."""
        self.close()
        self._recording = _Recording(self._options, episode)

    def wants_frames(self, step: int) -> bool:
        """At every step, if there are cameras."""
        return self._recording is not None and bool(self._options.cameras)

    def observe(self, step: int, obs: Any, reward: float, *, success: bool) -> None:
        """Keep a copy of the observation, and enter the one before it.

        Raises:
            InvalidObservation: There is nothing in it that a dataset can hold, a frame is missing
                or is no RGB image, or something has changed its shape.
            StorageError: A video could not be written. The rest of the episode is ignored.
        """
        if self._recording is None:
            return
        try:
            self._recording.observe(step, obs, success=success)
        except BaseException:
            self.close()
            raise

    def end(self, *, success: bool) -> Sequence[str]:
        """Finish the episode's files, which are listed nowhere but under its key.

        Raises:
            StorageError: A video could not be written; it is discarded.
            OSError: The same of the columns.
        """
        try:
            if self._recording is not None:
                self._recording.finish()
        finally:
            self.close()
        return ()

    def close(self) -> None:
        """Discard what has not ended."""
        if self._recording is not None:
            self._recording.discard()
            self._recording = None


class _Recording:
    """One episode while it is recorded.

    An observation waits for the next one: only then is it known not to be the last, and whether
    the step that followed it was a success.
    """

    def __init__(self, options: DatasetOptions, episode: ObservedEpisode) -> None:
        self._options = options
        self._episode = episode
        self._staged = staged_files(options, episode.policy, episode.key)
        self._files = {
            feature: VideoFile(path, options.rate, encoding=ENCODING)
            for feature, path in self._staged.videos.items()
        }
        self._histograms = {feature: Histogram() for feature in self._files}
        self._waiting: tuple[dict[str, Array], dict[str, Pixels]] | None = None
        self._columns: dict[str, list[Array]] = {}
        self._successes: list[bool] = []
        self._shapes: dict[str, tuple[int, ...]] = {}

    def observe(self, step: int, obs: Any, *, success: bool) -> None:
        """Enter the observation before this one, which now waits instead."""
        if self._waiting is not None:
            self._enter(*self._waiting)
            self._successes.append(success)
        self._waiting = self._copies(step, obs)

    def finish(self) -> None:
        """Write all files; the columns last, for they say that there are videos."""
        for file in self._files.values():
            file.finish()
        for file in self._files.values():
            file.keep()
        columns = {name: np.stack(values) for name, values in self._columns.items()}
        columns[SUCCESS] = np.array(self._successes, np.bool_)
        histograms = {feature: each.counts for feature, each in self._histograms.items()}
        shapes = {feature: np.array(self._shapes[feature]) for feature in self._files}
        observed = {"columns": columns, "histograms": histograms, "shapes": shapes}
        save_trajectory(self._staged.observed, observed)

    def discard(self) -> None:
        """End the encoders and remove what they have not finished."""
        for file in self._files.values():
            file.discard()

    def _copies(self, step: int, obs: Any) -> tuple[dict[str, Array], dict[str, Pixels]]:
        """Columns and frames of an observation, by feature."""
        cameras, episode = self._options.cameras, self._episode
        turn = (episode.upright[0], -episode.upright[1]) if self._options.mirrored else (1, 1)
        images = camera_images(obs, tuple(cameras), turn) if cameras else {}
        columns = observation_columns(obs, self._options.state_size)
        if images is None or not (columns or images):
            found = sorted(map(str, obs)) if isinstance(obs, Mapping) else type(obs).__name__
            wanted = f"a frame of {', '.join(cameras)}" if cameras else "numbers"
            raise InvalidObservation(
                f"{episode.key} is saved for a dataset, but its observation at step {step} lacks "
                f"{wanted}; it holds {found}"
            )
        owned = {cameras[camera]: np.array(image, order="C") for camera, image in images.items()}
        return columns, owned

    def _enter(self, columns: Mapping[str, Array], images: Mapping[str, Pixels]) -> None:
        shapes = {name: array.shape for name, array in {**columns, **images}.items()}
        if self._shapes and shapes != self._shapes:
            raise InvalidObservation(
                f"observations of {self._episode.key} have shapes {shapes}, but had {self._shapes} "
                "before; a dataset's never change"
            )
        self._shapes = shapes
        for name, value in columns.items():
            self._columns.setdefault(name, []).append(value)
        for feature, image in images.items():
            self._histograms[feature].add(image)
            self._files[feature].add(image)
