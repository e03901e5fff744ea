"""How PyTorch is used when something is trained: where, and with how many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polyarm.display.rank import local_rank
from polyarm.distributed.torchrun import ProcessGroup
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


def require_gpus_apart(device: Any, group: ProcessGroup) -> None:
    """Refuse ranks that compute on the same GPU: NCCL, which sums up their gradients, cannot.

    Nor does it reach ranks that compute on the CPU beside others that do on GPUs.

    Raises:
        InvalidCall: On all ranks.
    """
    own = None
    if device.type == "cuda":
        known = import_torch().cuda.get_device_properties(device)
        # Older versions of PyTorch do not say which GPU it is.
        own = str(getattr(known, "uuid", f"that of rank {group.rank.number}"))
    gpus = [gpu for gpu in group.gather(own) if gpu is not None]
    if 0 < len(gpus) < group.rank.world:
        raise InvalidCall(
            f"{len(gpus)} of {group.rank.world} ranks compute on a GPU and the others on the CPU,"
            f" but gradients travel between GPUs, or between CPUs: give all the same --device"
        )
    if len(set(gpus)) < len(gpus):
        raise InvalidCall(
            f"{len(gpus)} ranks compute on {len(set(gpus))} GPU(s), but NCCL, by which they share"
            f" gradients, takes one GPU for each: start fewer ranks, or give --device cpu"
        )


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
