"""A server of openpi's websocket protocol that asks its policy about many clients at once.

A client is greeted with a frame of metadata, and then answered request by request. What goes wrong
with a request is answered with a text frame, the traceback, and its connection is closed; the
server goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http
import ipaddress
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from polyarm import __version__
from polyarm.contracts import EpisodeKey, Policy
from polyarm.errors import InvalidCall, PolicyError, PolyarmError, StorageError, WireError
from polyarm.policies import wire
from polyarm.policies.fingerprints import policy_fingerprint
from polyarm.policies.mapping import ObservationMapping, digest, load_mapping
from polyarm.serving.batching import Decision, Replica, ServedEpisode
from polyarm.serving.episodes import Episodes
from polyarm.serving.metrics import Metrics
from polyarm.serving.options import ServeOptions
from polyarm.serving.replicas import Replicas

log = logging.getLogger("polyarm")

_INTERNAL_ERROR, _GOING_AWAY = 1011, 1001
_START_S, _LEAVE_S = 30.0, 2.0
_SILENT_S = 0.5
"""A client that has not asked for so long is not waited for."""


class PolicyServer:
    """Serves a policy.

    Args:
        policy: What decides.
        space: Action space of a single env.
        options: Where and how.
        api_key: What clients must send; "" lets everybody in.
        fingerprint: What is served, for the results of clients; by default the policy's.
        replicas: The policy and equal ones that share its clients; by default it alone.

    Attributes:
        port: Where it listens, once it does.

    Raises:
        InvalidCall: The policy cannot be served, or the mapping has no way back.
    """

    def __init__(
        self,
        policy: Policy,
        space: gymnasium.Space[Any],
        options: ServeOptions,
        *,
        api_key: str = "",
        fingerprint: Any = None,
        replicas: Sequence[Replica] = (),
    ) -> None:
        if getattr(policy, "expert_steps", 0):
            raise InvalidCall("an expert acts inside its env and cannot be served")
        mapping = load_mapping(options.mapping)
        if mapping.function is not None:
            raise InvalidCall(f"{options.mapping} only makes requests; serving needs a table")
        self._options = options
        self._api_key = api_key
        self._mapping = mapping
        self._clients: dict[Any, _Client] = {}
        self._metrics = Metrics(self._waiting, lambda: len(self._clients))
        deciding = replicas or [Replica(policy)]
        self._replicas = Replicas(deciding, space, options, self._due, self._metrics)
        self._episodes = Episodes(self._replicas)
        self._metadata = wire.pack({"polyarm": _about(policy, mapping, fingerprint)})
        self._draining = self._gone = False
        self.port = options.port

    @property
    def address(self) -> str:
        """Where clients find it, as far as it knows."""
        host = self._options.host
        host = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
        return f"ws://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def metrics(self) -> str:
        """What ``/metrics`` says."""
        return self._metrics.text()

    def _waiting(self) -> int:
        return self._replicas.waiting()

    def _due(self, of: Callable[[EpisodeKey], bool]) -> int:
        """How many clients in such episodes may ask: not those that have been silent for long.

        Those that have just come are in no episode yet, and may soon be in one of these.
        """
        since = time.perf_counter() - _SILENT_S
        return sum(
            client.busy or client.answered_at > since
            for client in self._clients.values()
            if client.episode is None or of(client.episode.key)
        )

    async def run(self, stop: asyncio.Event, started: asyncio.Event | None = None) -> None:
        """Serve until ``stop`` is set, then answer what is under way and leave.

        Args:
            stop: Ends it.
            started: Set as soon as clients can connect.

        Raises:
            StorageError: The port cannot be had.
        """
        websockets = wire.library("websockets.asyncio.server")
        batching = asyncio.create_task(self._replicas.run())
        try:
            try:
                server = await websockets.serve(
                    self._greet,
                    self._options.host,
                    self.port,
                    compression=None,
                    max_size=self._options.max_message_mib * 2**20,
                    max_queue=2,  # frames read ahead per client, who sends one at a time
                    origins=[None],  # browsers name the page they come from; no page may
                    process_request=self._admit,
                    ping_timeout=60,
                )
            except OSError as error:
                where = f"{self._options.host}:{self.port}"
                raise StorageError(f"cannot listen at {where}: {error}") from error
            self.port = server.sockets[0].getsockname()[1]
            if started is not None:
                started.set()
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([stopping, batching], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            await self._drain(server)
            if batching.done():  # it never ends by itself
                batching.result()
        finally:
            batching.cancel()
            await asyncio.wait([batching])
            self._replicas.close()

    async def _drain(self, server: Any) -> None:
        self._draining = True
        server.close(close_connections=False)
        deadline = time.monotonic() + self._options.grace_s
        while any(client.busy for client in self._clients.values()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        leaving = [connection.close(_GOING_AWAY) for connection in list(self._clients)]
        await asyncio.gather(*leaving, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):  # a policy that hangs keeps its clients' handlers
                await server.wait_closed()
        self._gone = True

    # Connections.

    def _admit(self, connection: Any, request: Any) -> Any:
        """Answer plain HTTP; None goes on to the websocket."""
        if request.path == "/healthz":
            if self._draining:
                return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "stopping\n")
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if not self._is_known(request.headers):
            self._metrics.refused += 1
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "wrong or missing API key\n")
        if request.path == "/metrics":
            return connection.respond(http.HTTPStatus.OK, self.metrics)
        if len(self._clients) >= self._options.max_clients:
            self._metrics.refused += 1
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many clients\n")
        return None

    def _is_known(self, headers: Any) -> bool:
        if not self._api_key:
            return True
        given = ", ".join(headers.get_all("Authorization"))
        # In a time that does not tell how much of it is right.
        return hmac.compare_digest(
            given.encode(errors="replace"), f"Api-Key {self._api_key}".encode(errors="replace")
        )

    async def _greet(self, connection: Any) -> None:
        closed = wire.library("websockets.exceptions").ConnectionClosed
        self._clients[connection] = client = _Client()
        try:
            await connection.send(self._metadata)
            async for message in connection:
                client.busy = True
                answer = await self._answer(client, message)
                await connection.send(answer)
                client.busy = False
                if isinstance(answer, str):
                    await connection.close(_INTERNAL_ERROR, "the traceback is in the last frame")
                    break
                if self._draining:
                    break
        except closed:
            log.debug("a client left in the middle")
        finally:
            del self._clients[connection]
            if client.episode is not None and not self._gone:
                await self._leave(client.episode)

    async def _leave(self, episode: ServedEpisode) -> None:
        try:
            await self._episodes.end(episode)
        except PolicyError as error:
            log.warning("%s", error)

    async def _answer(self, client: _Client, message: str | bytes) -> str | bytes:
        """The frame that answers a frame; text if something went wrong."""
        began, metrics = time.perf_counter(), self._metrics
        try:
            return wire.pack(await self._decide(client, message))
        except Exception as error:
            metrics.errors += 1
            if not isinstance(error, PolyarmError):
                log.exception("a request failed")
            return "".join(traceback.format_exception(error))
        finally:
            client.answered_at = time.perf_counter()
            client.seconds = client.answered_at - began
            metrics.requests += 1
            metrics.latency_s.add(client.seconds)

    async def _decide(self, client: _Client, message: str | bytes) -> dict[str, Any]:
        if isinstance(message, str):
            raise WireError("a text frame; requests are binary")
        request = wire.unpack(message, self._options.max_message_mib * 2**20)
        if not isinstance(request, Mapping):
            raise WireError(f"a {type(request).__qualname__}; a request is a map of observations")
        obs, instruction = self._mapping.observation(request)
        client.episode = episode = await self._episodes.next(client.episode, request)
        decision = await self._replicas.decide(episode, obs, instruction)
        episode.steps += 1
        return _reply(decision, client.seconds)


@dataclass(slots=True, eq=False)
class _Client:
    """What is known of a connection.

    Attributes:
        episode: The episode it is in.
        busy: Whether it waits for an answer.
        answered_at: When it was answered last, or had just come, on the clock for short times.
        seconds: How long the last answer took.
    """

    episode: ServedEpisode | None = None
    busy: bool = False
    answered_at: float = field(default_factory=time.perf_counter)
    seconds: float | None = None


@contextmanager
def serving(
    policy: Policy,
    space: gymnasium.Space[Any],
    options: ServeOptions,
    *,
    api_key: str = "",
    replicas: Sequence[Replica] = (),
) -> Iterator[PolicyServer]:
    """A server in a thread of its own, for the time of a ``with`` block.

    Raises:
        StorageError: The port cannot be had.
    """
    server = PolicyServer(policy, space, options, api_key=api_key, replicas=replicas)
    runner, stop, started = asyncio.Runner(), asyncio.Event(), threading.Event()
    loop = runner.get_loop()
    failures: list[BaseException] = []

    async def run() -> None:
        ready = asyncio.Event()
        task = asyncio.create_task(server.run(stop, ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if ready.is_set():
            started.set()
        await task

    def work() -> None:
        try:
            with runner:
                runner.run(run())
        except Exception as error:  # noqa: BLE001  raised where the block begins
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="polyarm-serve", daemon=True)
    thread.start()
    started.wait(_START_S)
    if failures:
        raise failures[0]
    try:
        yield server
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(stop.set)
        thread.join(options.grace_s + 10)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _about(policy: Policy, mapping: ObservationMapping, fingerprint: Any) -> dict[str, Any]:
    what = policy_fingerprint(policy) if fingerprint is None else fingerprint
    return {
        "version": __version__,
        "fingerprint": digest({"policy": what}),
        "mapping": mapping.table,
        "row_independent": bool(getattr(policy, "row_independent", False)),
        "needs_frames": bool(getattr(policy, "needs_frames", True)),
    }


def _reply(decision: Decision, before_s: float | None) -> dict[str, Any]:
    timing = {"infer_ms": decision.seconds * 1e3}
    if before_s is not None:
        timing["prev_total_ms"] = before_s * 1e3
    reply: dict[str, Any] = {"actions": decision.actions, "server_timing": timing}
    if decision.extras:
        reply["extras"] = dict(decision.extras)
    return reply
