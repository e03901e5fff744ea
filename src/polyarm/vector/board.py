"""The control board: commands, results and what each worker is doing, at a fixed place.

It needs only the number of slots and workers, so it exists before any space is known. NumPy has
no memory barriers: a command is published by the doorbell that follows it, a result by the
completion that follows it, and nobody reads either before. The clock columns of `workers` are
the exception: they are read at any time, but only to judge deadlines.

All columns are int64. Commands, results and worker records start on cache lines of their own.
Column numbers are plain ints in plain classes: an enum's would cost 100 ns at every use.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.vector.layout import Segment, segment

Integers = NDArray[np.int64]


class Op(enum.IntEnum):
    """What a slot is asked to do. EXPERT is a step whose actions the env's own expert chooses."""

    RESET = 1
    STEP = 2
    CALL = 3
    SWITCH = 4
    CLOSE = 5
    EXPERT = 6


class Phase(enum.IntEnum):
    """What a worker is doing for its active slot."""

    IDLE = 0
    BUILD = 1
    RESET = 2
    STEP = 3
    CALL = 4
    CLOSE = 5


class SegmentKind(enum.IntEnum):
    """What a segment of the block holds."""

    ROWS = 1
    CHUNK = 2
    INFO = 3


class Entry:
    """Columns of the segment table, written once per entry by the trainer.

    SIZE is the layout's digest for ROWS, the chunk's capacity for CHUNK, and the length of the
    schema's letter for INFO.
    """

    KIND = 0
    OFFSET = 1
    SIZE = 2


class Command:
    """Columns of a slot's command, written by the trainer."""

    SEQUENCE = 0
    OP = 1
    ROW = 2
    CHUNK = 3
    EPISODE = 4
    SEED = 5
    FLAGS = 6
    LETTER = 7


SEEDED = 1
"""Command flag: the SEED column holds a seed for the next reset."""
EPISODIC = 2
"""Command flag: the EPISODE column holds the episode index of the next reset."""
EPOCH_SHIFT = 8
"""From this bit on, a command's flags hold how many segments its worker must have mapped.

Entries of the table never change, so a worker that is woken early can't read half of one.
"""


class Result:
    """Columns of a slot's result, written by its worker. Times are in nanoseconds."""

    LETTER = 0
    SEQUENCE = 1
    FAILED = 2
    TOTAL_NS = 3
    SIM_NS = 4
    FRAMES_NS = 5
    OBS_NS = 6
    TOGGLE_NS = 7
    VIDEO_NS = 8


REPORT = struct.Struct("=8q")
"""A result but for its letter, from SEQUENCE on: one call is cheaper than seven stores."""


class Doing:
    """Columns of a worker's record, written by the worker."""

    SLOT = 0
    PHASE = 1
    STEP = 2
    SINCE_NS = 3


MAX_SEGMENTS = 64
WORDS = 8
"""A cache line."""
_RESULT_WORDS = 2 * WORDS


def board_segment(num_envs: int, num_workers: int) -> Segment:
    """Layout of the board."""
    return segment(
        [
            (("segments",), (MAX_SEGMENTS, WORDS), np.int64),
            (("commands",), (num_envs, WORDS), np.int64),
            (("results",), (num_envs, _RESULT_WORDS), np.int64),
            (("workers",), (num_workers, WORDS), np.int64),
        ]
    )


class Board:
    """Arrays and fast integer views over the board's bytes.

    ``words`` indexes every int64 of the board: reading one costs 40 ns, a NumPy scalar 100 ns.

    Args:
        buffer: The mapped bytes.
        num_envs: Number of slots.
        num_workers: Number of workers.
    """

    def __init__(self, buffer: Any, num_envs: int, num_workers: int) -> None:
        layout = board_segment(num_envs, num_workers)
        views = layout.views(buffer)
        self.segments: Integers = views[("segments",)]
        self.commands: Integers = views[("commands",)]
        self.results: Integers = views[("results",)]
        self.workers: Integers = views[("workers",)]
        self.words = memoryview(buffer)[: layout.nbytes // 8 * 8].cast("q")
        places = {field.name[0]: field.offset // 8 for field in layout.fields}
        self._commands_at = places["commands"]
        self._results_at = places["results"]
        self._workers_at = places["workers"]

    def command_at(self, slot: int) -> int:
        """Index in ``words`` of a slot's command."""
        return self._commands_at + slot * WORDS

    def result_at(self, slot: int) -> int:
        """Index in ``words`` of a slot's result."""
        return self._results_at + slot * _RESULT_WORDS

    def worker_at(self, worker: int) -> int:
        """Index in ``words`` of a worker's record."""
        return self._workers_at + worker * WORDS
