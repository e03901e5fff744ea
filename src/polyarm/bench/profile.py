"""Where the time of a run went: in this process, in the critical worker, and between them.

The critical worker of a call is the one that took longest; the call could not return before.
Its parts and ``ipc`` add up to the time of the calls, and with ``build`` to the wall time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

_WORKER_PARTS = ("sim", "frames", "obs", "video", "toggle")


@dataclass(frozen=True, slots=True)
class TimingSplit:
    """Seconds spent, summed over all calls.

    Attributes:
        build: This process: building actions.
        env_call: This process: inside ``step`` or ``step_chunk``; the sum of what follows.
        sim: Critical worker: inside the env's ``step`` and ``reset``, rendering excluded.
        frames: Critical worker: rendering.
        obs: Critical worker: writing observations into the block.
        video: Critical worker: recording.
        toggle: Critical worker: switching rendering on and off.
        other: Critical worker: the rest, such as reading actions and writing infos.
        ipc: Wake-ups, waiting for a core, and this process's share of the call.
    """

    build: float = 0.0
    env_call: float = 0.0
    sim: float = 0.0
    frames: float = 0.0
    obs: float = 0.0
    video: float = 0.0
    toggle: float = 0.0
    other: float = 0.0
    ipc: float = 0.0


class CallClock:
    """Adds up the split of every call, in whole nanoseconds.

    Args:
        num_envs: Number of slots.
        num_workers: Number of workers that share them, in the engine's way: neighbours together.
    """

    def __init__(self, num_envs: int, num_workers: int) -> None:
        self._starts = [num_envs * worker // num_workers for worker in range(num_workers)]
        self._spent = dict.fromkeys((field.name for field in fields(TimingSplit)), 0)

    def add(
        self,
        build_ns: int,
        call_ns: int,
        timings: Mapping[str, NDArray[np.int64]],
        failed: NDArray[np.bool_],
    ) -> int:
        """Account for one call.

        Args:
            build_ns: Time spent building its actions.
            call_ns: Time spent inside it.
            timings: `VectorEnv.timings_ns` after it, (N,) each.
            failed: (N,), slots that have no timings of this call.

        Returns:
            What the critical worker took, in nanoseconds.
        """
        workers = {name: self._per_worker(value, failed) for name, value in timings.items()}
        critical = int(workers["total"].argmax())
        total = int(workers["total"][critical])
        parts = {name: int(workers[name][critical]) for name in _WORKER_PARTS}
        parts["other"] = total - sum(parts.values())
        parts |= {"ipc": call_ns - total, "build": build_ns, "env_call": call_ns}
        for name, spent in parts.items():
            self._spent[name] += spent
        return total

    @property
    def wall_ns(self) -> int:
        """Building and calling, so far."""
        return self._spent["build"] + self._spent["env_call"]

    def split(self) -> TimingSplit:
        """The split so far, in seconds."""
        return TimingSplit(**{name: spent / 1e9 for name, spent in self._spent.items()})

    def _per_worker(self, slots: NDArray[np.int64], failed: NDArray[np.bool_]) -> NDArray[np.int64]:
        sums: NDArray[np.int64] = np.add.reduceat(np.where(failed, 0, slots), self._starts)
        return sums
