"""What is asked of a node of a cluster: envs, cores, GPUs and memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from polyarm.errors import HostLimit

_SHARE = 0.8
"""Of a node's memory, what envs may take."""
RENDERING = 0.25
"""Share of a GPU that a node's envs ask for where another actor has the policy."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster, as Ray describes it.

    Attributes:
        id: Ray's name of it.
        address: Its IP address, for people.
        cpus: How many it offers.
        gpus: The same for GPUs.
        memory: Bytes that it offers.
    """

    id: str
    address: str
    cpus: float
    gpus: float
    memory: int

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Node:
        """From an entry of ``ray.nodes()``."""
        offers = described["Resources"]
        return cls(
            described["NodeID"],
            described["NodeManagerAddress"],
            offers.get("CPU", 0.0),
            offers.get("GPU", 0.0),
            int(offers.get("memory", 0)),
        )

    def __str__(self) -> str:
        return f"{self.address} ({self.id[:8]})"


@dataclass(frozen=True, slots=True)
class Placement:
    """What an actor asks of its node, and how many envs it has.

    Attributes:
        num_envs: Envs at once.
        num_cpus: Cores: one per env, as many as there are at most.
        num_gpus: Share of a GPU.
        memory: Bytes.
    """

    num_envs: int
    num_cpus: float
    num_gpus: float
    memory: int


def place(
    node: Node, num_envs: int | None, env_nbytes: int, *, policy: bool, frames: bool
) -> Placement:
    """What to ask of a node.

    Args:
        node: Which.
        num_envs: Envs that are wanted; None for two per core.
        env_nbytes: What one more env takes, if it is known, else 0.
        policy: Whether a policy that may use a GPU runs there, too.
        frames: Whether frames are rendered there.

    Raises:
        HostLimit: Not even one env fits.
    """
    envs = num_envs or max(4, 2 * int(node.cpus))
    if env_nbytes and node.memory:
        room = int(node.memory * _SHARE) // env_nbytes
        if room < 1:
            raise HostLimit(
                f"node {node} offers {node.memory / 2**20:.0f} MiB, one env takes"
                f" {env_nbytes / 2**20:.0f} MiB"
            )
        envs = min(envs, room)
    gpus = 0.0
    if node.gpus >= 1:
        gpus = 1.0 if policy else RENDERING if frames else 0.0
    return Placement(envs, min(float(envs), node.cpus), gpus, envs * env_nbytes)


def deal_slots(num_envs: int, nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """The slots of each node, neighbours together, by how many cores it has.

    Returns:
        The first slot and the one after the last, per node; equal where it has none.
    """
    cores = sum(node.cpus for node in nodes)
    bounds, before = [0], 0.0
    for node in nodes:
        before += node.cpus
        bounds.append(round(num_envs * before / cores))
    return list(pairwise(bounds))
