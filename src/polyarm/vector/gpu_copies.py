"""Rows of the block on their way to GPUs: pinned memory, asynchronous copies, and who must wait.

The block is registered with CUDA, so that copies run at the speed of the bus while the trainer
goes on. A row may not be written while it is being read: whoever is about to send a slot into a
row waits for the copy of that slot's row, and for nothing else.

A copy lands in one of two staging buffers and is turned into what the trainer gets on the
trainer's own stream. So copies never wait for the trainer's queued work, only for the conversion
before the last one, and what the trainer gets is its own.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.vector.layout import Array, Leaf, Path, Slots
from polyarm.vector.ring import Ring
from polyarm.vector.tensors import Tensor, import_torch

log = logging.getLogger("polyarm")


_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all GPUs of the process."""
_WORTH_A_COPY = 1 << 14
"""Bytes from which a slot's part of a row is copied as it lies; smaller ones are gathered first."""


class Pins:
    """Mappings of the block that are registered with CUDA, until they are released."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self._refused = False
        self._maker_pid = os.getpid()
        self.streams: list[Any] = []
        """Where copies of them run; they are waited for before a mapping is released."""
        self._finalizer = weakref.finalize(
            self, _release, self._held, self.streams, self._maker_pid
        )

    def cover(self, segments: list[Mapping[Path, Array]]) -> None:
        """Register these segments, once each, and release others.

        Where CUDA refuses, copies still work, from pageable memory; a warning says so, once.
        """
        buffers = {id(buffer): buffer for buffer in map(_mapping, segments)}
        old = {key: self._held.pop(key) for key in list(self._held) if key not in buffers}
        _release(old, self.streams, self._maker_pid)
        for key in buffers.keys() - self._held.keys():
            if not self._refused:
                self._register(key, buffers[key])

    def _register(self, key: int, buffer: Any) -> None:
        cudart = import_torch().cuda.cudart()
        error = cudart.cudaHostRegister(_address(buffer), len(buffer), _PORTABLE)
        if int(error) == 0:
            self._held[key] = buffer  # it must not be unmapped before it is released
            return
        self._refused = True
        _clear_error()
        warnings.warn(
            f"CUDA could not pin the shared block ({len(buffer) / 2**20:.1f} MiB):"
            f" {cudart.cudaGetErrorString(error)}. Observations are copied to the GPU from pageable"
            f" memory, which takes several times as long; see `ulimit -l` and the memory limit of"
            f" the container.",
            RuntimeWarning,
            stacklevel=2,
        )

    def release(self) -> None:
        """Unpin everything, once copies have ended; nothing in a forked copy of the process."""
        _release(self._held, self.streams, self._maker_pid)


class GpuCopies:
    """All GPUs that one vector env's rows are copied to."""

    def __init__(self) -> None:
        self.pins = Pins()
        self._devices: dict[Any, DeviceCopies] = {}

    def to(self, device: Any, ring: Ring) -> DeviceCopies:
        """Copies to one GPU; the first call pins the block."""
        if device not in self._devices:
            self._devices[device] = DeviceCopies(device, ring, self.pins)
            ring.before_overwrite = self.wait
        return self._devices[device]

    def wait(self, rows: Slots | int, slots: Slots | slice | int) -> None:
        """Wait until these rows of these slots are no longer being read."""
        for copies in self._devices.values():
            copies.wait(rows, slots)


@dataclass(eq=False)
class Staging:
    """A buffer per leaf on the GPU, and the event after which it may be filled again."""

    read: Any
    buffers: dict[Path, Tensor] = field(default_factory=dict)


class DeviceCopies:
    """Asynchronous copies of rows to one GPU, on a stream of their own.

    Args:
        device: The GPU.
        ring: The rows.
        pins: What keeps the block pinned.
    """

    def __init__(self, device: Any, ring: Ring, pins: Pins) -> None:
        torch = self._torch = import_torch()
        self.device = device
        self._pins = pins
        self.stream = torch.cuda.Stream(device)
        self._halves = [Staging(torch.cuda.Event()), Staging(torch.cuda.Event())]
        self._turn = 0
        shape = (ring.layout.rows, ring.layout.num_envs)
        self._reading: NDArray[Any] = np.full(shape, None, object)
        pins.streams.append(self.stream)
        with torch.cuda.device(device):
            pins.cover(_segments(ring))

    def fetch(self, ring: Ring, slots: Slots, chunk: int | None, shape: Any) -> Any:
        """The newest observations of slots, on the GPU, for the caller's current stream.

        Args:
            ring: The rows.
            slots: The batch.
            chunk: The length of the last chunk where every step has an observation, else None.
            shape: From staged tensors by path to what is returned, run on the current stream.
        """
        torch = self._torch
        consumer = torch.cuda.current_stream(self.device)
        half = self._halves[self._turn]
        self._turn = 1 - self._turn
        rows = ring.slot_row[slots]
        with torch.cuda.stream(self.stream):
            if ring.layout.every:
                self._pins.cover(_segments(ring))
            self.stream.wait_event(half.read)
            staged = {
                leaf.path: self._stage(half, leaf, observed(ring, leaf, chunk), rows, slots)
                for leaf in ring.layout.observation
            }
            copied = torch.cuda.Event()
            copied.record(self.stream)
        self._reading[rows, slots] = copied
        consumer.wait_event(copied)
        shaped = shape(staged)
        half.read.record(consumer)
        for tensor in staged.values():
            tensor.record_stream(consumer)
        return shaped

    def wait(self, rows: Slots | int, slots: Slots | slice | int) -> None:
        """Wait until these rows of these slots have been copied."""
        for copied in {*np.ravel(self._reading[rows, slots])} - {None}:
            copied.synchronize()

    def _stage(self, half: Staging, leaf: Leaf, source: Array, rows: Slots, slots: Slots) -> Tensor:
        torch = self._torch
        shape = (len(slots), *source.shape[2:])
        target = self._buffer(half, leaf, source)[: math.prod(shape)].view(shape)
        found = list(pieces(source, rows, slots))
        if len(found) > 1 and source[0, 0].nbytes < _WORTH_A_COPY:
            gathered = torch.from_numpy(source[rows, slots]).pin_memory()
            return target.copy_(gathered, non_blocking=True)
        for start, piece in found:
            target[start : start + len(piece)].copy_(torch.from_numpy(piece), non_blocking=True)
        return target

    def _buffer(self, half: Staging, leaf: Leaf, source: Array) -> Tensor:
        count = math.prod(source.shape[1:])
        held = half.buffers.get(leaf.path)
        if held is None or held.numel() < count:
            torch = self._torch
            dtype = torch.from_numpy(np.empty(0, leaf.dtype)).dtype
            with torch.inference_mode(mode=False):  # what is made inside can't be filled outside
                held = torch.empty(count, dtype=dtype, device=self.device)
            half.buffers[leaf.path] = held
        return held


def observed(ring: Ring, leaf: Leaf, chunk: int | None) -> Array:
    """A leaf of the observation in the block: ``[T][N][…]``, or ``[T][N][K][…]`` of a chunk."""
    name = ("obs", *leaf.path)
    if not ring.layout.every:
        return ring.rows[name]
    steps = ring.chunk.views[name]
    return steps[:, :, 0] if chunk is None else steps[:, :, :chunk]


def pieces(source: Array, rows: Slots, slots: Slots) -> Iterator[tuple[int, Array]]:
    """A batch as runs that lie together in ``[T][N][…]``: place in the batch, and the run."""
    broken = (np.diff(rows) != 0) | (np.diff(slots) != 1)
    if not source[0].flags.c_contiguous:  # neighbours do not touch
        broken[:] = True
    bounds = [0, *(np.flatnonzero(broken) + 1).tolist(), len(slots)]
    for start, stop in pairwise(bounds):
        if start < stop:
            first = int(slots[start])
            yield start, source[rows[start], first : first + stop - start]


def _segments(ring: Ring) -> list[Mapping[Path, Array]]:
    """The segments that hold observations."""
    return [ring.rows, ring.chunk.views] if ring.layout.every else [ring.rows]


def _mapping(segment: Mapping[Path, Array]) -> Any:
    """The mapped memory below a segment's arrays; empty arrays have memory of their own."""
    return next(array.base for array in segment.values() if array.size)


def _address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def _clear_error() -> None:
    """A refusal stays behind as CUDA's last error; the next launch would raise it as its own."""
    torch = import_torch()
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        log.debug("cleared the last error of CUDA: %s", error)


def _release(held: dict[int, Any], streams: list[Any], maker_pid: int) -> None:
    """Unregister mappings when nothing reads them any more, where they were registered."""
    if not held or os.getpid() != maker_pid:
        return
    cudart = import_torch().cuda.cudart()
    try:
        for stream in streams:
            stream.synchronize()
        for buffer in held.values():
            cudart.cudaHostUnregister(_address(buffer))
    except RuntimeError as error:  # a kernel failed earlier; this process is lost to CUDA
        log.warning("could not unpin the shared block: %s", error)
    held.clear()
