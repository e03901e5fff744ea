"""What is gained, and what it costs, where our parts stand in for those of others.

``ratio_lerobot_eval``: LeRobot's evaluation loop against ours, with the same policy and episodes;
`lerobot_loop.py` tells how.

``serve_batching``: 32 clients of openpi's protocol ask ``polyarm serve``, whose policy takes 20 ms
per call whatever the batch, as often as they can. Against the same server asked by one client,
one request after the other. Server and clients are processes of their own.

``client_overhead_ms``: one LIBERO request (two frames of 224², a state, a prompt) by
``openpi:ws://…``, against the same bytes sent and received on a bare connection of the same
library. The server answers at once with a chunk of ten actions.

    python benchmarks/dropin.py --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import measure
import numpy as np
from gymnasium import spaces
from lerobot_loop import Comparison
from websockets.asyncio.client import connect

from polyarm.contracts import Batch, EpisodeKey
from polyarm.policies import wire
from polyarm.policies.mapping import load_mapping
from polyarm.policies.websocket import OpenPIPolicy
from polyarm.serving.options import ServeOptions
from polyarm.serving.server import serving

SPACE = spaces.Box(-1, 1, (7,), np.float32)
CALL_S = 0.02
LIMIT_S = 120.0
WARM_UP = 50
"""Requests that do not count: a new connection is slower at first, and ours outlives a round."""


class Constant:
    """Ten steps of nothing, after a while that does not depend on the batch."""

    row_independent = True
    fingerprint = {"policy": "constant"}

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin(self, episodes: Any) -> None:
        """Nothing is kept."""

    def act(self, batch: Batch) -> np.ndarray:
        time.sleep(self._seconds)
        return np.zeros((len(batch), 10, 7), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="per contender and round")
    parser.add_argument("--requests", type=int, default=200, help="of the overhead, per round")
    parser.add_argument("--loop-rounds", type=int, default=3, help="of the evaluation loops")
    options = parser.parse_args()
    with served(CALL_S) as address:
        many = lambda: asked(address, options.clients, options.seconds)  # noqa: E731
        alone = lambda: asked(address, 1, options.seconds)  # noqa: E731
        batching = measure.interleave({"clients": many, "one at a time": alone}, options.rounds)
    with served(0.0) as address, OpenPIPolicy([address]) as policy:
        contenders = {
            "openpi:ws://": lambda: through_the_policy(policy, options.requests),
            "bare socket": lambda: asyncio.run(bare(address, options.requests)),
        }
        overhead = measure.interleave(contenders, options.rounds)
    loops = Comparison().rounds(options.loop_rounds)
    report(batching, overhead, loops, options)


# Both sides.


@contextmanager
def served(seconds: float) -> Iterator[str]:
    """The address of a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, seconds), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("enough")
        process.join(LIMIT_S)


def serve(pipe: Any, seconds: float) -> None:
    # Who waits for others in the second comparison would be measured along.
    wait_ms = ServeOptions().max_wait_ms if seconds else 0.0
    with serving(Constant(seconds), SPACE, ServeOptions(port=0, max_wait_ms=wait_ms)) as server:
        pipe.send(server.address)
        pipe.recv()


def batch_of_one() -> Batch:
    rng = np.random.default_rng(0)
    frame = (1, 224, 224, 3)
    obs = {
        "pixels/agentview": rng.integers(0, 256, frame, np.uint8),
        "pixels/robot0_eye_in_hand": rng.integers(0, 256, frame, np.uint8),
        "state": np.zeros((1, 8), np.float32),
    }
    key = EpisodeKey("libero", "libero_10/0", 0)
    words = "put both the alphabet soup and the tomato sauce in the basket"
    return Batch(obs, (key,), (words,), np.zeros(1, np.int64), (key.generator(),))


def request() -> bytes:
    return wire.pack(load_mapping("libero").request(batch_of_one(), 0))


# Requests per second.


def asked(address: str, clients: int, seconds: float) -> float:
    """Requests per second of so many clients, each of which waits for its answer."""
    return asyncio.run(_asked(address, clients, seconds))


async def _asked(address: str, clients: int, seconds: float) -> float:
    message, made, began = request(), 0, 0.0
    everybody = asyncio.Barrier(clients)

    async def client() -> None:
        nonlocal made, began
        async with connect(address, compression=None, max_size=None) as connection:
            await connection.recv()
            await connection.send(message)
            await connection.recv()
            await everybody.wait()
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                await connection.send(message)
                await connection.recv()
                made += 1

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return made / (time.perf_counter() - began)


# Milliseconds per request.


def through_the_policy(policy: OpenPIPolicy, requests: int) -> float:
    """Median milliseconds of a decision, from the batch to the actions."""
    batch = batch_of_one()
    policy.begin(batch.keys)
    took = [timed(lambda: policy.act(batch)) for _ in range(WARM_UP + requests)]
    policy.end(batch.keys)
    return statistics.median(took[WARM_UP:])


async def bare(address: str, requests: int) -> float:
    """Median milliseconds of sending the packed bytes and receiving the answer."""
    message, took = request(), []
    async with connect(address, compression=None, max_size=None) as connection:
        await connection.recv()
        for _ in range(WARM_UP + requests):
            began = time.perf_counter()
            await connection.send(message)
            await connection.recv()
            took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took[WARM_UP:])


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def report(
    batching: measure.Rounds,
    overhead: measure.Rounds,
    loops: measure.Rounds,
    options: argparse.Namespace,
) -> None:
    pairs = zip(overhead["openpi:ws://"], overhead["bare socket"], strict=True)
    figures = {
        "ratio_lerobot_eval": measure.ratio(loops, "polyarm", "lerobot"),
        "serve_batching": measure.ratio(batching, "clients", "one at a time"),
        "client_overhead_ms": statistics.median(ours - theirs for ours, theirs in pairs),
    }
    rates, millis = measure.medians(batching), measure.medians(overhead)
    rows = [
        (f"{name}, {CALL_S * 1e3:g} ms a call", f"{value:,.1f} /s") for name, value in rates.items()
    ]
    rows += [(f"a LIBERO request, {name}", f"{value:.2f} ms") for name, value in millis.items()]
    episodes = measure.medians(loops)
    rows += [(f"{name}'s loop", f"{value:.3f} episodes/s") for name, value in episodes.items()]
    rows += [("ratio_lerobot_eval", f"{figures['ratio_lerobot_eval']:.1f}x")]
    rows += [("serve_batching", f"{figures['serve_batching']:.1f}x")]
    rows += [("client_overhead_ms", f"{figures['client_overhead_ms']:.2f}")]
    measure.print_table(f"in place of others, {options.clients} clients of the server", rows)
    measure.print_json(
        {
            "benchmark": "dropin",
            "clients": options.clients,
            "rounds": options.rounds,
            **figures,
            "episodes_per_s": episodes,
            "requests_per_s": rates,
            "request_ms": millis,
            "request_nbytes": len(request()),
        }
    )


if __name__ == "__main__":
    main()
