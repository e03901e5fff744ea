"""This process's share of a job that torchrun or srun has started on several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeVar

from polyarm.display.rank import RENDER_GPU, local_rank
from polyarm.distributed import slurm
from polyarm.errors import InvalidCall

_VISIBLE = "CUDA_VISIBLE_DEVICES"

T = TypeVar("T")


class Shared(Protocol):
    """Options of a command whose envs are shared among ranks."""

    @property
    def num_envs(self) -> int | None:
        """Envs of each rank; None where the command chooses."""

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
        """As torchrun says in ``RANK`` and ``WORLD_SIZE``, else as SLURM says of a step of `srun`.

        The only one where nobody says.

        Raises:
            InvalidCall: They are no numbers, or do not go together.
        """
        number, world = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
        if not number or not world:
            return cls(*slurm.step_rank(environment))
        if number.isdecimal() and world.isdecimal() and int(number) < int(world):
            return cls(int(number), int(world))
        raise InvalidCall(
            f"torchrun gives each process a RANK below WORLD_SIZE, found RANK={number} and "
            f"WORLD_SIZE={world}; unset both for a single process"
        )

    @property
    def leads(self) -> bool:
        """Whether this is the one that speaks for all."""
        return self.number == 0

    @property
    def mark(self) -> str:
        """Begins what a rank says where several may speak; empty for a process alone."""
        return f"rank={self.number} " if self.world > 1 else ""

    def folder(self, folder: str) -> str:
        """A folder of this rank's own below one that all ranks share."""
        return folder if self.world == 1 else f"{folder}/rank{self.number}"


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of the envs of a job.

    Attributes:
        rank: Whose.
        envs_per_rank: How many envs each rank has; 0 where the command chooses.
    """

    rank: Rank
    envs_per_rank: tuple[int, ...]

    @classmethod
    def current(cls, options: Shared, environment: Mapping[str, str] = os.environ) -> Share:
        """This process's, by what its launcher says.

        Raises:
            InvalidCall: A rank would have no env, or the launcher says what cannot be.
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

    def deal(self, tasks: Sequence[T]) -> list[T]:
        """What each env of this rank plays, where tasks are dealt to those of all ranks in turn."""
        return [tasks[(self.before + env) % len(tasks)] for env in range(self.num_envs)]


def envs_per_rank(options: Shared, world: int) -> tuple[int, ...]:
    """How many envs each rank has; where they do not divide, the first ones have one more.

    Raises:
        InvalidCall: A rank would have none.
    """
    total = options.num_envs_total
    if total is None:
        return (options.num_envs or 0,) * world
    if total < world:
        raise InvalidCall(
            f"num_envs_total={total} leaves {world - max(0, total)} of {world} ranks without an "
            f"env; give at least {world}, or start fewer ranks"
        )
    return tuple(total // world + (rank < total % world) for rank in range(world))


def mark(environment: Mapping[str, str] = os.environ) -> str:
    """`Rank.mark` of this process; empty where its launcher says what cannot be."""
    try:
        return Rank.current(environment).mark
    except InvalidCall:
        return ""


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


def gpu_list(text: str) -> tuple[int, ...]:
    """GPUs by number, such as ``0-3,6``.

    Raises:
        InvalidCall: It is no such list.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdecimal() or not (last.isdecimal() if dash else True):
            raise InvalidCall(f"GPUs are given like 0-3,6, found {text!r}")
        found += range(int(first), int(last or first) + 1)
        if dash and int(last) < int(first):
            raise InvalidCall(f"GPUs are given from low to high, found {part.strip()!r}")
    return tuple(found)


def separate_gpus(
    policy: str | None, render: str | None, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Let this process compute on one GPU and its workers render on another, by local rank.

    To be called before anything uses CUDA.

    Args:
        policy: GPUs to compute on, such as ``0-3``, dealt to the ranks in turn; None changes
            nothing.
        render: GPUs to render on, likewise.
        environment: Gets what chooses them.

    Raises:
        InvalidCall: These are no GPUs, or not among those that are visible.
    """
    rank = local_rank(environment) or 0
    lists = {"--policy-gpus": policy, "--render-gpus": render}
    chosen: dict[str, str] = {}
    for flag, text in lists.items():
        if text is not None:
            numbers = gpu_list(text)
            _require_visible(flag, numbers, environment)
            chosen[flag] = str(numbers[rank % len(numbers)])
    if "--policy-gpus" in chosen:
        environment[_VISIBLE] = chosen["--policy-gpus"]
    if "--render-gpus" in chosen:
        environment[RENDER_GPU] = chosen["--render-gpus"]


def _require_visible(flag: str, numbers: Sequence[int], environment: Mapping[str, str]) -> None:
    if _VISIBLE not in environment:
        return
    visible = _visible(environment)
    if not all(name.isdecimal() for name in visible):
        raise InvalidCall(
            f"{flag} gives numbers, but {_VISIBLE}={environment[_VISIBLE]} does not; give numbers"
            " there too, or unset it"
        )
    for number in numbers:
        if str(number) not in visible:
            raise InvalidCall(
                f"{flag} names GPU {number}, which {_VISIBLE}={environment[_VISIBLE]} hides"
            )


def _visible(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that CUDA sees, where the variable is set: those before the first that is none."""
    names = (name.strip() for name in environment.get(_VISIBLE, "").split(","))
    return list(takewhile(lambda name: name not in ("", "-1"), names))
