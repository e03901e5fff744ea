"""Several copies of a policy, one per GPU: every episode stays with the one it began with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from polyarm.contracts import EpisodeKey, Policy
from polyarm.policies.torch import use_gpu
from polyarm.serving.batching import Batcher, Decision, PolicyThread, Replica, ServedEpisode
from polyarm.serving.metrics import Metrics
from polyarm.serving.options import ServeOptions


class Replicas:
    """Shares episodes out among replicas; each gathers the requests of its own.

    Args:
        replicas: At least one.
        space: Action space of a single env.
        options: How many requests, and how long to wait.
        due: How many of the clients in these episodes may ask at any moment.
        metrics: Where decisions are counted.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        space: gymnasium.Space[Any],
        options: ServeOptions,
        due: Callable[[Callable[[EpisodeKey], bool]], int],
        metrics: Metrics,
    ) -> None:
        self._homes: dict[EpisodeKey, int] = {}

        def batcher(place: int, replica: Replica) -> Batcher:
            def own() -> int:
                return due(lambda key: self._homes.get(key) == place)

            return Batcher(replica, space, options, own, metrics)

        self._batchers = [batcher(place, replica) for place, replica in enumerate(replicas)]

    def waiting(self) -> int:
        """How many requests wait."""
        return sum(batcher.waiting() for batcher in self._batchers)

    async def begin(self, key: EpisodeKey) -> None:
        """An episode begins, where the fewest are."""
        taken = Counter(self._homes.values())
        place = min(range(len(self._batchers)), key=lambda each: taken[each])
        self._homes[key] = place
        try:
            await self._batchers[place].begin(key)
        except BaseException:
            del self._homes[key]
            raise

    async def end(self, key: EpisodeKey) -> None:
        """An episode is over."""
        await self._batchers[self._homes.pop(key)].end(key)

    async def decide(self, episode: ServedEpisode, obs: Any, instruction: str) -> Decision:
        """The decision of the episode's replica; waits while its queue is full.

        Raises:
            PolicyError: The policy failed, for this request or for another of its batch.
        """
        return await self._batchers[self._homes[episode.key]].decide(episode, obs, instruction)

    async def run(self) -> None:
        """Decide about whoever asks, until cancelled."""
        await asyncio.gather(*(batcher.run() for batcher in self._batchers))

    def close(self) -> None:
        """Leave the policies alone; waits a moment for calls that are under way."""
        for batcher in self._batchers:
            batcher.close()


def on_gpus(gpus: Sequence[int], load: Callable[[], Policy]) -> list[Replica]:
    """A replica per GPU, loaded in the thread that will ask it.

    Args:
        gpus: Their CUDA indices; one that is named twice holds two.
        load: Makes a policy on the current GPU.

    Raises:
        InvalidCall: There is no such GPU.
    """

    def loaded(gpu: int) -> Policy:
        use_gpu(gpu)
        return load()

    replicas: list[Replica] = []
    for gpu in gpus:
        thread = PolicyThread()
        try:
            replicas.append(Replica(thread.run(partial(loaded, gpu)), thread))
        except BaseException:
            for each in (thread, *(replica.thread for replica in replicas)):
                each.stop()
            raise
    return replicas
