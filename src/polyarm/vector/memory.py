"""The shared block and the mail file: anonymous memory files, handed over by descriptor.

Nothing has a name in ``/dev/shm``, so nothing can be left there, whatever dies. The block only
grows: a new segment is appended and mapped, old mappings live as long as somebody holds a view.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from typing import Any

import cloudpickle
from gymnasium.spaces import Box

from polyarm.errors import HostLimit, InvalidCall
from polyarm.vector.host import allow_files, available_memory, kernel_gives

_PAGE = mmap.PAGESIZE
_MAILBOX = 2**36
_KEEP = 1 << 20
_SMALL = 256
"""Elements of a space's bounds that are not worth a look."""


def _punch_hole(fd: int, offset: int, nbytes: int) -> None:
    """Give the pages of a range of a memory file back to the kernel."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    keep_size, punch = 0x01, 0x02
    libc.fallocate(fd, keep_size | punch, ctypes.c_long(offset), ctypes.c_long(nbytes))


def _memory_file(name: str) -> int:
    with kernel_gives("memory files (memfd_create)"):
        return os.memfd_create(name, os.MFD_CLOEXEC)


class _Pickler(pickle.Pickler):
    """Sends the bounds of frames as two numbers, not as four arrays of a frame's size."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Box and value.low.size > _SMALL and not vars(value)["_np_random"]:
            low, high = value.low.flat[0].item(), value.high.flat[0].item()
            if (value.low == low).all() and (value.high == high).all():
                return _uniform_box, (low, high, value.shape, value.dtype)
        return NotImplemented


def _uniform_box(low: Any, high: Any, shape: tuple[int, ...], dtype: Any) -> Box:
    kind = float if dtype.kind == "f" else int  # a Box takes no bool
    return Box(kind(low), kind(high), shape, dtype)


def pickled(value: Any) -> bytes:
    """A value as bytes, by cloudpickle where nothing less can carry it."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return buffer.getvalue()
    except (pickle.PicklingError, AttributeError, TypeError):
        data: bytes = cloudpickle.dumps(value)
        return data


def _sent(letter: Any) -> bytes:
    """What workers are sent: what the user's script defines is unknown there, and goes along.

    Raises:
        InvalidCall: It holds what cannot be sent.
    """
    try:
        data: bytes = cloudpickle.dumps(letter)
    except Exception as error:
        raise InvalidCall(
            f"what is passed to envs must be picklable: {type(error).__name__}: {error}"
        ) from error
    return data


class Block:
    """A growing memory file, mapped segment by segment.

    Args:
        fd: An existing memory file to open, or None to create one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _memory_file("polyarm-block") if fd is None else fd
        self._end = os.fstat(self.fd).st_size

    def append(self, nbytes: int) -> int:
        """Reserve ``nbytes`` at the end and return their page-aligned offset.

        Raises:
            HostLimit: When the machine has less memory to give than that.
        """
        size = -(-nbytes // _PAGE) * _PAGE
        room = available_memory()
        if size > room:
            raise HostLimit(
                f"the shared block needs {size / 2**30:.2f} GiB more, and this machine has"
                f" {room / 2**30:.2f} GiB to give; use fewer envs, a smaller image_size, a shorter"
                f" ring, or frames='last'"
            )
        offset = self._end
        os.ftruncate(self.fd, offset + size)
        self._end = offset + size
        return offset

    def map(self, offset: int, nbytes: int) -> mmap.mmap:
        """Map ``nbytes`` from ``offset``, shared and writable."""
        return mmap.mmap(self.fd, nbytes, offset=offset)

    def close(self) -> None:
        """Close the descriptor; mappings stay valid for those who hold views."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Mail:
    """One mailbox per slot and direction in a sparse memory file, for what has no fixed size.

    A letter is trusted only after the doorbell or the completion that announces its length.

    Args:
        fd: An existing mail file to open, or None to create one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _memory_file("polyarm-mail") if fd is None else fd

    @staticmethod
    def allow(num_slots: int) -> None:
        """Raise the limit on the size of files, if there is one, so that all mailboxes fit.

        Raises:
            HostLimit: The hard limit is too low.
        """
        allow_files(2 * num_slots * _MAILBOX)

    def put(self, slot: int, letter: Any, *, to_worker: bool) -> int:
        """Write a letter; returns its length in bytes, to be announced to the reader."""
        data = _sent(letter) if to_worker else pickled(letter)
        offset = self._offset(slot, to_worker=to_worker)
        written = 0
        while written < len(data):
            written += os.pwrite(self.fd, memoryview(data)[written:], offset + written)
        return len(data)

    def get(self, slot: int, nbytes: int, *, to_worker: bool) -> Any:
        """Read the letter of ``nbytes`` that was announced; large ones free their pages."""
        offset = self._offset(slot, to_worker=to_worker)
        parts = []
        got = 0
        while got < nbytes:
            part = os.pread(self.fd, nbytes - got, offset + got)
            if not part:
                raise EOFError(f"mailbox of slot {slot} ended after {got} of {nbytes} bytes")
            parts.append(part)
            got += len(part)
        if nbytes > _KEEP:
            _punch_hole(self.fd, offset, nbytes)
        return pickle.loads(b"".join(parts))

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @staticmethod
    def _offset(slot: int, *, to_worker: bool) -> int:
        return (2 * slot + to_worker) * _MAILBOX
