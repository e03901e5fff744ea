"""Gives each row of a batch the noise of its own episode, whatever a model draws and when.

LeRobot's policies draw noise in the middle of their models, for the whole batch at once, from
PyTorch's global generator: then an episode's actions depend on which others happen to be in its
batch. Within `episode_noise` these draws are answered row by row, from the episodes' generators.

Most models never draw anything. `NoiseOfEpisodes` leaves them alone: what answers draws has to look
at every call of a PyTorch function, and keeps PyTorch from fusing layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class NoiseOfEpisodes:
    """Asks a model, with `episode_noise` from the moment on that it draws.

    Args:
        device: ``torch.device`` that the model runs on.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._draws = False

    def ask(self, model: Callable[[], T], generators: Sequence[np.random.Generator]) -> T:
        """What the model answers.

        Args:
            model: Asks it; where it turns out to draw for the first time, it is asked twice.
            generators: One per row.
        """
        if not self._draws:
            before = self._states()
            answer = model()
            if all(map(_equal, before, self._states())):
                return answer
            self._draws = True
            self._restore(before)
        with episode_noise(generators, self._device):
            return model()

    def _states(self) -> list[Any]:
        """Of PyTorch's generators: they change when something is drawn."""
        import torch

        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        return states

    def _restore(self, states: Sequence[Any]) -> None:
        import torch

        torch.set_rng_state(states[0])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self._device)


def _equal(one: Any, other: Any) -> bool:
    return bool((one == other).all())


@contextmanager
def episode_noise(generators: Sequence[np.random.Generator], device: Any) -> Iterator[None]:
    """Answer draws of ``(B, …)`` numbers row by row, the same on every device.

    Answered are ``torch.randn``, ``rand``, ``normal``, their ``_like`` forms and ``multinomial``
    for one sample, also of several rows per episode that follow one another. Draws from a generator
    that the model made itself are its own affair. Whatever else is drawn comes from PyTorch's
    generators, seeded from the first row's for this time only.

    Args:
        generators: One per row; each seeds what its row gets this time.
        device: ``torch.device`` that the model runs on.
    """
    import torch

    # How far an episode's generator goes on must not depend on the others of its batch, and models
    # that sample tokens draw for all rows until the last one is done: each time it goes on by one.
    seeds = [int(generator.integers(2**63)) for generator in generators]
    rows = [np.random.default_rng(seed) for seed in seeds]
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []), _mode()(rows):
        torch.default_generator.manual_seed(seeds[0])
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seeds[0])
        yield


@cache
def _mode() -> Any:
    """The class that stands between a model and PyTorch's functions; made when PyTorch is there."""
    import torch
    from torch.overrides import TorchFunctionMode

    normal = (torch.randn, torch.randn_like)
    uniform = (torch.rand, torch.rand_like)
    drawing = {*normal, *uniform, torch.normal, torch.multinomial}

    class RowNoise(TorchFunctionMode):
        def __init__(self, generators: Sequence[np.random.Generator]) -> None:
            super().__init__()
            self._generators = generators

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            answer = function(*args, **kwargs)
            if function not in drawing or kwargs.get("generator") is not None:
                return answer
            if function is torch.multinomial:
                return self._chosen(answer, *args, **kwargs)
            if not self._has_rows(answer):
                return answer
            if function in uniform:
                return self._rows(answer, "random")
            noise = self._rows(answer, "standard_normal")
            return noise if function in normal else _scaled(noise, *args, **kwargs)

        def _has_rows(self, answer: Any) -> bool:
            return answer.ndim > 0 and len(answer) > 0 and len(answer) % len(self._generators) == 0

        def _rows(self, like: Any, draw: str) -> Any:
            shape = (len(like) // len(self._generators), *like.shape[1:])
            rows = [getattr(one, draw)(shape, dtype=np.float32) for one in self._generators]
            return torch.from_numpy(np.concatenate(rows)).to(like.device, like.dtype)

        def _chosen(self, answer: Any, weights: Any, *_: Any, **__: Any) -> Any:
            if answer.shape[-1] != 1 or answer.ndim != 2 or not self._has_rows(answer):
                return answer
            # The smallest of exponential times, each at its own rate, is a choice by weight.
            times = self._rows(weights.float(), "standard_exponential")
            return (weights.float() / times).argmax(dim=-1, keepdim=True)

    return RowNoise


def _scaled(noise: Any, mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> Any:
    return mean + std * noise
