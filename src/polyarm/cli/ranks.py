"""What a rank of torchrun says about itself, in every command that has ranks."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console

from polyarm.distributed.ranks import Share, Shared, bind_gpu, why_unbound


class Ranked(Shared, Protocol):
    """Options of a command whose ranks may be bound to GPUs."""

    @property
    def ddp_bind_gpu(self) -> bool:
        """Whether they are."""


def announce(share: Share, options: Ranked, errors: Console) -> None:
    """Bind this rank to its GPU if that is asked for, and say how envs are shared."""
    if options.num_envs_total is not None and share.rank.number == 0:
        errors.print(f"envs_per_rank={list(share.envs_per_rank)}", markup=False)
    if options.ddp_bind_gpu and bind_gpu() is None:
        errors.print(f"--ddp-bind-gpu: {why_unbound()}; no GPU is bound", markup=False)
