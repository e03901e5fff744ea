"""An observer beside its env: told of every step in the worker, never able to change one."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import gymnasium

from polyarm.contracts import EnvSpec, EpisodeKey, ObservedEpisode, Observer
from polyarm.errors import UnknownName
from polyarm.vector.envcalls import holder


class EpisodeWatch:
    """Counts an env's steps and tells its observer about them.

    Args:
        spec: Names the observer and its options.
        env: The env that is watched.
    """

    def __init__(self, spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> None:
        self._spec = spec
        self._env = env
        self._observer = load_observer(spec)
        self._step = 0
        self._begun = 0
        self._wants_last = False

    def begin(self, episode: ObservedEpisode | None, index: int | None) -> bool:
        """An episode is about to be reset; returns whether its first frames are wanted.

        Args:
            episode: What the trainer says about it, if it does.
            index: Its index otherwise; None for the next one of this env.
        """
        if episode is None:
            number = self._begun if index is None else index
            key = EpisodeKey(self._spec.suite, self._spec.task, number)
            episode = ObservedEpisode(key, self._text("instruction"), 0)
        if not episode.max_steps:
            episode = replace(episode, max_steps=self._number("max_steps"))
        upright = getattr(holder(self._env, "upright"), "upright", (1, 1))
        episode = replace(episode, upright=upright)
        self._begun += 1
        self._step = 0
        self._observer.begin(episode)
        self._wants_last = self._observer.wants_frames(0)
        return self._wants_last

    def wants_next(self) -> bool:
        """Whether the next step's observation must carry frames."""
        return self._observer.wants_frames(self._step + 1)

    def wants_last(self) -> bool:
        """Whether the episode's last observation must carry frames, whatever its step."""
        return self._wants_last

    def first(self, obs: Any) -> None:
        """The reset's observation."""
        self._observer.observe(0, obs, 0.0, success=False)

    def next(self, obs: Any, reward: float, *, success: bool) -> None:
        """The observation after one more step."""
        self._step += 1
        self._observer.observe(self._step, obs, reward, success=success)

    def end(self, *, success: bool) -> list[str]:
        """The episode is over; returns the files that the observer has made of it."""
        return [str(name) for name in self._observer.end(success=success)]

    def close(self) -> None:
        """The env is gone."""
        self._observer.close()

    def _text(self, name: str) -> str:
        return str(getattr(holder(self._env, name), name, ""))

    def _number(self, name: str) -> int:
        return int(getattr(holder(self._env, name), name, 0) or 0)


def load_observer(spec: EnvSpec) -> Observer:
    """Make the observer that a spec names."""
    module_name, _, name = spec.observer.partition(":")
    module = importlib.import_module(module_name)
    factory = getattr(module, name, None)
    if factory is None:
        known = [other for other in vars(module) if not other.startswith("_")]
        raise UnknownName(f"observer in {module_name}", name, known)
    observer: Observer = factory(**spec.observer_options)
    return observer
