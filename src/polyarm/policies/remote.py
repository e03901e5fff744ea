"""What policies behind servers have in common, whatever they speak.

Every row of a batch is a request of its own, on a connection of its own, and all of them are under
way at once. An episode stays with one server, on one connection, from its beginning to its end.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, PolicyOutput
from polyarm.errors import PolicyError
from polyarm.policies.connections import Lane, LoopThread, Server
from polyarm.policies.mapping import digest

Array = NDArray[Any]
Decision = tuple[Array, dict[str, Array]]
"""Actions of one row, and its extras."""


@dataclass(slots=True)
class Episode:
    """An episode that runs.

    Attributes:
        lane: The connection it has.
        asked: Whether anything has been asked about it.
    """

    lane: Lane
    asked: bool = False


class RemotePolicy(ABC):
    """Asks one or more policy servers.

    Use it as a context manager, or call `close`, to close its connections at once.

    Args:
        servers: Episodes are shared out among them.
        prefix: What its names on the command line begin with, for messages.

    Raises:
        PolicyError: There is none.
    """

    def __init__(self, servers: Sequence[Server], prefix: str) -> None:
        if not servers:
            raise PolicyError(f"a remote policy needs an address: {prefix}ws://host:port")
        self._servers = list(servers)
        self._thread = LoopThread()
        self._lanes: list[Lane] = []
        self._episodes: dict[EpisodeKey, Episode] = {}
        self._finalizer = weakref.finalize(self, _close, self._thread, self._lanes)

    def __enter__(self) -> Self:
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
        if new and len({self._digest(server) for server in self._servers}) > 1:
            for server in new:
                server.metadata = None  # whoever asks again is refused again
            addresses = ", ".join(server.address for server in self._servers)
            raise PolicyError(f"{addresses} serve different policies; name equal ones only")

    def _digest(self, server: Server) -> str:
        """Tells servers of different policies apart, as far as they say what they serve."""
        return digest(plain_metadata(server.metadata))

    # Episodes.

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin: each is pinned to the server that has the fewest."""
        self.connect()
        self.end(episodes)
        for key in episodes:
            server = min(self._servers, key=lambda server: server.episodes)
            server.episodes += 1
            self._episodes[key] = Episode(server.idle.pop() if server.idle else self._lane(server))

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
        for key in batch.keys:
            if key not in self._episodes:
                self.begin([key])
        futures: list[concurrent.futures.Future[Any]] = []
        try:
            # Each row is on its way before the next one is packed.
            for row, key in enumerate(batch.keys):
                futures.append(self._ask(batch, row, self._episodes[key]))
            replies = self._wait(futures)
            return _stacked(
                [
                    self._decision(reply, self._episodes[key].lane.server, row)
                    for row, (key, reply) in enumerate(zip(batch.keys, replies, strict=True))
                ]
            )
        except BaseException:
            # A server that was asked is a step ahead of the env, whatever it answers.
            for future in futures:
                future.cancel()
            for key in batch.keys:
                self._thread.submit(self._episodes[key].lane.abandon())
            raise

    @abstractmethod
    def _ask(self, batch: Batch, row: int, episode: Episode) -> concurrent.futures.Future[Any]:
        """Ask about a row, without waiting for the answer."""

    @abstractmethod
    def _decision(self, reply: Any, server: Server, row: int) -> Decision:
        """What an answer says.

        Raises:
            PolicyError: It is no decision.
        """

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


def split_name(name: str) -> tuple[list[str], str]:
    """The addresses and the mapping in ``ws://host:port[,ws://…][@MAPPING]``; "" for none."""
    addresses, _, mapping = name.partition("@")
    return [address.strip() for address in addresses.split(",") if address.strip()], mapping


def checked_address(address: str) -> str:
    """An address of a websocket server.

    Raises:
        PolicyError: It is none.
    """
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("ws", "wss") and parts.hostname and (parts.port or 1)
    except ValueError:
        valid = False
    if not valid:
        raise PolicyError(f"{address!r} is no address of a policy server, such as ws://host:8000")
    return address.rstrip("/")


def plain_metadata(metadata: Any) -> dict[str, Any]:
    """What a server says of itself, with arrays as lists: told apart by all of their values."""
    return {
        str(name): value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in dict(metadata or {}).items()
    }


def _stacked(rows: Sequence[Decision]) -> Array | PolicyOutput:
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


def _close(thread: LoopThread, lanes: list[Lane]) -> None:
    if thread.is_current:  # garbage is collected by whoever comes along
        threading.Thread(target=_close, args=(thread, lanes), daemon=True).start()
        return
    leaving, lanes[:] = list(lanes), []
    futures = [thread.submit(lane.close()) for lane in leaving]
    concurrent.futures.wait(futures, timeout=3.0)
    thread.stop()
