"""A server as openpi's: written after its protocol, with the packer of the real ``openpi-client``.

openpi's client is on PyPI, its server is not. Like the real one this takes one request at a time,
answers what its policy raises with a traceback, and then closes that connection.

As a program: ``python openpi_double.py PORT [REQUEST]`` serves zeros, and kills itself in the
middle of that request.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import websockets
from openpi_client import msgpack_numpy
from websockets.asyncio.server import serve


class Garbage(Exception):
    """Raised by a policy: answer with bytes that are no message."""


class Hang(Exception):
    """Raised by a policy: do not answer."""


class Close(Exception):
    """Raised by a policy: cut the connection."""


class OpenPIServer:
    """Serves ``infer`` in a thread of its own.

    Args:
        infer: From an observation to a reply.
        metadata: What clients are greeted with.
        api_key: What they must send, if anything.
        health: Whether there is a ``/healthz``; earlier versions had none.

    Attributes:
        requests: Everything that was asked, as the real client's packer reads it.
        connections: How many were opened.
    """

    def __init__(
        self,
        infer: Callable[[dict[str, Any]], dict[str, Any]],
        *,
        metadata: Any = None,
        api_key: str = "",
        health: bool = True,
        port: int = 0,
    ) -> None:
        self._infer = infer
        self._metadata = {} if metadata is None else metadata
        self._api_key = api_key
        self._health = health
        self.port = port
        self.requests: list[dict[str, Any]] = []
        self.connections = 0

    @property
    def address(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def __enter__(self) -> OpenPIServer:
        self._loop, self._started = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._loop.close()

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        async with serve(
            self._handle,
            "127.0.0.1",
            self.port,
            compression=None,
            max_size=None,
            process_request=self._check,
            close_timeout=0.2,
        ) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._started.set()
            await self._stop.wait()

    def _check(self, connection: Any, request: Any) -> Any:
        if request.path == "/healthz" and self._health:
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        given = request.headers.get("Authorization")
        if self._api_key and given != f"Api-Key {self._api_key}":
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no\n")
        return None

    async def _handle(self, websocket: Any) -> None:
        self.connections += 1
        packer, before = msgpack_numpy.Packer(), None
        greeting = self._metadata
        await websocket.send(greeting if isinstance(greeting, bytes) else packer.pack(greeting))
        while True:
            try:
                began = time.monotonic()
                obs = msgpack_numpy.unpackb(await websocket.recv())
                self.requests.append(obs)
                reply = dict(self._infer(obs))
                reply["server_timing"] = {"infer_ms": (time.monotonic() - began) * 1000}
                if before is not None:
                    reply["server_timing"]["prev_total_ms"] = before * 1000
                await websocket.send(packer.pack(reply))
                before = time.monotonic() - began
            except websockets.ConnectionClosed:
                break
            except Garbage:
                await websocket.send(b"\xc1 this is no message")
            except Hang:
                await self._stop.wait()
                break
            except Close:
                websocket.transport.abort()
                break
            except Exception:  # noqa: BLE001
                await websocket.send(traceback.format_exc())
                await websocket.close(1011, "Internal server error.")
                break


def main() -> None:
    port, fatal = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0

    def infer(_: dict[str, Any]) -> dict[str, Any]:
        if fatal and len(server.requests) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"actions": np.zeros((3, 2), np.float32)}

    server = OpenPIServer(infer, port=port)
    with contextlib.suppress(KeyboardInterrupt), server:
        print(server.port, flush=True)  # noqa: T201
        signal.pause()


if __name__ == "__main__":
    main()
