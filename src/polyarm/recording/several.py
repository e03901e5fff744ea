"""Several observers of one env, as one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from polyarm.contracts import ObservedEpisode, Observer


def several_recorders(recorders: Mapping[str, Mapping[str, Any]]) -> SeveralRecorders:
    """Make recorders from keyword arguments, by the ``"module:factory"`` that takes them."""
    return SeveralRecorders([_made(name, options) for name, options in recorders.items()])


class SeveralRecorders:
    """An `Observer` that passes everything on to others.

    A frame is rendered if one of them wants it; the others are free to drop it.

    Args:
        recorders: Who is told, in this order.
    """

    def __init__(self, recorders: Sequence[Observer]) -> None:
        self._recorders = recorders

    def begin(self, episode: ObservedEpisode) -> None:
        """An episode is about to be reset."""
        for recorder in self._recorders:
            recorder.begin(episode)

    def wants_frames(self, step: int) -> bool:
        """Whether one of them wants the frames of a step."""
        return any(recorder.wants_frames(step) for recorder in self._recorders)

    def observe(self, step: int, obs: Any, reward: float, *, success: bool) -> None:
        """Show an observation to all."""
        for recorder in self._recorders:
            recorder.observe(step, obs, reward, success=success)

    def end(self, *, success: bool) -> Sequence[str]:
        """The files of all."""
        return [name for recorder in self._recorders for name in recorder.end(success=success)]

    def close(self) -> None:
        """Close all, also when closing one of them fails."""
        with ExitStack() as stack:
            for recorder in self._recorders:
                stack.callback(recorder.close)


def _made(name: str, options: Mapping[str, Any]) -> Observer:
    module, _, factory = name.partition(":")
    recorder: Observer = getattr(importlib.import_module(module), factory)(**options)
    return recorder
