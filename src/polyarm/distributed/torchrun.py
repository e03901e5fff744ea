"""The processes of a job talk to one another: what is summed up and agreed upon.

A single process is a group too, of one, and needs no torch for it. Several use torch.distributed
over the address that their launcher gives (``MASTER_ADDR``, ``MASTER_PORT``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from polyarm.distributed.meeting import meet
from polyarm.distributed.ranks import Rank
from polyarm.errors import MissingExtra, PolyarmError, RankLost, StoppedEarly

_TIMEOUT_S = 3600.0
"""A rank may wait long for one whose simulators are slow; gloo tells at once of one that died."""
_SOURCE_LINE = re.compile(r"\[\S+:\d+\] ")
_GLOO = re.compile(r"gloo/|^gloo |^application timeout", re.IGNORECASE)
"""How gloo's errors are known, which have no class of their own."""
_OWN_FAULT = re.compile(
    r"CUDA error|CUDA out of memory|ncclUnhandledCuda|ncclInvalid", re.IGNORECASE
)
"""What NCCL says of this process or its GPU, in errors that else are about other ranks."""


class ProcessGroup:
    """All ranks of a job. With one rank alone every method gives back what it was given.

    Every method but `leads` is to be called by all ranks, in the same order. Where another rank has
    ended, all of them raise `RankLost`: at once where gloo carries what is said, which is all but
    tensors of GPUs. Those travel by NCCL, which may notice it later, or end this process itself.
    Other errors, such as those of a GPU without memory, are raised as they are.

    Args:
        rank: Which of how many this is.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._gpus: Any = None

    @property
    def leads(self) -> bool:
        """Whether this is the one that speaks for all."""
        return self.rank.number == 0

    def gather(self, thing: Any) -> list[Any]:
        """What every rank gives, in the order of ranks, on all of them; it is pickled."""
        if self.rank.world == 1:
            return [thing]
        everyone: list[Any] = [None] * self.rank.world
        with _answering():
            _distributed().all_gather_object(everyone, thing)
        return everyone

    def from_first(self, thing: Any) -> Any:
        """The first rank's thing, on all of them; it is pickled."""
        found = [thing]
        if self.rank.world > 1:
            with _answering():
                _distributed().broadcast_object_list(found, src=0)
        return found[0]

    def deal(self, things: Sequence[Any]) -> Any:
        """What the first rank has for this one; it gives one thing for each, which are pickled."""
        if self.rank.world == 1:
            return things[0]
        own = [None]
        with _answering():
            _distributed().scatter_object_list(own, list(things) if self.leads else None, src=0)
        return own[0]

    def broadcast(self, tensors: Iterable[Any]) -> None:
        """Give all ranks the first one's tensors, in place."""
        if self.rank.world > 1:
            with _answering():
                for tensor in tensors:
                    _distributed().broadcast(tensor, src=0, group=self._carrier(tensor))

    def total(self, tensors: Iterable[Any]) -> None:
        """Put the ranks' sum into each tensor."""
        if self.rank.world > 1:
            with _answering():
                for tensor in tensors:
                    _distributed().all_reduce(tensor, group=self._carrier(tensor))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what is in the block, which may be one rank's task only; if it fails, no rank goes on.

        Raises:
            StoppedEarly: On all of them, where one was stopped.
            RankLost: On those that could, with what the others say.
        """
        own: PolyarmError | None = None
        try:
            yield
        except PolyarmError as error:
            own = error
        everyone = self.gather(None if own is None else (isinstance(own, StoppedEarly), str(own)))
        if own is not None:
            raise own
        for number, told in enumerate(everyone):
            if told is not None:
                stopped, said = told
                if stopped:
                    raise StoppedEarly(said)
                raise RankLost(f"rank {number} could not go on: {said}")

    @contextmanager
    def over_gpus(self) -> Iterator[None]:
        """Until the block is left, tensors of CUDA travel by NCCL, from GPU to GPU."""
        if self.rank.world == 1:
            yield
            return
        distributed, limit = _distributed(), timedelta(seconds=_TIMEOUT_S)
        with _answering():
            self._gpus = distributed.new_group(backend="nccl", timeout=limit)
        try:
            yield
        finally:
            distributed.destroy_process_group(self._gpus)
            self._gpus = None

    def _carrier(self, tensor: Any) -> Any:
        return self._gpus if tensor.is_cuda else None


@contextmanager
def process_group(
    rank: Rank, stopping: Callable[[], bool] = lambda: False
) -> Iterator[ProcessGroup]:
    """The group of all ranks of this job, until the block is left; one that is there is used.

    It does not touch CUDA, so workers may be forked behind it. Under torchrun a process can make
    one group in its life: the ranks meet at an address that remembers the first.

    Args:
        rank: This process's.
        stopping: Asked while others have not come, whether to wait no longer.

    Raises:
        MissingExtra: There are several ranks, and torch is not installed.
        InvalidCall: Nobody says where ranks meet, or it cannot be there.
        RankLost: Some have not come.
        StoppedEarly: It was to wait no longer.
    """
    if rank.world == 1:
        yield ProcessGroup(rank)
        return
    distributed = _distributed()
    if distributed.is_initialized():
        yield ProcessGroup(rank)
        return
    with _answering():
        distributed.init_process_group(
            "gloo",
            store=meet(rank, stopping),
            rank=rank.number,
            world_size=rank.world,
            timeout=timedelta(seconds=_TIMEOUT_S),
        )
    try:
        yield ProcessGroup(rank)
    finally:
        distributed.destroy_process_group()


@contextmanager
def _answering() -> Iterator[None]:
    """Errors of torch.distributed about ranks that do not answer, as what they mean."""
    try:
        yield
    except RuntimeError as error:
        if not _is_about_others(error):
            raise
        said = _SOURCE_LINE.sub("", str(error).partition("\n")[0]).partition(". ")[0]
        raise RankLost(
            "another rank has ended, or does not answer any more; look for what it has said"
            f" ({said})"
        ) from error


def _is_about_others(error: RuntimeError) -> bool:
    """Whether another rank is at fault; errors of GPUs and their memory are RuntimeErrors, too."""
    from torch.distributed import DistError

    if isinstance(error, DistError):
        return _OWN_FAULT.search(str(error)) is None
    return type(error) is RuntimeError and _GLOO.search(str(error)) is not None


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
