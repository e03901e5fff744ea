"""What is asked of a node of a cluster: envs, cores, GPUs and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from polyarm import registry
from polyarm.contracts import EnvSpec, Footprint
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

    def room(self, env_nbytes: int) -> int | None:
        """How many envs fit; None if nobody says what they take, or what there is."""
        if not env_nbytes or not self.memory:
            return None
        return int(self.memory * _SHARE) // env_nbytes

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

    def asked(self) -> dict[str, float]:
        """Keyword arguments of Ray's ``options`` for an actor."""
        asked = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        return {**asked, "memory": self.memory} if self.memory else asked


def env_nbytes(specs: Sequence[EnvSpec]) -> int:
    """What the largest env takes in a node's memory, where its suite says so, else 0."""
    needs = [0]
    for spec in specs:
        measure = getattr(registry.load(spec.suite), "footprint", None)
        if measure is not None:
            need: Footprint = measure(spec)
            needs.append(need.host + need.graphics)
    return max(needs)


def place(
    node: Node, num_envs: int | None, env_nbytes: int, *, policy: bool, frames: bool
) -> Placement:
    """What to ask of a node.

    Args:
        node: Which.
        num_envs: Envs that are wanted; None for two per core, at least four.
        env_nbytes: What one more env takes, if it is known, else 0.
        policy: Whether a policy that may use a GPU runs there, too.
        frames: Whether frames are rendered there.

    Raises:
        HostLimit: Not even one env fits.
    """
    envs = num_envs or max(4, 2 * int(node.cpus))
    room = node.room(env_nbytes)
    if room == 0:
        raise HostLimit(
            f"node {node} offers {node.memory / 2**20:.0f} MiB, one env takes"
            f" {env_nbytes / 2**20:.0f} MiB"
        )
    if room is not None:
        envs = min(envs, room)
    gpus = 0.0
    if node.gpus >= 1:
        gpus = 1.0 if policy else RENDERING if frames else 0.0
    memory = 0 if room is None else envs * env_nbytes
    return Placement(envs, min(float(envs), node.cpus), gpus, memory)


def deal_slots(num_envs: int, nodes: Sequence[Node], env_nbytes: int) -> list[tuple[int, int]]:
    """The slots of each node, neighbours together.

    A batch waits for all of its nodes, so each slot goes where it leaves the most of a core to each
    slot, among the nodes whose memory holds one more.

    Args:
        num_envs: Slots in all.
        nodes: Which.
        env_nbytes: What one more env takes, if it is known, else 0.

    Returns:
        The first slot and the one after the last, per node; equal where it has none.

    Raises:
        HostLimit: They do not fit.
    """
    rooms = [node.room(env_nbytes) for node in nodes]
    counts = [0] * len(nodes)
    for _ in range(num_envs):
        fit = [place for place, room in enumerate(rooms) if room is None or counts[place] < room]
        if not fit:
            raise HostLimit(
                f"{num_envs} envs of {env_nbytes / 2**20:.0f} MiB do not fit into the memory that"
                f" the Ray cluster offers: {sum(counts)} do. Nodes say how much they offer, see"
                f" `ray status`; `ray start --memory=BYTES` sets it"
            )
        counts[min(fit, key=lambda place: (counts[place] + 1) / nodes[place].cpus)] += 1
    return list(pairwise(accumulate(counts, initial=0)))


def emptiest(held: Mapping[Node, int], more: int, env_nbytes: int) -> Node:
    """The node with the fewest slots per core, of those with memory for so many more if there are.

    Args:
        held: How many slots each has.
        more: How many it shall get.
        env_nbytes: What one more env takes, if it is known, else 0.
    """

    def crowding(node: Node) -> tuple[bool, float]:
        room = node.room(env_nbytes)
        return room is not None and held[node] + more > room, held[node] / node.cpus

    return min(held, key=crowding)
