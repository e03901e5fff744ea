"""How PyTorch is used when something is trained: where, and with how many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polyarm.display.rank import local_rank
from polyarm.errors import InvalidCall
from polyarm.vector.tensors import import_torch


def chosen_device(name: str) -> Any:
    """``torch.device`` of a name.

    ``"auto"`` is CUDA where there is any. Ranks of one machine that see several GPUs have one each.

    Raises:
        InvalidCall: There is no such device.
    """
    torch = import_torch()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidCall(f"{name!r} is no device of PyTorch: auto, cpu, cuda, cuda:1 …") from error
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index
    if index is None:
        index = (local_rank(os.environ) or 0) % max(1, count)
    if index >= count:
        raise InvalidCall(f"there is no GPU for {name!r}: this PyTorch finds {count}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


@contextmanager
def threads(count: int) -> Iterator[int]:
    """So many threads for PyTorch's operations on the CPU; gives how many there were.

    Threads that wait for work take cores from the envs while these are stepped.
    """
    torch = import_torch()
    before: int = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield before
    finally:
        torch.set_num_threads(before)
