"""Starts the actors that hold a vector env's slots, and others where those have been lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyarm.distributed.ray.cluster import Cluster, why
from polyarm.distributed.ray.placement import (
    Node,
    Placement,
    deal_slots,
    emptiest,
    env_nbytes,
    place,
)
from polyarm.distributed.ray.shard import EnvNode, Shard
from polyarm.errors import BuildError, InvalidCall, WorkerError
from polyarm.vector.episodes import check_default_seed
from polyarm.vector.make import specify
from polyarm.vector.tasks import expand_tasks, know_indices, tell_left_out

_log = logging.getLogger("polyarm")

_START_S = 120.0
"""How long a node may take to give an actor its cores, besides the time for building envs."""
_LONG_S = 10.0


class Builder:
    """Knows what is built, and where there is room for it.

    Args:
        where: Which cluster, as for `Cluster`.
        arguments: Of `make_vec`.

    Attributes:
        cluster: Whose nodes have the slots.
        shards: What has been built so far, in the order of the slots.

    Raises:
        InvalidCall: There is no such cluster.
        UnknownName: For a suite, task, camera or option that does not exist.
    """

    def __init__(self, where: str, arguments: Mapping[str, Any]) -> None:
        self._arguments = {**arguments, **arguments["suite_options"]}
        del self._arguments["suite_options"]
        self._num_envs: int = arguments["num_envs"]
        self._tasks = expand_tasks(arguments["tasks"])
        tell_left_out(self._tasks, self._num_envs)
        cameras = () if arguments["frames"] == "none" else arguments["cameras"]
        self._renders = bool(cameras)
        specs = [
            specify(task, cameras, arguments["image_size"], arguments["suite_options"])
            for task in self._tasks
        ]
        self._env_nbytes = env_nbytes(specs)
        episodic = know_indices(specs)
        check_default_seed(arguments["seed"], self._num_envs, episodic=episodic)
        self.cluster = Cluster(where)  # last: what cannot be built needs none
        self.shards: list[Shard] = []

    def build(self) -> None:
        """Deal all slots to the nodes that are there, and build them side by side.

        Raises:
            BuildError: A node cannot build its envs.
            HostLimit: The nodes have not enough memory.
            InvalidCall: There is no node.
        """
        nodes = self.cluster.nodes()
        if not nodes:
            raise InvalidCall("the Ray cluster has no node with a CPU; see `ray status`")
        dealt = deal_slots(self._num_envs, nodes, self._env_nbytes)
        for node, (first, stop) in zip(nodes, dealt, strict=True):
            if first < stop:
                shard = Shard(first, stop, node, None)
                shard.actor = self._start(shard, self._placement(shard, self._env_nbytes), {})
                self.shards.append(shard)
        for shard in self.shards:
            self._await_start(shard)

    def build_again(self, shard: Shard) -> None:
        """Build lost slots on their node if it is there, else on the emptiest of those left.

        Raises:
            BuildError: They cannot be built.
            WorkerError: There is no node left.
        """
        while True:
            if shard.node.id not in self._alive():
                shard.node = self._emptiest(shard.count)
            # Cores and memory may be taken by the slots that the node has already: they share them.
            placement = replace(self._placement(shard, 0), num_cpus=0.0)
            shard.actor = self._start(shard, placement, self._following(shard))
            try:
                self._await_start(shard)
            except BuildError:
                # An actor's end is seen at once, its node's only when health checks have failed.
                if shard.node.id in self._alive():
                    raise
            else:
                return

    def _alive(self) -> set[str]:
        return {node.id for node in self.cluster.nodes()}

    def _emptiest(self, more: int) -> Node:
        nodes = self.cluster.nodes()
        if not nodes:
            raise WorkerError("the Ray cluster has no node with a CPU left")
        held = {
            node: sum(shard.count for shard in self.shards if shard.node == node) for node in nodes
        }
        return emptiest(held, more, self._env_nbytes)

    def _placement(self, shard: Shard, nbytes: int) -> Placement:
        return place(shard.node, shard.count, nbytes, policy=False, frames=self._renders)

    def _following(self, shard: Shard) -> dict[str, Any]:
        """What a new actor goes on with: the episodes after those that were lost."""
        if shard.last is None:
            return {}
        if shard.about["episodic"]:
            return {"episodes": shard.last.episodes + self._num_envs}
        entropy = np.random.SeedSequence(
            self._arguments["seed"] or 0, spawn_key=(shard.first, shard.losses)
        )
        return {"seeds": [int(each) for each in entropy.generate_state(shard.count)]}

    def _start(self, shard: Shard, placement: Placement, following: Mapping[str, Any]) -> Any:
        slots = range(shard.first, shard.stop)
        tasks = [self._tasks[slot % len(self._tasks)] for slot in slots]
        arguments = {**self._arguments, "tasks": tasks, "num_envs": shard.count}
        kind = self.cluster.ray.remote(EnvNode).options(
            scheduling_strategy=self.cluster.on(shard.node), max_restarts=0, **placement.asked()
        )
        return kind.remote(arguments, shard.first, self._num_envs, str(Path.cwd()), following)

    def _await_start(self, shard: Shard) -> None:
        ray = self.cluster.ray
        patience_s = self._arguments["build_timeout_s"] + _START_S
        described = shard.actor.describe.remote()
        try:
            if not ray.wait([described], timeout=_LONG_S)[0]:
                _log.warning(
                    "still waiting for node %s: `ray status` says who has its cores and memory",
                    shard.node,
                )
            shard.about = ray.get(described, timeout=patience_s)
        except ray.exceptions.GetTimeoutError:
            raise BuildError(
                f"node {shard.node} has not built {shard.count} envs in {patience_s:g} s; has it"
                f" cores and memory to spare? `ray status` says so"
            ) from None
        except ray.exceptions.RayError as error:
            told = why(error) if hasattr(error, "cause") else error
            raise BuildError(f"node {shard.node} cannot build its envs: {told}") from error
