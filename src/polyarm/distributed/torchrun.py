"""The processes of a job talk to one another: what is summed up and agreed upon.

A single process is a group too, of one, and needs no torch for it. Several use torch.distributed
over the address that their launcher gives (``MASTER_ADDR``, ``MASTER_PORT``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from polyarm.distributed.ranks import Rank
from polyarm.errors import MissingExtra

_TIMEOUT_S = 3600.0
"""Of slow simulators one rank may wait long for another; a rank that died is noticed at once."""


class ProcessGroup:
    """All ranks of a job; of one rank alone, everything is what it was.

    Every method but `leads` is to be called by all ranks, in the same order.

    Args:
        rank: Which of how many this is.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    @property
    def leads(self) -> bool:
        """Whether this is the one that speaks for all."""
        return self.rank.number == 0

    def gather(self, thing: Any) -> list[Any]:
        """What every rank gives, in the order of ranks, on all of them; it is pickled."""
        if self.rank.world == 1:
            return [thing]
        everyone: list[Any] = [None] * self.rank.world
        _distributed().all_gather_object(everyone, thing)
        return everyone

    def broadcast(self, tensors: Iterable[Any]) -> None:
        """Give all ranks the first one's tensors, in place."""
        if self.rank.world > 1:
            for tensor in tensors:
                _distributed().broadcast(tensor, src=0)

    def total(self, tensors: Iterable[Any]) -> None:
        """Put the ranks' sum into each tensor."""
        if self.rank.world > 1:
            for tensor in tensors:
                _distributed().all_reduce(tensor)


@contextmanager
def process_group(rank: Rank, *, device: str = "cpu") -> Iterator[ProcessGroup]:
    """The group of all ranks of this job, until the block is left; one that is there is used.

    Under torchrun a process can make one group in its life: the ranks meet at an address that
    remembers the first.

    Args:
        rank: This process's.
        device: What the tensors that are summed up live on: NCCL carries those of CUDA.

    Raises:
        MissingExtra: There are several ranks, and torch is not installed.
    """
    if rank.world == 1:
        yield ProcessGroup(rank)
        return
    distributed = _distributed()
    if distributed.is_initialized():
        yield ProcessGroup(rank)
        return
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo",
        rank=rank.number,
        world_size=rank.world,
        timeout=timedelta(seconds=_TIMEOUT_S),
    )
    try:
        yield ProcessGroup(rank)
    finally:
        distributed.destroy_process_group()


def _distributed() -> Any:
    try:
        import torch.distributed as distributed

        # Its functions' default arguments are the group that there is when it is imported, and keep
        # that for ever, with threads that abort the process when the interpreter ends under them.
        # The first step of an optimiser imports it, if nobody does before.
        import torch.distributed.nn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "several ranks talk through PyTorch: pip install 'polyarm[torch]', or see pytorch.org"
        ) from error
    return distributed
