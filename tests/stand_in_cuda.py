"""The CPU taken for a GPU: streams run at once, events are over, and what is pinned is noted."""

from __future__ import annotations

import contextlib
import os

import torch

from polyarm.vector import gpu_copies, torch_env


class Stream:
    def __init__(self, *_):
        self.synchronized = 0

    def wait_event(self, event):
        pass

    def synchronize(self):
        self.synchronized += 1


class Event:
    def __init__(self):
        self.synchronized = 0

    def record(self, stream):
        pass

    def synchronize(self):
        self.synchronized += 1


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
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "stream": lambda _: contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
        "current_stream": Stream,
        "cudart": lambda: runtime,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(gpu_copies, "_clear_error", lambda: None)
    monkeypatch.setattr(torch_env, "is_gpu", lambda device: True)
    return runtime
