"""The CPU taken for a GPU: streams work when somebody waits for them, and no sooner.

What is begun on a stream is put off until an event behind it, or all of it, is waited for. So who
does not wait reads old bytes, and what is overwritten too soon is read as what it is then. Only the
default stream works at once: tests look at its tensors as they would after a wait. What is pinned
is noted.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polyarm.vector import gpu_copies, torch_env


class Stream:
    """Work in order, which is put off if the stream is lazy."""

    made = []
    """All there are; the first is the default."""
    entered = []
    """Those that are current; the last one counts."""

    def __init__(self, *_, lazy=True):
        self.synchronized = 0
        self.lazy = lazy
        self.begun = 0
        self._waiting = deque()
        self.made.append(self)

    @classmethod
    def current(cls, *_):
        return cls.entered[-1] if cls.entered else cls.made[0]

    @property
    def done(self):
        """How much of what was begun is done."""
        return self.begun - len(self._waiting)

    def begin(self, work):
        self.begun += 1
        self._waiting.append(work)
        if not self.lazy:
            self.catch_up(self.begun)

    def catch_up(self, until):
        """Do what was begun, up to so much of it."""
        while self.done < until:
            work = self._waiting.popleft()
            with enter(self.made[0]), torch.inference_mode():
                work()

    def wait_event(self, event):
        stream, until = event.stream, event.until  # as recorded by now, whatever follows
        if stream is not None:
            self.begin(lambda: stream.catch_up(until))

    def synchronize(self):
        self.synchronized += 1
        self.catch_up(self.begun)


class Event:
    """A place in a stream's work; nothing to wait for before it is recorded."""

    def __init__(self):
        self.synchronized = 0
        self.stream, self.until = None, 0

    def record(self, stream):
        self.stream, self.until = stream, stream.begun

    def synchronize(self):
        self.synchronized += 1
        if self.stream is not None:
            self.stream.catch_up(self.until)


class PutOff(TorchDispatchMode):
    """Leaves what PyTorch computes to the current stream; memory and views are there at once."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        stream = Stream.current()
        if not stream.lazy or func.is_view or not holds_tensor((*args, *kwargs.values())):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            stream.begin(lambda: func(*args, **kwargs))
            return kwargs.get("out", args[0])
        found = func(*args, **kwargs)  # of this shape; the values follow
        stream.begin(lambda: found.copy_(func(*args, **kwargs)))
        return found


def holds_tensor(values):
    return any(isinstance(value, torch.Tensor) for value in values)


@contextlib.contextmanager
def enter(stream):
    """As ``torch.cuda.stream``."""
    outermost = stream.lazy and not any(each.lazy for each in Stream.entered)
    Stream.entered.append(stream)
    try:
        with PutOff() if outermost else contextlib.nullcontext():
            yield
    finally:
        Stream.entered.pop()


def synchronize():
    """As ``torch.cuda.synchronize``: streams go on in any order; here the newest is the first."""
    for stream in reversed(Stream.made):
        stream.catch_up(stream.begun)


def pin_memory(tensor):
    with enter(Stream.made[0]):  # the host does this
        return tensor.clone()


class Runtime:
    """CUDA's register of pinned memory."""

    def __init__(self):
        self.pinned = {}
        self.calls = 0
        self.refuses = False

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802
        self.calls += 1
        if self.refuses:
            return 2
        assert address % os.sysconf("SC_PAGESIZE") == 0
        assert address not in self.pinned
        self.pinned[address] = nbytes
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.pinned[address]
        return 0

    def cudaGetErrorString(self, error):  # noqa: N802
        return "out of memory"


def install(monkeypatch) -> Runtime:
    """Take the CPU for a GPU; gives its register of pinned memory."""
    runtime = Runtime()
    monkeypatch.setattr(Stream, "made", [])
    Stream(lazy=False)
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "stream": enter,
        "device": lambda _: contextlib.nullcontext(),
        "current_stream": Stream.current,
        "synchronize": synchronize,
        "_sleep": lambda _: None,
        "cudart": lambda: runtime,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(gpu_copies, "_clear_error", lambda: None)
    monkeypatch.setattr(torch_env, "is_gpu", lambda device: True)
    return runtime
