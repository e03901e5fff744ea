"""This process's share of a job that torchrun has started on several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

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


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of the envs of a job.

    Attributes:
        rank: Whose.
        envs_per_rank: How many envs each rank has.
    """

    rank: Rank
    envs_per_rank: tuple[int, ...]

    @classmethod
    def current(cls, options: Shared, environment: Mapping[str, str] = os.environ) -> Share:
        """This process's, by what torchrun says.

        Raises:
            InvalidCall: A rank would have no env, or torchrun says what cannot be.
        """
        rank = Rank.current(environment)
        return cls(rank, envs_per_rank(options, rank.world))

    @property
    def num_envs(self) -> int:
        """Envs of this rank."""
        return self.envs_per_rank[self.rank.number]

    @property
    def before(self) -> int:
        """Envs of the ranks before this one."""
        return sum(self.envs_per_rank[: self.rank.number])


def envs_per_rank(options: Shared, world: int) -> tuple[int, ...]:
    """How many envs each rank has; where they do not divide, the first ones have one more.

    Raises:
        InvalidCall: A rank would have none.
    """
    total = options.num_envs_total
    if total is None:
        return (options.num_envs,) * world
    if total < world:
        raise InvalidCall(
            f"num_envs_total={total} leaves {world - max(0, total)} of {world} ranks without an "
            f"env; give at least {world}, or start fewer ranks"
        )
    return tuple(total // world + (rank < total % world) for rank in range(world))


def why_unbound(environment: Mapping[str, str] = os.environ) -> str | None:
    """Why `bind_gpu` would bind nothing; None where it binds."""
    if local_rank(environment) is None:
        return "no launcher says which rank this is"
    if _VISIBLE in environment and not _visible(environment):
        return f"{_VISIBLE}={environment[_VISIBLE]!r} hides all GPUs"
    return None


def bind_gpu(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Let this process and its workers see the GPU of their local rank alone.

    To be called before anything uses CUDA. Displays choose the same GPU, bound or not.

    Returns:
        That GPU as ``CUDA_VISIBLE_DEVICES`` has it; None where nothing is bound, see `why_unbound`.
    """
    rank = local_rank(environment)
    if rank is None or why_unbound(environment) is not None:
        return None
    visible = _visible(environment)
    bound = visible[rank % len(visible)] if visible else str(rank)
    environment[_VISIBLE] = bound
    return bound


def _visible(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that CUDA sees, where the variable is set: those before the first that is none."""
    names = (name.strip() for name in environment.get(_VISIBLE, "").split(","))
    return list(takewhile(lambda name: name not in ("", "-1"), names))
