"""Small models behind the real server of the ``vla-eval`` package.

As a program: ``python vla_eval_server.py PORT [REQUEST]`` serves zeros, and kills itself in the
middle of that request.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import numpy as np
from vla_eval.model_servers.base import SessionContext
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import serve_async
from vla_eval.specs import DimSpec


class TinyModel(PredictModelServer):
    """A function of an observation as a model.

    Args:
        function: From an observation and its session to actions.
        params: What the server asks of its benchmark.
        action_spec: What it says of its actions: a format by part.
        **options: Of vla-eval's class, such as ``chunk_size``.

    Attributes:
        asked: Every observation that reached the model: session, step and what was in it.
        events: What else happened: ``("start", session, task)`` and ``("end", session)``.
    """

    def __init__(
        self,
        function: Callable[[dict[str, Any], SessionContext], Any],
        *,
        params: Mapping[str, Any] | None = None,
        action_spec: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._function = function
        self._params = dict(params or {})
        self._formats = dict(action_spec or {})
        self.asked: list[tuple[str, int, dict[str, Any]]] = []
        self.events: list[tuple[Any, ...]] = []

    def predict(self, obs: dict[str, Any], ctx: SessionContext) -> dict[str, Any]:
        self.asked.append((ctx.session_id, ctx.step, obs))
        return {"actions": self._function(obs, ctx)}

    async def on_episode_start(self, config: dict[str, Any], ctx: SessionContext) -> None:
        self.events.append(("start", ctx.session_id, config["task"]))
        await super().on_episode_start(config, ctx)

    async def on_episode_end(self, result: dict[str, Any], ctx: SessionContext) -> None:
        self.events.append(("end", ctx.session_id))
        await super().on_episode_end(result, ctx)

    def get_observation_params(self) -> dict[str, Any]:
        return self._params

    def get_action_spec(self) -> dict[str, DimSpec]:
        return {part: DimSpec(part, 0, form) for part, form in self._formats.items()}

    def get_observation_spec(self) -> dict[str, DimSpec]:
        return {}

    @property
    def sessions(self) -> list[str]:
        """The sessions, in the order in which they were first asked."""
        return list(dict.fromkeys(session for session, *_ in self.asked))


class Serving:
    """Serves a model in a thread of its own.

    Args:
        model: The model.
        port: By default any that is free.
    """

    def __init__(self, model: PredictModelServer, port: int = 0) -> None:
        self.model = model
        self.port = port

    @property
    def address(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def __enter__(self) -> Serving:
        self._started = threading.Event()
        self._thread = threading.Thread(target=anyio.run, args=(self._run,))
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            serving = partial(serve_async, self.model, "127.0.0.1", self.port)
            self.port = await tasks.start(serving)
            self._started.set()
            await self._stop.wait()
            tasks.cancel_scope.cancel()
        for stream in (self.model._send_stream, self.model._receive_stream):
            if stream is not None:  # of batches; vla-eval leaves them open
                stream.close()


def main() -> None:
    port, fatal = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0

    def zeros(_: dict[str, Any], __: SessionContext) -> Any:
        if fatal and len(model.asked) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros((3, 2), np.float32)

    model = TinyModel(zeros)
    with Serving(model, port) as server:
        print(server.port, flush=True)  # noqa: T201
        signal.pause()


if __name__ == "__main__":
    main()
