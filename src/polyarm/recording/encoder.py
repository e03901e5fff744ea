"""One video file, encoded by a thread of its own while the episode goes on.

The file is ``<name>.mp4.part`` until it is complete and kept. The thread starts with the first
frame and has ended when `finish` or `discard` returns. When it fails it empties its queue and ends,
so whoever adds frames never waits for a thread that has failed. It waits for frames without a
deadline, for a policy may think as long as it likes; as a daemon it keeps no process alive.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import MissingExtra, StorageError
from polyarm.recording.caption import Caption, Label

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

_QUEUE_FRAMES = 32
_DEADLINE_S = 120.0
"""For a queue that stays full or a thread that does not end: a disk that has stopped answering."""

_ENCODER_OPTIONS = {"preset": "veryfast", "crf": "23"}
_NO_LABEL = Label(0, success=False)
_BT601, _LIMITED_RANGE = 5, 1  # in the numbers of FFmpeg and H.264

_log = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]


def require_video_extra() -> None:
    """Import what videos need.

    Raises:
        MissingExtra: PyAV or Pillow is not installed.
    """
    try:
        import av  # noqa: F401
        from PIL import Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"videos need {error.name or 'av'}, which cannot be imported ({error}). "
            "Install it with: pip install 'polyarm[video]'"
        ) from error


class VideoFile:
    """An H.264 file that grows while frames are added.

    Args:
        path: Where it will be, once it is kept.
        rate: Frames per second.
        caption: Drawn into the lowest ``caption.height`` rows of every frame.
        encoding: Options of the encoder, instead of those for people to watch.
    """

    def __init__(
        self,
        path: Path,
        rate: Fraction,
        caption: Caption | None = None,
        encoding: Mapping[str, str] = _ENCODER_OPTIONS,
    ) -> None:
        self.path = path
        self._part = path.with_name(f"{path.name}.part")
        self._rate = rate
        self._caption = caption
        self._encoding = dict(encoding)
        self._frames: queue.Queue[tuple[Pixels, Label] | None] = queue.Queue(_QUEUE_FRAMES)
        self._thread: threading.Thread | None = None
        self._void = threading.Event()
        self._failure: BaseException | None = None

    def add(self, pixels: Pixels, label: Label = _NO_LABEL) -> None:
        """Hand over a frame: even height and width, and nobody else's from now on.

        Raises:
            StorageError: The file could not be written, now or at an earlier frame.
        """
        self._check()
        if self._thread is None:
            name = f"encoder of {self.path.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._put((pixels, label))

    def finish(self) -> None:
        """Wait until every frame is encoded and on the disk.

        Raises:
            StorageError: The file could not be written.
        """
        if self._thread is not None:
            self._put(None)
            self._thread.join(_DEADLINE_S)
            if self._thread.is_alive():
                raise self._stuck()
        self._check()

    def keep(self) -> None:
        """Give the finished file its name; a file of an earlier attempt is replaced."""
        with _storage_errors(self.path):
            self._part.replace(self.path)

    def discard(self) -> None:
        """End the thread and remove the file; may be called at any time, again and again."""
        self._void.set()
        if self._thread is not None and self._thread.is_alive():
            try:
                self._put(None)
                self._thread.join(_DEADLINE_S)
            except StorageError:
                _log.warning("%s is removed while its encoder is stuck", self._part)
        with _storage_errors(self._part):
            self._part.unlink(missing_ok=True)

    def _put(self, item: tuple[Pixels, Label] | None) -> None:
        try:
            self._frames.put(item, timeout=_DEADLINE_S)
        except queue.Full:
            raise self._stuck() from None

    def _stuck(self) -> StorageError:
        reason = f"the encoder has not moved for {_DEADLINE_S:.0f} s; is the disk still there?"
        return StorageError(errno.ETIMEDOUT, reason, str(self._part))

    def _check(self) -> None:
        """Raise what the thread failed with, once it has failed."""
        failure = self._failure
        if failure is None:
            return
        from av.error import FFmpegError

        if isinstance(failure, OSError) and failure.errno is not None:
            reason = os.strerror(failure.errno)
            raise StorageError(failure.errno, reason, str(self._part)) from failure
        if isinstance(failure, FFmpegError):
            reason = f"the encoder failed: {failure}"
            raise StorageError(errno.EIO, reason, str(self._part)) from failure
        raise failure

    def _run(self) -> None:
        try:
            self._encode()
        except BaseException as failure:  # noqa: BLE001  raised by the next call of the recorder
            self._failure = failure
            while not self._frames.empty():  # somebody may be waiting for room
                self._frames.get_nowait()

    def _encode(self) -> None:
        self._part.parent.mkdir(parents=True, exist_ok=True)
        with self._part.open("wb", buffering=0) as file:
            sink = _Sink(file)
            try:
                with _container(sink, self._part) as container:
                    self._encode_frames(container, sink)
            finally:
                sink.check()  # the disk's error explains all that follow from it
            if not self._void.is_set():
                os.fsync(file.fileno())

    def _encode_frames(self, container: OutputContainer, sink: _Sink) -> None:
        import av

        stream: VideoStream | None = None
        number = 0
        while (item := self._frames.get()) is not None:
            if self._void.is_set():
                continue
            pixels, label = item
            if self._caption is not None:
                pixels[-self._caption.height :] = self._caption.band(label)
            if stream is None:
                stream = self._add_stream(container, pixels)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace=_BT601)
            frame.pts, frame.time_base = number, 1 / self._rate
            container.mux(stream.encode(frame))
            sink.check()
            number += 1
        if self._void.is_set():
            sink.lost = True
        elif stream is not None:
            container.mux(stream.encode(None))

    def _add_stream(self, container: OutputContainer, pixels: Pixels) -> VideoStream:
        stream = container.add_stream("libx264", rate=self._rate, options=self._encoding)
        stream.height, stream.width = pixels.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1  # the workers already use every core
        # Players guess differently when a file does not say which YUV it holds.
        stream.codec_context.colorspace = _BT601
        stream.codec_context.color_range = _LIMITED_RANGE
        return stream


class _Sink:
    """A file for FFmpeg to write to: keeps the first error, and drops everything after it.

    Given a path instead, PyAV never closes its descriptor when the trailer cannot be written, and
    an open descriptor keeps the room of a removed file on a disk that is full.
    """

    def __init__(self, file: BinaryIO | Any) -> None:
        self._file = file
        self._error: OSError | None = None
        self.lost = False
        """Whether what is written goes nowhere."""

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        try:
            while view and not self.lost:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._error, self.lost = error, True
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def check(self) -> None:
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def _container(sink: _Sink, path: Path) -> Iterator[OutputContainer]:
    import av

    def read_again(_url: str, _flags: int, _options: dict[str, str]) -> BinaryIO:
        # "faststart" reads the finished file to move its index to the front.
        return path.open("rb")

    container = av.open(
        sink, "w", format="mp4", container_options={"movflags": "+faststart"}, io_open=read_again
    )
    try:
        yield container
    except BaseException:
        sink.lost = True
        raise
    finally:
        container.close()


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(error.errno, error.strerror, str(path)) from error
