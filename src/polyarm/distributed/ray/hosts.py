"""The nodes that play: started where there are none, left out where they would play otherwise."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyarm.contracts import EnvSpec
from polyarm.distributed.ray.cluster import Cluster, last_line, why
from polyarm.distributed.ray.dealing import Pace
from polyarm.distributed.ray.node import EvalNode, Facts, Report, comparable
from polyarm.distributed.ray.placement import Node, Placement, env_nbytes, place
from polyarm.errors import (
    BuildError,
    DisplayError,
    HostLimit,
    MissingExtra,
    PolyarmError,
    RunConflict,
    WorkerError,
)
from polyarm.rollout.filming import cameras_to_film
from polyarm.rollout.journal import differences
from polyarm.rollout.options import EvalOptions
from polyarm.rollout.plan import Group

_log = logging.getLogger("polyarm")

UNFIT = (MissingExtra, BuildError, DisplayError, HostLimit, RunConflict, ImportError)
"""What is wrong with a node, not with the run."""
LOOK_S = 0.5
"""How long to wait for an answer before looking at other things."""
_LOOK_FOR_NODES_S = 2.0
DEATHS = 3
"""An actor that dies so often without having finished an episode is not started again."""
_CLOSE_S = 5.0
LONG_S = 10.0
"""Who has waited so long for something of the cluster is told so."""


@dataclass(slots=True, eq=False)
class Host:
    """A node that plays, or is about to.

    Attributes:
        node: Which.
        name: Of this actor: a node that gets another actor gets another name.
        actor: Ray's handle.
        placement: What it asked for.
        examined: The answer that is waited for before it may play.
        ready: Whether it may.
        calls: Answers that are waited for, in order.
        turn: The last turn that it was told of.
        report: The last that it said.
        pace: How fast it plays.
    """

    node: Node
    name: str
    actor: Any
    placement: Placement
    examined: Any
    ready: bool = False
    calls: list[Any] = field(default_factory=list)
    turn: int = -1
    report: Report = field(default_factory=Report)
    pace: Pace = field(default_factory=Pace)


class Hosts:
    """All nodes of a cluster that play.

    Args:
        cluster: Whose.
        options: Of the evaluation.
        groups: Its tasks.
        policy: Whether nodes have policies of their own that may use a GPU.
    """

    def __init__(
        self, cluster: Cluster, options: EvalOptions, groups: Sequence[Group], *, policy: bool
    ) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        self._options = options
        self._groups = list(groups)
        self._policy = policy
        self._frames = bool(options.cameras) or options.recorded != "none"
        self._env_nbytes = env_nbytes(
            [self._built(spec) for group in groups for spec in group.specs]
        )
        self._hosts: dict[str, Host] = {}
        self._deaths: dict[str, int] = {}
        self._started = 0
        self._looked_at = -_LOOK_FOR_NODES_S
        self._idle_since = time.monotonic()
        self._warned = False
        self.unfit: dict[Node, Exception] = {}

    def __iter__(self) -> Iterator[Host]:
        return iter(list(self._hosts.values()))

    def __len__(self) -> int:
        return len(self._hosts)

    def look(self) -> None:
        """Start an actor on every node that has none; at once after a loss, else now and then."""
        if time.monotonic() - self._looked_at < _LOOK_FOR_NODES_S:
            return
        self._looked_at = time.monotonic()
        taken = {host.node.id for host in self} | {node.id for node in self.unfit}
        for node in self._cluster.nodes():
            if node.id not in taken:
                try:
                    self._start(node)
                except HostLimit as error:
                    self.leave_out(node, error)
        if any(host.ready for host in self):
            self._idle_since, self._warned = time.monotonic(), False
        elif not self._warned and time.monotonic() - self._idle_since > LONG_S:
            self._warned = True
            _log.warning(
                "no node has started to play for %g s: are its cores taken? We wait for them;"
                " `ray status` says who has them",
                LONG_S,
            )

    def wait(self) -> None:
        """Until a node has said something, or for a moment."""
        awaited = [call for host in self for call in host.calls[:1]]
        awaited += [host.examined for host in self if not host.ready]
        if awaited:
            self._ray.wait(awaited, timeout=LOOK_S)
        else:
            time.sleep(LOOK_S)

    def has_come(self, answer: Any) -> bool:
        """Whether an answer is here."""
        return bool(self._ray.wait([answer], timeout=0)[0])

    def examine(self, host: Host, protocol: Mapping[str, Any]) -> None:
        """Let a node play, if its answer is here and its episodes are those of this protocol.

        Raises:
            MissingExtra: It has not what the suites need.
            RunConflict: Its episodes would be others.
        """
        if host.ready or not self.has_come(host.examined):
            return
        facts = self._facts(host)
        if found := differences(comparable(protocol), facts.protocol):
            raise RunConflict(
                f"episodes on node {host.node} would not be those of this run, because these differ"
                f" (here is this process, there the node):\n  " + "\n  ".join(found)
            )
        host.ready = True

    def first_facts(self) -> Facts:
        """What the first node says that can say something.

        Raises:
            PolyarmError: What is wrong with all nodes, or with the run.
            WorkerError: A node raised something else.
        """
        while True:
            self.look()
            self.require_some()
            self.wait()
            for host in self:
                if self.has_come(host.examined):
                    try:
                        return self._facts(host)
                    except self._ray.exceptions.RayTaskError as error:
                        self.refuse(host, why(error))
                    except self._ray.exceptions.RayError as error:
                        self.lost(host, error)
                    except MissingExtra as error:
                        self.refuse(host, error)

    def _facts(self, host: Host) -> Facts:
        facts: Facts = self._ray.get(host.examined)
        if facts.lacking:
            raise MissingExtra(f"node {host.node} lacks {'; '.join(facts.lacking)}")
        return facts

    def refuse(self, host: Host, error: Exception) -> None:
        """A node raised: do without it if that is its own fault, else the run ends.

        Raises:
            PolyarmError: What it raised.
            WorkerError: It raised something else.
        """
        if not isinstance(error, UNFIT):
            if isinstance(error, PolyarmError):
                raise error
            raise WorkerError(f"node {host.node} failed: {error}") from error
        self.leave_out(host.node, error)
        self.remove(host)

    def lost(self, host: Host, error: Exception) -> None:
        """An actor is gone, maybe with its node; another is started if the node is still there."""
        self.remove(host)
        reason = last_line(error)
        deaths = self._deaths[host.node.id] = self._deaths.get(host.node.id, 0) + 1
        if deaths >= DEATHS:
            message = f"actors on node {host.node} died {deaths} times in a row: {reason}"
            self.leave_out(host.node, WorkerError(message))
        self._looked_at = -_LOOK_FOR_NODES_S

    def works(self, host: Host) -> None:
        """A node has finished an episode: its failures are no longer in a row."""
        self._deaths.pop(host.node.id, None)

    def leave_out(self, node: Node, error: Exception) -> None:
        """Do without a node."""
        self.unfit[node] = error
        _log.warning("node %s is left out: %s", node, error)

    def remove(self, host: Host) -> None:
        """Forget an actor, and see that it ends."""
        self._hosts.pop(host.name, None)
        self._ray.kill(host.actor)

    def require_some(self) -> None:
        """Fail if nobody is left who could play.

        Raises:
            WorkerError: The cluster is empty; or what is wrong with its nodes.
        """
        if self._hosts:
            return
        if self.unfit:
            raise next(iter(self.unfit.values()))
        raise WorkerError(
            "the Ray cluster has no node with a CPU (left): `ray status` says what there is, and"
            " the same command goes on where it was"
        )

    def close(self) -> None:
        """End all actors; envs are given a moment to close. The next look starts others."""
        leaving = [host.actor.close.remote() for host in self]
        if leaving:
            self._ray.wait(leaving, num_returns=len(leaving), timeout=_CLOSE_S)
        for host in self:
            self.remove(host)
        self._looked_at = -_LOOK_FOR_NODES_S

    def _start(self, node: Node) -> None:
        options = self._options
        placement = place(
            node, options.num_envs, self._env_nbytes, policy=self._policy, frames=self._frames
        )
        own = replace(options, ray=None, num_envs=placement.num_envs, stop_after=None)
        kind = self._ray.remote(EvalNode).options(
            scheduling_strategy=self._cluster.on(node), max_restarts=0, **placement.asked()
        )
        actor = kind.remote(own, str(Path.cwd()))
        self._started += 1
        name = f"{node.id[:8]}.{self._started}"
        examined = actor.examine.remote(self._groups)
        self._hosts[name] = Host(node, name, actor, placement, examined)

    def _built(self, spec: EnvSpec) -> EnvSpec:
        """An env as nodes build it: with cameras for videos, whatever the policy sees."""
        if self._options.recorded == "none":
            return spec
        return replace(spec, cameras=cameras_to_film(spec.cameras, spec.suite))
