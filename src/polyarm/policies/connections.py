"""Connections to policy servers, kept by a thread of their own.

A server answers one request per connection at a time, so there is a `Lane` for every episode that
runs: one connection, made when it is first needed and again when it breaks. The thread goes on
answering pings while nobody asks anything. Nothing waits without a deadline. A `Server` is one of
openpi's kind; other kinds greet and are greeted otherwise.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from polyarm.errors import PolicyError, WireError
from polyarm.policies import wire

log = logging.getLogger("polyarm")

T = TypeVar("T")

_KNOCK_EVERY_S = 0.25
_TELL_EVERY_S = 5.0
_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited for what, and how often something is tried.

    Attributes:
        start_s: For a server to answer at all; it may still be loading its model.
        open_s: For a connection that a server which answers is asked for, and for its greeting.
        reply_s: For the answer to one request, new connections included.
        sends: How often a request is sent, if connections break.
        max_nbytes: Size of a reply at most.
    """

    start_s: float = 300.0
    open_s: float = 20.0
    reply_s: float = 300.0
    sends: int = 3
    max_nbytes: int = 4 * wire.MAX_NBYTES

    @property
    def longest_s(self) -> float:
        """No wait of all of these together is longer."""
        return self.start_s + self.open_s + self.reply_s + 10.0


class LoopThread:
    """An event loop in a daemon thread, started when it is first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin some work."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="polyarm-wire", daemon=True
            )
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def is_current(self) -> bool:
        """Whether it is this very thread that asks."""
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        """End the thread; what is under way is dropped."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(_CLOSE_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSE_S)
            if not thread.is_alive():
                loop.close()


@dataclass(slots=True, eq=False)
class Server:
    """A policy server.

    Attributes:
        address: ``ws://host:port`` or ``wss://…``.
        api_key: Sent with every connection, if there is one.
        patience: How long to wait.
        metadata: What it said when it was first connected to; None before that.
        episodes: Episodes that are pinned to it.
        idle: Lanes that no episode uses.
    """

    health_path: ClassVar[str] = "/healthz"

    address: str
    api_key: str
    patience: Patience
    metadata: Mapping[str, Any] | None = None
    episodes: int = 0
    idle: list[Lane] = field(default_factory=list)

    async def connect(self) -> Any:
        """A new connection, its greeting read.

        Raises:
            PolicyError: The server does not answer in time, refuses us, or is something else.
        """
        await self._wait_until_it_answers()
        client, exceptions = wire.library("websockets.asyncio.client"), _exceptions()
        headers = {"Authorization": f"Api-Key {self.api_key}"} if self.api_key else None
        try:
            async with asyncio.timeout(self.patience.open_s):
                connection = await client.connect(
                    self.address,
                    compression=None,
                    max_size=self.patience.max_nbytes,
                    additional_headers=headers,
                    open_timeout=None,
                    ping_interval=None,  # a server that thinks answers no ping, and may think long
                    close_timeout=_CLOSE_S,
                    proxy=None,
                )
                try:
                    self._note(await self._greeting(connection))
                except BaseException:
                    connection.transport.abort()
                    raise
        except TimeoutError:
            raise PolicyError(
                f"{self.address} has not greeted us within {self.patience.open_s:g} s"
                f"{self._silent_kind()}"
            ) from None
        except exceptions.InvalidStatus as error:
            raise PolicyError(self._refusal(error.response)) from error
        except (exceptions.WebSocketException, OSError) as error:
            raise _Broken(f"{self.address}: {_said(error)}") from error
        return connection

    def answer(self, reply: str | bytes) -> bytes:
        """What is in a reply: bytes, for a text is the traceback of a server that failed.

        Raises:
            PolicyError: It is one.
        """
        if isinstance(reply, str):
            raise PolicyError(f"{self.address} answered with an error:\n{reply.strip()}\n")
        return reply

    async def _greeting(self, connection: Any) -> Mapping[str, Any]:
        """What a server says of itself on a new connection."""
        greeting = self.answer(await connection.recv())
        try:
            metadata = wire.unpack(greeting, self.patience.max_nbytes)
        except WireError as error:
            raise PolicyError(f"{self.address} is no policy server: it sent {error}") from error
        if not isinstance(metadata, Mapping):
            raise PolicyError(f"{self.address} is no policy server: its metadata are {metadata!r}")
        return metadata

    def _silent_kind(self) -> str:
        """What a server may be that accepts a connection and says nothing."""
        return f"; a model server of vla-eval's kind is --policy vla-eval:{self.address}"

    def _note(self, metadata: Mapping[str, Any]) -> None:
        """Keep what it says; who says what it serves must go on serving that."""
        before = self.metadata
        if before is not None and self._identity(before) != self._identity(metadata):
            raise PolicyError(f"{self.address} serves another policy than it did before")
        self.metadata = metadata

    def _identity(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of what it says that tells policies apart."""
        return served(metadata)

    def _refusal(self, response: Any) -> str:
        if response.status_code in (401, 403):
            known = "the API key we sent" if self.api_key else "us without an API key"
            return f"{self.address} refuses {known}: set POLYARM_API_KEY to the server's key"
        body = bytes(response.body or b"").decode(errors="replace").strip()[:200]
        return f"{self.address} is no policy server: HTTP {response.status_code} {body}"

    async def _wait_until_it_answers(self) -> None:
        """Knock at its health path until somebody answers, and say how long it takes."""
        began = told = time.monotonic()
        while True:
            reason = await self._knock()
            now = time.monotonic()
            if not reason:
                return
            if now - began >= self.patience.start_s:
                raise PolicyError(
                    f"no policy server at {self.address} after {now - began:.0f} s: {reason}"
                )
            if now - told >= _TELL_EVERY_S:
                told = now
                log.warning(
                    "waiting for %s, %.0f s of %.0f: %s",
                    self.address,
                    now - began,
                    self.patience.start_s,
                    reason,
                )
            await asyncio.sleep(min(_KNOCK_EVERY_S, self.patience.start_s))

    async def _knock(self) -> str:
        """Why the server is not ready, or "" if it is; one without a health path is, too."""
        parts = urlsplit(self.address)
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        writer = None
        try:
            async with asyncio.timeout(min(self.patience.open_s, 5.0)):
                reader, writer = await asyncio.open_connection(
                    parts.hostname, port, ssl=parts.scheme == "wss"
                )
                lines = (
                    f"GET {self.health_path} HTTP/1.1",
                    f"Host: {parts.netloc}",
                    "Connection: close",
                )
                writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
                status = (await reader.readline()).split(None, 2)
        except (OSError, TimeoutError, ValueError) as error:
            return _said(error)
        finally:
            if writer is not None:
                writer.close()
        if len(status) < 2 or not status[0].startswith(b"HTTP/"):
            return "what answers there does not speak HTTP"
        return f"HTTP 503 at {self.health_path}" if status[1] == b"503" else ""


class Lane:
    """One connection to a server, for one episode at a time.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connection: Any = None

    async def open(self) -> None:
        """Connect, unless that is done.

        Raises:
            PolicyError: See `Server.connect`; here a connection that breaks at once is an error.
        """
        try:
            if self._connection is None:
                self._connection = await self.server.connect()
        except _Broken as error:
            raise PolicyError(str(error)) from error

    async def ask(self, *messages: bytes, read: Callable[[str | bytes], T], resend: bool) -> T:
        """Send a request and wait for its answer.

        Args:
            *messages: The request; there is one answer, to the last of them.
            read: Makes of the answer what is returned. If it raises, the connection is dropped.
            resend: Whether another connection will do if this one is lost: not if the server
                remembers what went before on it.

        Raises:
            PolicyError: No answer came, or it was an error of the server.
        """
        patience = self.server.patience
        try:
            async with asyncio.timeout(patience.reply_s):
                return await self._ask(messages, read, patience.sends if resend else 0)
        except TimeoutError:
            raise PolicyError(
                f"{self.server.address} has not answered within {patience.reply_s:g} s"
            ) from None

    async def _ask(
        self, messages: Sequence[bytes], read: Callable[[str | bytes], T], sends: int
    ) -> T:
        exceptions, reason = _exceptions(), "an earlier request failed"
        tries = sends or int(self._connection is not None)
        for _ in range(tries):
            try:
                if self._connection is None:
                    self._connection = await self.server.connect()
                for message in messages:
                    await self._connection.send(message)
                return read(await self._connection.recv())
            except (exceptions.ConnectionClosed, _Broken) as error:
                reason = _said(error)
                self.drop()
                log.warning("%s: the connection broke (%s)", self.server.address, reason)
            except BaseException:
                self.drop()  # the answer may still come, and would be taken for the next one
                raise
        raise PolicyError(
            f"the connection to {self.server.address} broke {sends} times in one request: {reason}"
            if sends
            else f"the connection to {self.server.address} broke in the middle of an episode, and"
            f" what the server remembers of it is lost: {reason}"
        )

    async def tell(self, message: bytes) -> None:
        """Send what nobody answers, if there is a connection."""
        if self._connection is not None:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await self._connection.send(message)
            except (_exceptions().ConnectionClosed, TimeoutError):
                self.drop()

    def drop(self) -> None:
        """Forget the connection, without a word to the server."""
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None

    async def abandon(self) -> None:
        """`drop` from another thread, after what was submitted before."""
        self.drop()

    async def close(self) -> None:
        """Take leave of the server."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


class _Broken(Exception):
    """A connection that broke before it could be used; worth another try."""


def served(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What ``polyarm serve`` says of itself; empty for other servers."""
    told = (metadata or {}).get("polyarm")
    return told if isinstance(told, Mapping) else {}


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _exceptions() -> Any:
    return wire.library("websockets.exceptions")


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
