"""Asking a policy: by a deadline, in smaller batches when memory is short, never unchecked."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, Policy
from polyarm.errors import PolicyError
from polyarm.policies.blame import raised
from polyarm.rollout.chunking import as_chunks

log = logging.getLogger("polyarm")

Array = NDArray[Any]


class CostModel:
    """What a decision costs: so much per call and so much per row, learned from the calls."""

    _DECAY = 0.9

    def __init__(self) -> None:
        self._sums = np.zeros(5)
        self._line: tuple[float, float] | None = None
        self.calls = 0

    def add(self, rows: int, seconds: float) -> None:
        """Note a call."""
        self.calls += 1
        new = (1.0, rows, seconds, rows * rows, rows * seconds)
        self._sums = self._DECAY * self._sums + new
        weight, x, y, xx, xy = self._sums
        spread = weight * xx - x * x
        # Calls that had about as many rows each say nothing new.
        if spread > 0.02 * weight * xx:
            slope = max(0.0, (weight * xy - x * y) / spread)
            self._line = (max(0.0, (y - slope * x) / weight), slope)

    def seconds(self, rows: int) -> float | None:
        """What a call with so many rows costs; None if other numbers of rows are worth a try."""
        if self._line is None:
            return None
        fixed, slope = self._line
        return float(fixed + slope * rows)

    def fixed_share(self, rows: int) -> float | None:
        """Which part of a call with so many rows it would cost with none; None as above."""
        total = self.seconds(rows)
        if self._line is None or total is None:
            return None
        return float(self._line[0] / total) if total > 0 else 1.0


class PolicyCaller:
    """Calls ``act`` for one batch after another, and ``begin`` and ``end`` for each episode.

    Args:
        policy: What is asked.
        space: Action space of a single env.
        max_batch: Rows per call at most; halved when the policy runs out of GPU memory.
        timeout_s: How long one call may take; None for ever.

    Attributes:
        seconds: Spent in the policy so far.
        last_s: Spent in the last call of `act`.
        max_batch: Rows per call at most, as it is now.
        cost: What calls cost.
    """

    def __init__(
        self,
        policy: Policy,
        space: gymnasium.Space[Any],
        *,
        max_batch: int,
        timeout_s: float | None,
    ) -> None:
        self._policy = policy
        self._space = space
        self._timeout_s = timeout_s
        self.max_batch = max_batch
        self.seconds = self.last_s = 0.0
        self.cost = CostModel()

    def act(self, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Actions ``(B, K, …)`` and extras ``(B, …)`` for every row.

        Raises:
            PolicyError: It raised, hung or returned what no env can use; names task, episode and
                step.
        """
        parts, start, before = [], 0, self.seconds
        while start < len(batch):
            part = batch.rows(start, start + self.max_batch)
            answer = self._ask(part)
            if answer is not None:  # else the limit has become smaller: the same rows again
                parts.append(answer)
                start += len(part)
        self.last_s = self.seconds - before
        self.cost.add(len(batch), self.last_s)
        if len(parts) == 1:
            return parts[0]
        if len({actions.shape[1] for actions, _ in parts}) > 1:
            raise PolicyError("the policy returned chunks of different lengths for one batch")
        extras = {name: np.concatenate([each[1][name] for each in parts]) for name in parts[0][1]}
        return np.concatenate([actions for actions, _ in parts]), extras

    def begin(self, key: EpisodeKey) -> None:
        """Tell the policy that an episode begins.

        Raises:
            PolicyError: It raised or hung.
        """
        self._tell("begin", key)

    def end(self, key: EpisodeKey) -> None:
        """Tell the policy that an episode is over, if it wants to know.

        Raises:
            PolicyError: It raised or hung.
        """
        if hasattr(self._policy, "end"):
            self._tell("end", key)

    def _tell(self, name: str, key: EpisodeKey) -> None:
        try:
            with _deadline(self._timeout_s):
                getattr(self._policy, name)([key])
        except _TimeIsUp:
            raise PolicyError(
                f"the policy's {name}() has not returned for {self._timeout_s:g} s; episode {key}"
            ) from None
        except Exception as error:
            raise PolicyError(
                f"the policy's {name}() raised {raised(error)}; episode {key}"
            ) from error

    def _ask(self, batch: Batch) -> tuple[Array, dict[str, Array]] | None:
        began = time.perf_counter()
        # A batch that is asked again must find its generators as they were.
        states = [generator.bit_generator.state for generator in batch.generators]
        try:
            with _deadline(self._timeout_s):
                output = self._policy.act(batch)
        except _TimeIsUp:
            raise PolicyError(
                f"the policy has not answered for {self._timeout_s:g} s; {_whose(batch)}"
            ) from None
        except Exception as error:
            if not _is_out_of_memory(error) or len(batch) == 1:
                row = getattr(error, "row", None)
                if isinstance(error, PolicyError):
                    raise PolicyError(f"{error}; {_whose(batch, row)}", row=row) from error
                raise PolicyError(f"the policy raised {raised(error)}; {_whose(batch)}") from error
            self._halve(len(batch))
            for generator, state in zip(batch.generators, states, strict=True):
                generator.bit_generator.state = state
            return None
        finally:
            self.seconds += time.perf_counter() - began
        try:
            return as_chunks(output, len(batch), self._space)
        except PolicyError as error:
            raise PolicyError(f"{error}; {_whose(batch, error.row)}", row=error.row) from None

    def _halve(self, rows: int) -> None:
        self.max_batch = max(1, rows // 2)
        log.warning(
            "the policy ran out of GPU memory with %d rows; going on with %d at most",
            rows,
            self.max_batch,
        )
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()


def _whose(batch: Batch, row: int | None = None) -> str:
    """Which episode and step an error is about."""
    if row is None and len(batch) > 1:
        return (
            f"it was asked about {len(batch)} episodes, the first being {batch.keys[0]} at step"
            f" {batch.steps[0]}"
        )
    place = row or 0
    return f"episode {batch.keys[place]}, step {batch.steps[place]}"


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is torch's, without importing torch."""
    return any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__)


class _TimeIsUp(BaseException):
    """Raised in the policy's midst; no ``except Exception`` of its own can swallow it."""


@contextmanager
def _deadline(timeout_s: float | None) -> Iterator[None]:
    """Interrupt the body when time is up.

    Signals reach the main thread alone, and only between two steps of Python: there is no deadline
    in other threads, nor for native code that never returns.
    """
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TimeIsUp

    # There is one timer per process; the caller's own (pytest-timeout's, say) goes on afterwards.
    theirs_s, every_s = signal.setitimer(signal.ITIMER_REAL, 0)
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if theirs_s:
            left_s = max(1e-3, theirs_s - (time.monotonic() - began))
            signal.setitimer(signal.ITIMER_REAL, left_s, every_s)
