"""The player of a cluster: deals episodes to nodes as they finish, and takes their results.

Results go to the caller, who has the journal: what a lost node had finished and reported is
there, the rest is dealt again under the same keys.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.distributed.ray.cluster import Cluster, last_line, why
from polyarm.distributed.ray.dealing import Deal
from polyarm.distributed.ray.hosts import UNFIT, Host, Hosts
from polyarm.distributed.ray.node import Report
from polyarm.distributed.ray.serving import ServedPolicy
from polyarm.errors import InvalidCall, PolicyError
from polyarm.policies.loading import fits_any_space
from polyarm.report.encoding import plain
from polyarm.rollout.acting import PolicyLike, known_space
from polyarm.rollout.dataset import DatasetExport
from polyarm.rollout.journal import storage_errors
from polyarm.rollout.options import EvalOptions
from polyarm.rollout.plan import Group
from polyarm.rollout.player import Player, Turn
from polyarm.rollout.schedule import Schedule

_log = logging.getLogger("polyarm")

_CALLS = 2
"""Calls that are under way at each node: while one is answered, the next is at work."""
_STOP_S = 10.0
_BUILT_IN = ("random", "zero", "expert")
_PLAIN = ("replay:", "openpi:", "vla-eval:")
"""Beginnings of the names of policies that need no GPU on the nodes, like those built in."""


@dataclass(frozen=True, slots=True)
class _Round:
    """A turn that is being played.

    Attributes:
        number: Counts turns.
        turn: What is played.
        deal: Who has which episode.
        policy: What acts, in Ray's store.
        fingerprint: Of a policy that nodes load by its name; else None.
    """

    number: int
    turn: Turn
    deal: Deal
    policy: Any
    fingerprint: Any


class RayPlayer(Player):
    """Plays turns on the nodes of a Ray cluster; its actors and their envs stay between turns.

    Args:
        options: Of the evaluation: ``ray`` says which cluster, ``num_envs`` are each node's.
        folder: Where videos and trajectories go, if there are any; nodes send them here.
        observed_slots: None: all slots are recorded.
        dataset: None: not on a cluster.
    """

    def __init__(
        self,
        options: EvalOptions,
        folder: Path | None = None,
        observed_slots: Sequence[int] | None = None,
        dataset: DatasetExport | None = None,
    ) -> None:
        if dataset is not None:
            raise InvalidCall("datasets cannot be saved on a Ray cluster: leave out ray")
        if observed_slots is not None:
            raise InvalidCall("observed_slots are of one machine: leave them out, or ray")
        super().__init__(options, folder)
        self._cluster: Cluster | None = None
        self._hosts: Hosts | None = None
        self._served: ServedPolicy | None = None
        self._plain = _is_plain(options.policy)
        self._central: bool | None = None
        self._groups: list[Group] = []
        self._protocol: dict[str, Any] = {}
        self._rounds = 0
        self._walls: dict[str, Mapping[str, float]] = {}

    @property
    def running(self) -> int:
        """Episodes under way, on all nodes."""
        return sum(host.report.running for host in self._hosts or ())

    def protocol(self, groups: Sequence[Group]) -> dict[str, Any]:
        """As on one machine, except that it is the nodes that render."""
        self._groups = list(groups)
        self._protocol = super().protocol(groups)
        hosts = self._connect()
        if self._options.cameras:
            self._protocol["renderer"] = hosts.first_facts().protocol["renderer"]
        return self._protocol

    def play(self, turn: Turn, schedule: Schedule | None = None) -> Iterator[EpisodeResult | None]:
        """Play a turn; yields None now and then."""
        assert schedule is None, "a cluster deals its episodes itself"
        self._expect(turn.policy)
        hosts = self._connect()
        current = self._round(turn)
        while current.deal.open and not self.stopping:
            hosts.look()
            hosts.require_some()
            for host in hosts:
                if host.ready:
                    self._tell(hosts, host, current)
            hosts.wait()
            for host in hosts:
                yield from self._hear(hosts, host, current)
            yield from self._serve_again(hosts, current)
            yield None
        deadline = time.monotonic() + _STOP_S
        while any(host.calls for host in hosts) and time.monotonic() < deadline:
            hosts.wait()
            for host in hosts:
                yield from self._hear(hosts, host, current)
        yield from self._serve_again(hosts, current)
        if self.stopping:
            self.close()  # slots are in the middle of episodes

    def forget(self) -> None:
        """Start counting seconds, and taking notes, anew."""
        super().forget()
        self._walls.clear()

    def close(self) -> None:
        """End all actors, and the connection."""
        super().close()
        if self._hosts is not None:
            self._hosts.close()
            self._hosts = None
        if self._served is not None:
            self._served.close()
            self._served = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # A turn begins.

    def _connect(self) -> Hosts:
        if self._cluster is None:
            assert self._options.ray is not None
            self._cluster = Cluster(self._options.ray)
        if self._hosts is None:
            own = not self._is_central(self._cluster) and not self._plain
            self._hosts = Hosts(self._cluster, self._options, self._groups, policy=own)
        self._hosts.look()
        return self._hosts

    def _expect(self, policy: PolicyLike) -> None:
        """Ask for GPUs after all, if this is no policy such as the options have led to expect."""
        if not self._plain or _is_plain(policy):
            return
        self._plain, self._central = False, None
        if self._cluster is None or self._hosts is None or self._is_central(self._cluster):
            return
        if any(host.node.gpus >= 1 for host in self._hosts):
            self._hosts.close()
            self._hosts = None

    def _round(self, turn: Turn) -> _Round:
        assert self._cluster is not None
        self._rounds += 1
        deal = Deal(turn.missing, self._options.max_attempts)
        policy = self._cluster.ray.put(turn.policy)
        fingerprint = None
        if self._is_central(self._cluster):
            if self._served is None:
                self._served = ServedPolicy(self._cluster, self._options, lambda: self.stopping)
            self._served.load(policy, turn.group)
        elif isinstance(turn.policy, str):
            fingerprint = plain(self.policies.fingerprint(turn.policy, turn.group))
        return _Round(self._rounds, turn, deal, policy, fingerprint)

    def _is_central(self, cluster: Cluster) -> bool:
        """Whether one actor has the policy for all; decided once, by the nodes that are there."""
        if self._central is None:
            with_gpu = [node.gpus >= 1 for node in cluster.nodes()]
            some = any(with_gpu) and not all(with_gpu) and not self._plain
            asked = self._options.ray_policy
            auto = some and self._fits_without_envs()
            self._central = auto if asked == "auto" else asked == "central"
        return self._central

    def _fits_without_envs(self) -> bool:
        """Whether the policy can be made where no env is, though only envs may know their space."""
        known = (known_space(group) is not None for group in self._groups)
        return fits_any_space(self._options.policy) or all(known)

    # Telling and hearing.

    def _tell(self, hosts: Hosts, host: Host, current: _Round) -> None:
        """Let a node go on, with more episodes if it needs some."""
        turn, deal = current.turn, current.deal
        slots = min(host.placement.num_envs, turn.need.missing)
        ahead = host.pace.ahead(slots, len(turn.group.specs))
        while len(host.calls) < _CALLS:
            keys = deal.deal(host.name, slots, ahead, len(hosts))
            if not deal.held(host.name):
                return
            if host.turn != current.number:
                self._begin(host, current)
            host.calls.append(host.actor.go_on.remote(keys, more=deal.waiting > 0))

    def _begin(self, host: Host, current: _Round) -> None:
        turn, acting = current.turn, current.policy
        if self._served is not None:
            acting = self._served.acting_on(host.name)
            self.on_gpu |= self._served.on_gpu
        number = self._groups.index(turn.group)
        begun = host.actor.begin.remote(turn.label, acting, number, turn.group, turn.need)
        host.calls.append(begun)
        if current.fingerprint is not None:
            check = host.actor.require_same_policy.remote(turn.policy, current.fingerprint)
            host.calls.append(check)
        host.turn = current.number

    def _hear(self, hosts: Hosts, host: Host, current: _Round) -> list[EpisodeResult]:
        """What a node has said: results, or that it is unfit or gone."""
        assert self._cluster is not None
        ray, heard = self._cluster.ray, []
        try:
            hosts.examine(host, self._protocol)
            while host.calls and hosts.has_come(host.calls[0]):
                answer = ray.get(host.calls.pop(0))
                if isinstance(answer, Report):
                    heard += self._take(hosts, host, answer, current.deal)
        except ray.exceptions.RayTaskError as error:
            return heard + self._refuse(hosts, host, current, why(error))
        except ray.exceptions.RayError as error:
            return heard + self._lose(hosts, host, current, error)
        except UNFIT as error:
            return heard + self._refuse(hosts, host, current, error)
        return heard

    def _take(self, hosts: Hosts, host: Host, report: Report, deal: Deal) -> list[EpisodeResult]:
        host.report = report
        host.pace.finished(len(report.results), time.monotonic())
        self.on_gpu |= report.on_gpu
        self.add_notes(report.notes)
        self._walls[host.name] = report.wall
        for name in self.wall:  # nodes spend their seconds side by side
            self.wall[name] = sum(each[name] for each in self._walls.values()) / len(self._walls)
        taken = []
        for result in report.results:
            lost = deal.finish(host.name, result.key)
            if lost is not None:
                hosts.works(host)
                if self._served is not None:
                    self._served.works()
                self._keep_files(result, report.files)
                taken.append(replace(result, attempts=result.attempts + lost))
        return taken

    def _keep_files(self, result: EpisodeResult, files: Mapping[str, bytes]) -> None:
        for name in filter(None, (*result.videos, result.trajectory)):
            assert self._folder is not None
            path = self._folder / name
            part = path.with_name(f"{path.name}.part")
            with storage_errors(self._folder):
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(files[name])
                part.replace(path)

    def _lose(
        self, hosts: Hosts, host: Host, current: _Round, error: Exception
    ) -> list[EpisodeResult]:
        """A node's actor is gone; returns episodes that there is no hope for."""
        reason = last_line(error)
        again = current.deal.held(host.name)
        _log.warning("lost node %s; %d episodes are dealt again (%s)", host.node, again, reason)
        if self._served is not None:
            self._served.forget(host.name)
        hosts.lost(host, error)
        return self._deal_again(host, current, reason)

    def _refuse(
        self, hosts: Hosts, host: Host, current: _Round, error: Exception
    ) -> list[EpisodeResult]:
        """A node raised: its own fault, or that of a policy that is gone; else the run ends."""
        if self._served is not None and isinstance(error, PolicyError):
            self._served.look()
            if self._served.lost:
                return []  # nobody can go on: see below
        hosts.refuse(host, error)
        self.add_notes([f"Node {host.node} was left out: {error}"])
        return self._deal_again(host, current, str(error))

    def _serve_again(self, hosts: Hosts, current: _Round) -> list[EpisodeResult]:
        """If the central policy is lost, begin its episodes again, with another actor of it.

        What it knew about them is gone, and they are in the middle; so all nodes start afresh.
        """
        if self._served is None or not self._served.lost:
            return []
        hopeless = []
        for host in hosts:
            hopeless += self._deal_again(host, current, "the central policy was lost")
        hosts.close()
        if current.deal.open and not self.stopping:
            self._served.load_again()
        return hopeless

    def _deal_again(self, host: Host, current: _Round, reason: str) -> list[EpisodeResult]:
        label = current.turn.label
        return [_hopeless(label, key, reason) for key in current.deal.lose(host.name)]


def _is_plain(policy: PolicyLike) -> bool:
    """Whether a policy needs no GPU on the nodes."""
    return isinstance(policy, str) and (policy in _BUILT_IN or policy.startswith(_PLAIN))


def _hopeless(label: str, key: EpisodeKey, reason: str) -> EpisodeResult:
    message = f"every node that played it was lost: {reason}"
    about = {"kind": "died", "phase": "step", "message": message}
    return EpisodeResult(
        key, "error", 0, 0.0, 0.0, error=about, policy=label, finished_at=time.time()
    )
