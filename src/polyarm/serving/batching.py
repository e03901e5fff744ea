"""Requests of many clients become few decisions of one policy.

All calls of a policy are made by one thread, in order: a policy need not know of threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, Policy, stack_leaves
from polyarm.rollout.decisions import PolicyCaller
from polyarm.serving.metrics import Metrics
from polyarm.serving.options import ServeOptions

log = logging.getLogger("polyarm")

T = TypeVar("T")

_STOP_S = 0.5


@dataclass(slots=True, eq=False)
class ServedEpisode:
    """An episode of a client.

    Attributes:
        key: What the policy keeps its state under; no two that run have the same.
        generator: Its noise.
        steps: Env steps it has made; where the client does not say, requests.
    """

    key: EpisodeKey
    generator: np.random.Generator
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What is answered.

    Attributes:
        actions: ``(K, …)``.
        extras: By name.
        seconds: How long the policy took, for the whole batch.
    """

    actions: NDArray[Any]
    extras: Mapping[str, NDArray[Any]]
    seconds: float


@dataclass(slots=True, eq=False)
class _Request:
    episode: ServedEpisode
    obs: Any
    instruction: str
    answer: asyncio.Future[Decision]
    shapes: Any = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = _shapes(self.obs)


class Batcher:
    """Gathers requests and asks the policy about them; `run` must be running.

    Args:
        replica: What decides, and the thread it does so in.
        space: Action space of a single env; answers are checked against it.
        options: How many, and how long to wait.
        due: How many clients may ask: if all of them wait, nobody else will come.
        metrics: Where decisions are counted.
    """

    def __init__(
        self,
        replica: Replica,
        space: gymnasium.Space[Any],
        options: ServeOptions,
        due: Callable[[], int],
        metrics: Metrics,
    ) -> None:
        self._options = options
        self._due = due
        self._queue: asyncio.Queue[_Request] = asyncio.Queue(options.max_queue)
        self._caller = PolicyCaller(
            replica.policy, space, max_batch=options.max_batch, timeout_s=None
        )
        self._thread = replica.thread
        self._metrics = metrics

    def waiting(self) -> int:
        """How many requests wait."""
        return self._queue.qsize()

    async def begin(self, key: EpisodeKey) -> None:
        """An episode begins."""
        await self._thread.call(lambda: self._caller.begin(key))

    async def end(self, key: EpisodeKey) -> None:
        """An episode is over."""
        await self._thread.call(lambda: self._caller.end(key))

    async def decide(self, episode: ServedEpisode, obs: Any, instruction: str) -> Decision:
        """The policy's decision; waits while the queue is full.

        Raises:
            PolicyError: The policy failed, for this request or for another of its batch.
        """
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Request(episode, obs, instruction, answer))
        return await answer

    async def run(self) -> None:
        """Decide about whoever asks, until cancelled."""
        while True:
            gathered = await self._gather()
            groups: dict[Any, list[_Request]] = {}
            for request in gathered:  # what is shaped otherwise cannot share an array
                groups.setdefault(request.shapes, []).append(request)
            for group in groups.values():
                await self._decide(group)

    def close(self) -> None:
        """Leave the policy alone; waits a moment for a call that is under way."""
        self._thread.stop()

    async def _gather(self) -> list[_Request]:
        requests = [await self._queue.get()]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.max_wait_ms / 1000
        wanted = min(self._options.max_batch, self._due())
        while len(requests) < wanted:
            if self._queue.empty() and (left := deadline - loop.time()) > 0:
                try:
                    async with asyncio.timeout(left):
                        requests.append(await self._queue.get())
                except TimeoutError:
                    break
            elif self._queue.empty():
                break
            else:
                requests.append(self._queue.get_nowait())
        return requests

    async def _decide(self, requests: Sequence[_Request]) -> None:
        began = time.perf_counter()
        try:
            actions, extras = await self._thread.call(lambda: self._caller.act(_batch(requests)))
        except Exception as error:  # noqa: BLE001  told to every client of the batch
            log.warning("the policy failed: %s", error)
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        finally:
            seconds = time.perf_counter() - began
            self._metrics.batch_rows.add(len(requests))
            self._metrics.act_s.add(seconds)
        for row, request in enumerate(requests):
            own = {name: values[row] for name, values in extras.items()}
            if not request.answer.done():
                request.answer.set_result(Decision(actions[row], own, seconds))


class PolicyThread:
    """Runs one call after the other; a daemon, so that a policy that hangs ends with us."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[[], T]) -> T:
        """What the function returns or raises, in that thread; waits for it."""
        self._start()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001  it belongs to whoever called
                answer.set_exception(error)

        self._calls.put(work)
        return answer.result()

    async def call(self, function: Callable[[], T]) -> T:
        """The same, without keeping an event loop waiting."""
        self._start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, failure = None, None
            try:
                result = function()
            except Exception as error:  # noqa: BLE001  it belongs to whoever called
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, failure)

        self._calls.put(work)
        return await answer

    def stop(self) -> None:
        """End the thread when its calls are done."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(_STOP_S)
            self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="polyarm-policy", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


@dataclass(frozen=True, slots=True)
class Replica:
    """A policy, and the thread that asks it.

    Attributes:
        policy: What decides.
        thread: Where; PyTorch's current GPU is the thread's own.
    """

    policy: Policy
    thread: PolicyThread = field(default_factory=PolicyThread)


def _batch(requests: Sequence[_Request]) -> Batch:
    return Batch(
        obs=stack_leaves([request.obs for request in requests]),
        keys=tuple(request.episode.key for request in requests),
        instructions=tuple(request.instruction for request in requests),
        steps=np.array([request.episode.steps for request in requests], np.int64),
        generators=tuple(request.episode.generator for request in requests),
    )


def _shapes(obs: Any) -> Any:
    if isinstance(obs, Mapping):
        return tuple((name, _shapes(obs[name])) for name in sorted(obs))
    return np.shape(obs), np.asarray(obs).dtype.str
