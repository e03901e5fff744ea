"""Policies without a model: zeros, noise, the env's expert, recorded actions, plain functions.

What they do in an episode depends on its key and observations alone, never on the batch around it
(a `FunctionPolicy` is what its function is).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, PolicyOutput
from polyarm.errors import InvalidCall, PolicyError, UnsupportedSpace
from polyarm.policies.fingerprints import files_digest, function_fingerprint

Array = NDArray[Any]

_SHOWN = 8


class _Forgetful:
    """A policy that keeps nothing from decision to decision."""

    row_independent = True
    needs_frames = False

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin; there is nothing to forget."""


class ZeroPolicy(_Forgetful):
    """Always zero, or the value nearest to zero that the space has.

    Args:
        space: Action space of a single env.
        chunk: Actions per decision.
    """

    def __init__(self, space: gymnasium.Space[Any], chunk: int = 1) -> None:
        self._chunk = _checked_chunk(chunk)
        low, high = _limits(space)
        # Clipped in the space's own dtype: a wider zero could round to outside of the bounds.
        self._action: Array = np.asarray(np.clip(np.zeros(low.shape, space.dtype), low, high))
        self.fingerprint: Mapping[str, Any] = {"policy": "zero", "chunk": chunk}

    def act(self, batch: Batch) -> Array:
        """The same actions every time, ``(B, chunk, …)``."""
        return np.tile(self._action, (len(batch), self._chunk, *[1] * self._action.ndim))


class RandomPolicy(_Forgetful):
    """Uniform noise from each episode's own generator.

    Box dimensions are uniform between their bounds; with one bound they are exponential from it,
    with none standard normal. An episode's actions are the same whatever ``chunk`` is.

    Args:
        space: Action space of a single env.
        chunk: Actions per decision.
    """

    def __init__(self, space: gymnasium.Space[Any], chunk: int = 1) -> None:
        self._chunk = _checked_chunk(chunk)
        self._dtype = space.dtype
        self._low, self._high = _limits(space)
        self._continuous = isinstance(space, spaces.Box) and self._low.dtype.kind == "f"
        self._bounded = bool(np.isfinite(self._low).all() and np.isfinite(self._high).all())
        self.fingerprint: Mapping[str, Any] = {"policy": "random", "chunk": chunk}

    def act(self, batch: Batch) -> Array:
        """New actions, ``(B, chunk, …)``."""
        draw = self._draw_real if self._continuous else self._draw_integers
        return np.stack([draw(generator) for generator in batch.generators])

    def _draw_integers(self, generator: np.random.Generator) -> Array:
        # Narrow integers would be drawn several at a time, and then depend on the chunk's length.
        dtype = np.uint64 if self._dtype == np.uint64 else np.int64
        size = (self._chunk, *self._low.shape)
        drawn = generator.integers(self._low, self._high, size, dtype, endpoint=True)
        return drawn.astype(self._dtype)

    def _draw_real(self, generator: np.random.Generator) -> Array:
        if self._bounded:
            share = generator.random((self._chunk, *self._low.shape))
            # Not low + share * (high - low): the difference of two finite bounds can overflow.
            drawn: Array = self._low * (1 - share) + self._high * share
        else:
            drawn = np.stack([self._draw_step(generator) for _ in range(self._chunk)])
        # Rounding to float32 can leave the bounds.
        clipped: Array = np.clip(drawn.astype(self._dtype), self._low, self._high)
        return clipped

    def _draw_step(self, generator: np.random.Generator) -> Array:
        shape = self._low.shape
        has_low, has_high = np.isfinite(self._low), np.isfinite(self._high)
        low, high = np.where(has_low, self._low, 0), np.where(has_high, self._high, 0)
        share, distance = generator.random(shape), generator.exponential(size=shape)
        normal = generator.standard_normal(shape)
        one_sided = np.where(has_low, low + distance, high - distance)
        inside = low * (1 - share) + high * share
        return np.where(has_low & has_high, inside, np.where(has_low | has_high, one_sided, normal))


class ExpertPolicy(_Forgetful):
    """The env's own expert; it acts in the worker, so no observation travels.

    Args:
        steps: Env steps per request to a worker.
    """

    def __init__(self, steps: int = 16) -> None:
        self.expert_steps = _checked_chunk(steps)
        self.fingerprint: Mapping[str, Any] = {"policy": "expert"}

    def act(self, batch: Batch) -> Array:
        """Never called.

        Raises:
            InvalidCall: Always.
        """
        raise InvalidCall(
            "the expert acts inside the worker (`expert_steps`); it cannot decide on a batch"
        )


class ReplayPolicy(_Forgetful):
    """The recorded actions of the same episodes, in the recorded order.

    A trajectory is an ``.npz`` file with ``actions`` (T, …) and ``suite``, ``task``, ``index`` and
    ``repeat`` (0 if absent), each a scalar or an array of one element. Where an episode stands is
    told by its steps. Near the end of a recording fewer than ``chunk`` actions come back, for the
    whole batch.

    Args:
        path: One trajectory, or a folder of them at any depth.
        chunk: Actions per decision, at most.

    Raises:
        PolicyError: There is no trajectory, or a file is none, or two are of one episode.
    """

    def __init__(self, path: str | Path, chunk: int = 1) -> None:
        self._chunk = _checked_chunk(chunk)
        self._path = Path(path)
        self._files = _trajectories(self._path)
        self._recorded: dict[EpisodeKey, Array] = {}
        self.fingerprint: Mapping[str, Any] = {
            "policy": "replay",
            "path": str(path),
            "recordings": files_digest(self._path),
            "chunk": chunk,
        }

    @property
    def episodes(self) -> list[EpisodeKey]:
        """The episodes there are recordings of, sorted."""
        return sorted(self._files)

    def act(self, batch: Batch) -> Array:
        """The next recorded actions, ``(B, K, …)`` with K at most ``chunk``.

        Raises:
            PolicyError: An episode was not recorded, or has come to the end of its recording.
        """
        recorded = [self._actions(key, row) for row, key in enumerate(batch.keys)]
        length = self._chunk
        for row, (actions, step) in enumerate(zip(recorded, batch.steps, strict=True)):
            if step >= len(actions):
                raise PolicyError(
                    f"{batch.keys[row]} has made {step} steps, but only {len(actions)} actions are"
                    f" recorded in {self._files[batch.keys[row]]}: the env did not end where the"
                    f" recording did",
                    row=row,
                )
            length = min(length, len(actions) - int(step))
        parts = [
            actions[step : step + length]
            for actions, step in zip(recorded, batch.steps, strict=True)
        ]
        return np.stack(parts)

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes are over; their actions are dropped from memory."""
        for key in episodes:
            self._recorded.pop(key, None)

    def _actions(self, key: EpisodeKey, row: int) -> Array:
        if key not in self._files:
            # The recordings of the same task first: mostly it is the index that is missing.
            order = sorted(self._files, key=lambda other: (other.name != key.name, other))
            shown = ", ".join(map(str, order[:_SHOWN])) + (", …" if len(order) > _SHOWN else "")
            raise PolicyError(
                f"no recorded actions of {key} in {self._path}; it holds {len(order)} episodes:"
                f" {shown}",
                row=row,
            )
        if key not in self._recorded:
            with np.load(self._files[key], allow_pickle=False) as arrays:
                self._recorded[key] = arrays["actions"]
        return self._recorded[key]


class FunctionPolicy:
    """A function of a `Batch`, or of the observations if it has a parameter named ``obs``.

    Args:
        function: Returns actions or a `PolicyOutput`; it gets one positional argument.
        name: Its name in the results; by default ``"module:function"``.
        row_independent: Promise that a row's actions do not depend on the rest of the batch.
        needs_frames: Whether it looks at frames.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        name: str = "",
        *,
        row_independent: bool = False,
        needs_frames: bool = True,
    ) -> None:
        self._function = function
        self._takes_obs = "obs" in inspect.signature(function).parameters
        self.row_independent = row_independent
        self.needs_frames = needs_frames
        seen = function_fingerprint(function)
        self.fingerprint: Mapping[str, Any] = {
            "policy": "function",
            "name": name or seen["name"],
            "source": seen["source"],
        }

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin; a function keeps nothing."""

    def act(self, batch: Batch) -> Array | PolicyOutput:
        """What the function returns."""
        output: Array | PolicyOutput
        output = self._function(batch.obs if self._takes_obs else batch)
        return output


def _checked_chunk(chunk: int) -> int:
    if chunk < 1:
        raise InvalidCall(f"a decision holds at least 1 action, not {chunk}")
    return chunk


def _limits(space: gymnasium.Space[Any]) -> tuple[Array, Array]:
    """Lowest and highest action, both included."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return np.asarray(space.start), np.asarray(space.start + count - 1)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    raise UnsupportedSpace(
        f"the action space {space} is neither Box, Discrete, MultiDiscrete nor MultiBinary"
    )


def _trajectories(path: Path) -> dict[EpisodeKey, Path]:
    if not path.exists():
        raise PolicyError(f"there is nothing to replay at {path}: no such file or folder")
    files = sorted(path.rglob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise PolicyError(f"there is nothing to replay in {path}: no .npz file in the folder")
    found: dict[EpisodeKey, Path] = {}
    for file in files:
        key = _recorded_key(file)
        if key in found:
            raise PolicyError(f"two recordings of {key}: {found[key]} and {file}; remove one")
        found[key] = file
    return found


def _recorded_key(file: Path) -> EpisodeKey:
    try:
        # NumPy leaves a file open that it opened itself and cannot read.
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            missing = {"actions", "suite", "task", "index"} - set(arrays)
            if missing:
                raise PolicyError(
                    f"{file} is no trajectory: it lacks {', '.join(sorted(missing))} and holds"
                    f" {', '.join(sorted(arrays)) or 'nothing'}"
                )
            return EpisodeKey(
                str(arrays["suite"].item()),
                str(arrays["task"].item()),
                int(arrays["index"].item()),
                int(arrays["repeat"].item()) if "repeat" in arrays else 0,
            )
    except (ValueError, OSError, EOFError, TypeError, BadZipFile) as error:
        raise PolicyError(f"{file} is no trajectory: {error}") from error
