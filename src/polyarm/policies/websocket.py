"""A policy that runs elsewhere, behind openpi's websocket protocol.

Every row of a batch is a request of its own, on a connection of its own, and all of them are under
way at once. An episode stays with one server from its beginning to its end.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EnvSpec, EpisodeKey, PolicyOutput
from polyarm.errors import PolicyError, WireError
from polyarm.policies import wire
from polyarm.policies.connections import Lane, LoopThread, Patience, Server, served
from polyarm.policies.mapping import (
    MAPPED_ORIENTATIONS,
    MAPPINGS,
    ObservationMapping,
    digest,
    load_mapping,
    mapping_from,
)

Array = NDArray[Any]

API_KEY = "POLYARM_API_KEY"
_DEFAULT_MAPPING = "libero"


@dataclass(slots=True)
class _Episode:
    lane: Lane
    asked: bool = False


class OpenPIPolicy:
    """Asks one or more policy servers; of openpi's kind, or ``polyarm serve``.

    Use it as a context manager, or call `close`, to close its connections at once.

    Args:
        addresses: ``ws://host:port`` each; episodes are shared out among them.
        mapping: What is sent: a name, a file, ``module:function`` or an `ObservationMapping`. By
            default what ``polyarm serve`` says that it wants, and openpi's LIBERO example else.
        api_key: By default the value of ``POLYARM_API_KEY``.
        patience: How long to wait for what.

    Raises:
        PolicyError: An address is none.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        mapping: str | ObservationMapping | None = None,
        *,
        api_key: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        key = (os.environ.get(API_KEY, "") if api_key is None else api_key).strip()
        self._servers = [
            Server(_checked_address(address), key, patience or Patience()) for address in addresses
        ]
        if not self._servers:
            raise PolicyError("a remote policy needs an address: openpi:ws://host:port")
        self._mapping = load_mapping(mapping) if isinstance(mapping, str) else mapping
        self._thread = LoopThread()
        self._lanes: list[Lane] = []
        self._episodes: dict[EpisodeKey, _Episode] = {}
        self._finalizer = weakref.finalize(self, _close, self._thread, self._lanes)

    def __enter__(self) -> OpenPIPolicy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; asking again opens new ones."""
        self._episodes.clear()
        for server in self._servers:
            server.idle.clear()
            server.episodes = 0
        _close(self._thread, self._lanes)

    # What servers say of themselves.

    def connect(self) -> None:
        """Wait until every server answers, and read what it says of itself.

        Raises:
            PolicyError: One does not, or they serve different policies.
        """
        new = [server for server in self._servers if server.metadata is None]
        lanes = [self._lane(server) for server in new]
        self._wait([self._thread.submit(lane.open()) for lane in lanes])
        for lane in lanes:
            lane.server.idle.append(lane)
        if new:
            told = {self._digest(server) for server in self._servers}
            if len(told) > 1:
                addresses = ", ".join(server.address for server in self._servers)
                raise PolicyError(f"{addresses} serve different policies; name equal ones only")

    @property
    def mapping(self) -> ObservationMapping:
        """What is sent; asks the server if nobody has said."""
        if self._mapping is None:
            self.connect()
            told = _ours(self._servers[0]).get("mapping")
            self._mapping = (
                MAPPINGS[_DEFAULT_MAPPING]
                if told is None
                else mapping_from(told, f"the metadata of {self._servers[0].address}")
            )
        return self._mapping

    @property
    def execute(self) -> int | None:
        """Actions executed before it is asked again, unless the run says otherwise."""
        return self.mapping.execute

    @property
    def needs_frames(self) -> bool:
        """Whether frames are sent."""
        if self._mapping is not None and not self._mapping.needs_frames:
            return False
        self.connect()
        told = all(_ours(server).get("needs_frames", True) for server in self._servers)
        return told and self.mapping.needs_frames

    @property
    def row_independent(self) -> bool:
        """Whether every server promises it; openpi's draws noise in the order of requests."""
        return all(bool(_ours(server).get("row_independent")) for server in self._servers)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Mapping and server: what ``polyarm serve`` says it serves, or else the addresses.

        The server's noise is not ours to fix: ``noise`` is ``"remote"``.
        """
        self.connect()
        about: dict[str, Any] = {
            "policy": "openpi",
            "noise": "remote",
            "mapping": digest(self.mapping.table),
            "execute": self.mapping.execute,
        }
        if told := _ours(self._servers[0]).get("fingerprint"):
            return {**about, "served": str(told)}
        metadata = dict(self._servers[0].metadata or {})
        addresses = sorted(server.address for server in self._servers)
        return {**about, "addresses": addresses, "metadata": digest(_plain(metadata))}

    @staticmethod
    def _digest(server: Server) -> str:
        return str(_ours(server).get("fingerprint") or digest(_plain(server.metadata)))

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse an env whose frames are turned otherwise than the mapping takes them.

        Raises:
            PolicyError: A model would see everything upside down.
        """
        delivered = spec.options.get("orientation")
        for name, taken in MAPPED_ORIENTATIONS.items():
            if self.mapping == MAPPINGS[name] and delivered not in (None, taken):
                others = [one for one in MAPPED_ORIENTATIONS if one != name]
                raise PolicyError(
                    f"{spec.name} delivers frames with orientation={delivered}, and the mapping "
                    f"{name!r} takes {taken}; add @{others[0]} to the policy's name, or "
                    f"--suite-options orientation={taken}"
                )

    # Episodes.

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin: each is pinned to the server that has the fewest."""
        self.connect()
        self.end(episodes)
        for key in episodes:
            server = min(self._servers, key=lambda server: server.episodes)
            server.episodes += 1
            self._episodes[key] = _Episode(server.idle.pop() if server.idle else self._lane(server))

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes are over; their connections serve others."""
        for key in episodes:
            if (episode := self._episodes.pop(key, None)) is not None:
                episode.lane.server.episodes -= 1
                episode.lane.server.idle.append(episode.lane)

    def act(self, batch: Batch) -> Array | PolicyOutput:
        """The servers' actions, ``(B, K, …)``, and extras if they send any.

        Raises:
            PolicyError: A server failed, hung, or answered what is no decision; names the row.
        """
        # Each row is on its way before the next one is packed.
        futures = [self._ask(batch, row) for row in range(len(batch))]
        replies = self._wait(futures)
        rows = [self._decision(batch, row, reply) for row, reply in enumerate(replies)]
        (first, named), *others = rows
        for row, (actions, own) in enumerate(others, start=1):
            if actions.shape != first.shape or set(own) != set(named):
                raise PolicyError(
                    f"a server answered with actions of shape {actions.shape} and extras"
                    f" {sorted(own)}, to another row of the batch with {first.shape} and"
                    f" {sorted(named)}",
                    row=row,
                )
        extras = {name: np.stack([own[name] for _, own in rows]) for name in named}
        stacked = np.stack([actions for actions, _ in rows])
        return PolicyOutput(stacked, extras) if extras else stacked

    def _ask(self, batch: Batch, row: int) -> concurrent.futures.Future[bytes]:
        key = batch.keys[row]
        if key not in self._episodes:
            self.begin([key])
        episode = self._episodes[key]
        ours = bool(_ours(episode.lane.server))
        request = self.mapping.request(batch, row)
        if ours:  # others would take these for observations
            told = [key.suite, key.task, key.index, key.repeat]
            request["polyarm"] = {"episode": told, "step": int(batch.steps[row])}
            request["reset"] = not episode.asked
        resend = not (ours and episode.asked)
        episode.asked = True
        try:
            message = wire.pack(request)
        except WireError as error:
            raise PolicyError(f"the request about {key}: {error}", row=row) from error
        return self._thread.submit(episode.lane.ask(message, resend=resend))

    def _decision(self, batch: Batch, row: int, reply: bytes) -> tuple[Array, dict[str, Array]]:
        server = self._episodes[batch.keys[row]].lane.server
        try:
            found = wire.unpack(reply, server.patience.max_nbytes)
        except WireError as error:
            raise PolicyError(f"{server.address} sent {error}", row=row) from error
        if not isinstance(found, Mapping) or "actions" not in found:
            keys = ", ".join(map(str, found)) if isinstance(found, Mapping) else repr(found)[:100]
            raise PolicyError(f"{server.address} answered without actions: {keys}", row=row)
        actions, extras = found["actions"], found.get("extras") if _ours(server) else None
        if not isinstance(actions, np.ndarray) or actions.ndim < 1 or not len(actions):
            raise PolicyError(
                f"{server.address} answered with actions that are no chunk (H, A):"
                f" {np.shape(actions)} {type(actions).__qualname__}",
                row=row,
            )
        given = extras if isinstance(extras, Mapping) else {}
        return actions, {str(name): np.asarray(value) for name, value in given.items()}

    # Lanes.

    def _lane(self, server: Server) -> Lane:
        lane = Lane(server)
        self._lanes.append(lane)
        return lane

    def _wait(self, futures: Sequence[concurrent.futures.Future[Any]]) -> list[Any]:
        """All results; if one fails, the others are given up."""
        replies = []
        # Each has deadlines of its own; this one is for a thread that is no more.
        deadline = time.monotonic() + self._servers[0].patience.longest_s
        try:
            for row, future in enumerate(futures):
                try:
                    replies.append(future.result(deadline - time.monotonic()))
                except concurrent.futures.TimeoutError:
                    raise PolicyError("the connections' thread does not answer", row=row) from None
                except PolicyError as error:
                    raise PolicyError(str(error), row=row) from error
        finally:
            for future in futures:
                future.cancel()
        return replies


def openpi_policy(name: str) -> OpenPIPolicy:
    """The policy that ``ws://host:port[,ws://…][@MAPPING]`` stands for."""
    addresses, _, mapping = name.partition("@")
    named = [address.strip() for address in addresses.split(",") if address.strip()]
    return OpenPIPolicy(named, mapping or None)


def _checked_address(address: str) -> str:
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("ws", "wss") and parts.hostname and (parts.port or 1)
    except ValueError:
        valid = False
    if not valid:
        raise PolicyError(f"{address!r} is no address of a policy server, such as ws://host:8000")
    return address.rstrip("/")


def _ours(server: Server) -> Mapping[str, Any]:
    """What ``polyarm serve`` says of itself; empty for other servers."""
    return served(server.metadata)


def _plain(metadata: Any) -> dict[str, Any]:
    # Arrays are told apart by all of their values.
    return {
        str(name): value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in dict(metadata or {}).items()
    }


def _close(thread: LoopThread, lanes: list[Lane]) -> None:
    if thread.is_current:  # garbage is collected by whoever comes along
        threading.Thread(target=_close, args=(thread, lanes), daemon=True).start()
        return
    leaving, lanes[:] = list(lanes), []
    futures = [thread.submit(lane.close()) for lane in leaving]
    concurrent.futures.wait(futures, timeout=3.0)
    thread.stop()
