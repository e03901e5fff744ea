"""What a rank of torchrun or srun does first, in every command that has ranks."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console

from polyarm.distributed import slurm
from polyarm.distributed.launcher import watch_launcher
from polyarm.distributed.ranks import Share, Shared, bind_gpu, separate_gpus, why_unbound
from polyarm.errors import InvalidCall


class Ranked(Shared, Protocol):
    """Options of a command whose ranks may be bound to GPUs."""

    @property
    def ddp_bind_gpu(self) -> bool:
        """Whether each is bound to the one of its local number."""

    @property
    def policy_gpus(self) -> str | None:
        """Those that policies compute on."""

    @property
    def render_gpus(self) -> str | None:
        """Those that envs render on."""


def announce(share: Share, options: Ranked, errors: Console) -> None:
    """End with the launcher, bind this rank to its GPU, and say how envs are shared.

    Raises:
        InvalidCall: GPUs are given that cannot be had, or in two ways.
    """
    watch_launcher()
    slurm.say_where_to_meet()
    if options.num_envs_total is not None and share.rank.leads:
        errors.print(f"envs_per_rank={list(share.envs_per_rank)}", markup=False)
    policy, render = options.policy_gpus, options.render_gpus
    if options.ddp_bind_gpu and (policy is not None or render is not None):
        raise InvalidCall(
            "--ddp-bind-gpu has a rank compute and render on one GPU, --policy-gpus and"
            " --render-gpus on two; leave out one or the other"
        )
    separate_gpus(policy, render)
    if options.ddp_bind_gpu and bind_gpu() is None:
        errors.print(
            f"{share.rank.mark}--ddp-bind-gpu: {why_unbound()}; no GPU is bound", markup=False
        )
