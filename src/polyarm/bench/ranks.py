"""This process's share of a job that torchrun has started on several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from polyarm.display.rank import local_rank
from polyarm.errors import InvalidCall

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Shared(Protocol):
    """Options of a command whose envs are shared among ranks."""

    @property
    def num_envs(self) -> int:
        """Envs of each rank."""

    @property
    def num_envs_total(self) -> int | None:
        """Envs of all ranks, if they are counted together."""


Options = TypeVar("Options", bound=Shared)


@dataclass(frozen=True, slots=True)
class Rank:
    """Which of how many processes this is.

    Attributes:
        number: From 0 on.
        world: How many there are.
    """

    number: int
    world: int

    @classmethod
    def current(cls, environment: Mapping[str, str] = os.environ) -> Rank:
        """As torchrun says in ``RANK`` and ``WORLD_SIZE``; the only one where nobody says.

        Raises:
            InvalidCall: They are no numbers, or do not go together.
        """
        number, world = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
        if not number or not world:
            return cls(0, 1)
        if number.isdecimal() and world.isdecimal() and int(number) < int(world):
            return cls(int(number), int(world))
        raise InvalidCall(
            f"torchrun gives each process a RANK below WORLD_SIZE, found RANK={number} and "
            f"WORLD_SIZE={world}; unset both for a single process"
        )

    def folder(self, folder: str) -> str:
        """A folder of this rank's own below one that all ranks share."""
        return folder if self.world == 1 else f"{folder}/rank{self.number}"


def envs_per_rank(options: Shared, world: int) -> list[int]:
    """How many envs each rank has; where they do not divide, the first ones have one more.

    Raises:
        InvalidCall: A rank would have none.
    """
    total = options.num_envs_total
    if total is None:
        return [options.num_envs] * world
    if total < world:
        raise InvalidCall(
            f"num_envs_total={total} leaves {world - max(0, total)} of {world} ranks without an "
            f"env; give at least {world}, or start fewer ranks"
        )
    return [total // world + (rank < total % world) for rank in range(world)]


def of_this_rank(options: Options) -> tuple[Options, int]:
    """The options with this rank's number of envs, and how many envs the ranks before it have.

    Raises:
        InvalidCall: A rank would have none.
    """
    rank = Rank.current()
    shares = envs_per_rank(options, rank.world)
    return replace(options, num_envs=shares[rank.number]), sum(shares[: rank.number])  # type: ignore[type-var]


def bind_gpu(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Let this process and its workers see the GPU of their local rank alone.

    To be called before anything uses CUDA. Displays choose the same GPU, bound or not.

    Returns:
        That GPU as ``CUDA_VISIBLE_DEVICES`` has it; None where nobody tells a rank, so that
        nothing is bound.
    """
    rank = local_rank(environment)
    if rank is None:
        return None
    visible = [name.strip() for name in environment.get(_VISIBLE, "").split(",") if name.strip()]
    bound = visible[rank % len(visible)] if visible else str(rank)
    environment[_VISIBLE] = bound
    return bound
