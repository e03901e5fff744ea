"""What is recorded and how, checked before any worker starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from polyarm.contracts import STREAM, EpisodeKey
from polyarm.errors import UnknownName

Layout = Literal["side", "separate"]
RecordKind = Literal["all", "failures", "first", "none"]

_RATE_DENOMINATOR = 1001  # of broadcast rates such as 30000/1001


@dataclass(frozen=True, slots=True)
class Record:
    """Which episodes are recorded, as `parse_record` reads it.

    Attributes:
        kind: ``all``, ``failures``, ``first`` or ``none``.
        count: Of ``first``: how many episodes of each task.
    """

    kind: RecordKind
    count: int = 0

    def starts(self, key: EpisodeKey, start: int = 0) -> bool:
        """Whether to record this episode, as far as its key tells.

        Args:
            key: The episode.
            start: Index in its stream of the first episode that is played at all.
        """
        if self.kind == "first":
            return start <= key.index % STREAM < start + self.count and key.repeat == 0
        return self.kind != "none"

    def keeps(self, *, success: bool) -> bool:
        """Whether to keep the video of a recorded episode that ended like this."""
        return not (self.kind == "failures" and success)


_WORDS = {word: Record(word) for word in get_args(RecordKind) if word != "first"}


def parse_record(text: str) -> Record:
    """Read ``all``, ``failures``, ``first:N`` or ``none``.

    ``failures`` records every episode and keeps those that end without success. ``first:N``
    records the first N episodes of every task (of every seed's stream of episodes), and of an
    episode's repeats the first.

    Raises:
        UnknownName: It is none of these; the message lists them.
    """
    if text in _WORDS:
        return _WORDS[text]
    kind, _, number = text.partition(":")
    if kind == "first" and number.isascii() and number.isdigit() and int(number) > 0:
        return Record("first", int(number))
    hint = "N counts the episodes of each task and is at least 1, as in first:3."
    raise UnknownName("choice of episodes to record", text, [*_WORDS, "first:N"], hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoOptions:
    """How episodes are recorded; the keyword arguments of `video_recorder`.

    Attributes:
        folder: Holds the videos, ``<suite>/<task>/<index>.mp4``.
        cameras: Whose frames are recorded, from left to right.
        record: Which episodes, as for `parse_record`.
        fps: Frames per second of the file.
        env_fps: Steps per second of simulated time, or 0 if unknown.
        stride: Every how many steps a frame is recorded.
        realtime: Whether the file plays at the speed of simulated time, with ``env_fps / stride``
            instead of ``fps``, if ``env_fps`` is known.
        layout: ``side``: all cameras in one file; ``separate``: a file for each.
        caption: Whether task, step and outcome are written below the picture.
        start: Index, in its stream, of the first episode that is played; ``first:N`` counts from
            there.
    """

    folder: str
    cameras: Sequence[str]
    record: str = "all"
    fps: float = 20.0
    env_fps: float = 0.0
    stride: int = 1
    realtime: bool = False
    layout: Layout = "side"
    caption: bool = True
    start: int = 0

    def __post_init__(self) -> None:
        if parse_record(self.record).kind != "none" and not self.cameras:
            raise ValueError("there is no camera to record: name one at least, or record none")
        if self.stride < 1:
            raise ValueError(f"stride is {self.stride}; a frame can be kept every 1 or more steps")
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"fps is {self.fps}; a video needs more than 0 frames per second")
        if not (math.isfinite(self.env_fps) and self.env_fps >= 0):
            raise ValueError(f"env_fps is {self.env_fps}; give a positive number, or 0 if unknown")
        if self.layout not in get_args(Layout):
            raise UnknownName("layout", self.layout, get_args(Layout))

    @property
    def rate(self) -> Fraction:
        """Frames per second of the file, exactly."""
        if self.realtime and self.env_fps > 0:
            return rational(self.env_fps) / self.stride
        return rational(self.fps)


def rational(rate: float) -> Fraction:
    """The simple fraction meant by a float: 100/3 for 33.333333333333336."""
    return Fraction(rate).limit_denominator(_RATE_DENOMINATOR) or Fraction(rate)
