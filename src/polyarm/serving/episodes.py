"""Which episode a client is in: a new connection is a new one, and ``reset`` starts another.

Clients of polyarm say which episode it is. Its noise is then that of a local run. Others are given
numbers in the order they come.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from polyarm.contracts import EpisodeKey
from polyarm.errors import WireError
from polyarm.serving.batching import ServedEpisode
from polyarm.serving.replicas import Replicas


class Episodes:
    """All episodes that run, by key.

    Args:
        replicas: Tells the policy.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._running: set[EpisodeKey] = set()
        self._numbers = itertools.count()

    async def next(
        self, episode: ServedEpisode | None, request: Mapping[str, Any]
    ) -> ServedEpisode:
        """The episode that a request belongs to, begun if it is new.

        Args:
            episode: What the connection was in, if anything.
            request: What the client sent.

        Raises:
            WireError: It says something else where the episode should be.
        """
        told, step = _told(request)
        if episode is None or bool(request.get("reset")):
            if episode is not None:
                await self.end(episode)
            episode = await self._begin(told)
        if step is not None:
            episode.steps = step
        return episode

    async def end(self, episode: ServedEpisode) -> None:
        """A client has left it."""
        self._running.discard(episode.key)
        await self._replicas.end(episode.key)

    async def _begin(self, told: EpisodeKey | None) -> ServedEpisode:
        key = told or EpisodeKey("remote", "episode", next(self._numbers))
        generator = key.generator()
        # Two clients may well play the same episode; the policy keeps their states apart.
        while key in self._running:
            key = replace(key, task=f"{key.task}~{next(self._numbers)}")
        self._running.add(key)
        try:
            await self._replicas.begin(key)
        except BaseException:
            self._running.discard(key)
            raise
        return ServedEpisode(key, generator)


def _told(request: Mapping[str, Any]) -> tuple[EpisodeKey | None, int | None]:
    """The episode and step that a client of polyarm names."""
    told = request.get("polyarm")
    if told is None:
        return None, None
    match told:
        case {"episode": [str(suite), str(task), int(index), int(repeat)], "step": int(step)} if (
            0 <= index < 2**63 and 0 <= repeat < 2**63 and 0 <= step < 2**63
        ):
            return EpisodeKey(suite, task, index, repeat), step
    raise WireError(f"'polyarm' is {str(told)[:200]}, expected an episode and a step")
