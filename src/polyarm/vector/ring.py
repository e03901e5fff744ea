"""The ring of rows: which row each slot writes next, where it wrote last, and what is read there.

Row numbers are chosen here and sent with each command. A lockstep `step` gives all slots the same
row; `send` lets each slot advance on its own, and the next lockstep call brings them together. A
row is written again by the slot's T-th following command at the earliest, however they are mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from polyarm.errors import InvalidCall
from polyarm.vector.board import Board
from polyarm.vector.layout import Array, BlockLayout, Path, Slots, nest
from polyarm.vector.memory import Block, Mail
from polyarm.vector.segments import Chunk, Segments

_POISON_BYTE = 0xDB
_ASIDE = -1
"""In place of a row: the slot's last observation is kept outside the block."""
_FORGOTTEN = -1
"""In place of a number of steps: the row is of a history that has been rewound."""


class Ring(Segments):
    """Rows, chunks and infos of all slots.

    Args:
        block: The shared block.
        board: The control board, whose segment table announces what is appended.
        mail: Where the info schema is left for workers.
        layout: Layout of the block.
        space: The observation space as delivered.
    """

    def __init__(
        self,
        block: Block,
        board: Board,
        mail: Mail,
        layout: BlockLayout,
        space: gymnasium.Space[Any],
    ) -> None:
        super().__init__(block, board, mail, layout)
        self._space = space
        self.slot_row: Slots = np.zeros(layout.num_envs, np.intp)
        self.slot_chunk: list[Chunk] = [self.chunk] * layout.num_envs
        # Where each slot's last complete observation lies, whatever becomes of its command.
        self._last_row: Slots = np.zeros(layout.num_envs, np.intp)
        self._aside: dict[int, list[tuple[Array, Array]]] = {}
        self._row = self._row_before = 0
        self._aligned = True
        self._in_order = True
        self._shared_chunk: Chunk | None = self.chunk
        self._flags = list(self.rows[("flags",)])
        self._steps = list(self.rows[("steps",)])
        self._ends = [memoryview(flags[:2].reshape(-1).view(np.uint8)) for flags in self._flags]
        self._no_ends = bytes(2 * layout.num_envs)
        self._observed: list[dict[str, Array] | None] = [None] * layout.rows
        self._buffers = [np.zeros((0,), leaf.dtype) for leaf in layout.observation]
        self.before_overwrite: Callable[[Slots | int, Slots | slice | int], None] | None = None
        """Told which rows of which slots are about to be written again; readers are waited for."""

    def write_actions(self, slots: Slots | slice, arrays: list[Array], chunk: int) -> None:
        """Put checked actions, ``(n, K, …)`` per leaf, where workers read them."""
        for view, array in zip(self.chunk.actions, arrays, strict=True):
            view[slots, :chunk] = array

    def actions(self, slot: int, steps: int) -> Array:
        """A copy of the actions that a slot's last chunk began with."""
        (held,) = self.slot_chunk[slot].actions
        return held[slot, :steps].copy()

    def advance_all(self) -> int:
        """The next row for a lockstep command, which brings all slots together."""
        if not self._aligned:
            self._align()
        row = (self._row + 1) % self.layout.rows
        if self.before_overwrite is not None:
            self.before_overwrite(row, slice(None))
        self._row_before, self._row = self._row, row
        self.slot_row[:] = row
        return row

    def _align(self) -> None:
        """Choose the row from which slots that went their own ways go on together.

        It is that of the last lockstep call, if they are not all in one row. A slot was there or
        further on, so no view loses its row before its time. Only a last observation may lie in the
        way, in the row that is written next: it is kept aside. The call that follows comes here
        again, and drops what has been kept.
        """
        for slot in [one for one in self._aside if self._last_row[one] != _ASIDE]:
            del self._aside[slot]
        if (self.slot_row == self.slot_row[0]).all():
            self._row = int(self.slot_row[0])
        else:
            self._in_order = False
        row = (self._row + 1) % self.layout.rows
        for slot in np.flatnonzero(self._last_row == row).tolist():
            parts = self._parts(slot, row).values()
            self._aside[slot] = [(part, part.copy()) for part in parts]
            self._last_row[slot] = _ASIDE
        self._aligned = not self._aside

    def _last(self, slot: int) -> int:
        """The row of a slot's last observation; one that was kept aside is put back."""
        if self._last_row[slot] == _ASIDE:
            for part, kept in self._aside[slot]:
                part[...] = kept
            self._last_row[slot] = self.slot_row[slot]
        return int(self._last_row[slot])

    def rewind(self) -> None:
        """Carry everybody's newest observation to row 0, and forget what came of other rows."""
        self.use_chunk(None)
        self._aligned = False
        for slot in np.flatnonzero(self.slot_row).tolist():
            self.copy(slot, int(self.slot_row[slot]), 0)
            self.slot_row[slot] = 0
        self._row = 0
        self._aside.clear()
        self.rows[("steps",)][1:] = _FORGOTTEN
        self.rows[("flags",)][1:, :2] = False
        self._aligned = self._in_order = True

    def advance(self, slots: Slots) -> Slots:
        """The next row of each of these slots."""
        rows: Slots = (self.slot_row[slots] + 1) % self.layout.rows
        if self.before_overwrite is not None:
            self.before_overwrite(rows, slots)
        self._aligned = False
        self._row_before = self._row
        self.slot_row[slots] = rows
        return rows

    def restore(self, slots: Slots) -> None:
        """Go back to where these slots' last observations lie: no newer ones will come."""
        rows = np.array([self._last(slot) for slot in slots.tolist()], np.intp)
        if (rows != self.slot_row[slots]).any():  # if it was a lockstep call, it never was
            self._row = self._row_before
        self.slot_row[slots] = rows
        self._aligned = not self._aside and bool((self.slot_row == self._row).all())

    def settled(self, slots: Slots | None, rows: Slots | int) -> None:
        """Note that slots, or all, have complete observations in these rows."""
        if slots is None:
            self._last_row[:] = rows
        else:
            self._last_row[slots] = rows

    def use_chunk(self, slots: Slots | None) -> None:
        """Have these slots, or all, work in the newest chunk segment from now on."""
        if slots is None:
            if self._shared_chunk is not self.chunk:
                self.use_chunk(np.arange(self.layout.num_envs))
                self._shared_chunk = self.chunk
            return
        for slot in slots:
            if self.slot_chunk[slot] is not self.chunk:
                self._move(slot)

    def _move(self, slot: int) -> None:
        """Have a slot work in the newest chunk segment; all its rows come along.

        The old segment stays as it is: views of it may be held.
        """
        source = self.slot_chunk[slot]
        for name, array in self.chunk.views.items():
            if name[0] == "action":
                array[slot, : source.capacity] = source.views[name][slot]
            else:
                array[:, slot, : source.capacity] = source.views[name][:, slot]
        self._shared_chunk = None
        self.slot_chunk[slot] = self.chunk

    def copy(self, slot: int, from_row: int, to_row: int) -> None:
        """Carry a slot's observation, flags and rewards over to another row."""
        if self.before_overwrite is not None:
            self.before_overwrite(to_row, slot)
        source = self._parts(slot, from_row)
        for name, part in self._parts(slot, to_row).items():
            part[...] = source[name]
        self.settled(np.array([slot]), to_row)

    def _parts(self, slot: int, row: int) -> dict[Path, Array]:
        """Views of all that a slot delivers in a row."""
        parts = {
            name: array[row, :, slot] if name == ("flags",) else array[row, slot, ...]
            for name, array in self.rows.items()
        }
        chunk = self.slot_chunk[slot].views.items()
        return parts | {name: array[row, slot] for name, array in chunk if name[0] != "action"}

    def stay(self, slot: int, from_row: int, row: int) -> None:
        """Fill the row of a slot that makes no step in it: its newest observation comes first."""
        self.copy(slot, from_row, row)
        newest = self._newest(slot, row)
        if newest:
            views = self.slot_chunk[slot].views
            for name in (
                ("frame_valid",),
                *(("obs", *leaf.path) for leaf in self.layout.observation),
            ):
                views[name][row, slot, 0] = views[name][row, slot, newest]
        self.rows[("steps",)][row, slot] = 0
        self.rows[("flags",)][row, :2, slot] = False

    def _newest(self, slot: int, row: int) -> int:
        """The place of a slot's newest observation in a row: others are of earlier steps."""
        return max(int(self.rows[("steps",)][row, slot]) - 1, 0) if self.layout.every else 0

    def fail(self, slot: int, chunk: int) -> None:
        """Fill the row of a slot whose env failed: its last complete observation, no reward.

        Args:
            slot: The slot.
            chunk: How many actions it was sent.
        """
        row, from_row = int(self.slot_row[slot]), self._last(slot)
        newest, views = self._newest(slot, from_row), self.slot_chunk[slot].views
        for leaf in self.layout.observation:
            name = ("obs", *leaf.path)
            if self.layout.every:
                views[name][row, slot, 0] = views[name][from_row, slot, newest]
                views[name][row, slot, 1:chunk] = 0
            else:
                self.rows[name][row, slot] = self.rows[name][from_row, slot]
        if self.layout.every:
            views[("frame_valid",)][row, slot] = False
        self.rows[("flags",)][row, :, slot] = (False, True, False)
        self.rows[("steps",)][row, slot] = 0
        views[("rewards",)][row, slot, :chunk] = 0.0

    def poison(self, slots: Slots | slice, row: int) -> None:
        """Spoil the row after the one about to be written: views of it have expired."""
        expired = (row + 1) % self.layout.rows
        # A slot that was ahead may have its last observation there, and has long overwritten views.
        others = np.arange(self.layout.num_envs)[slots]
        others = others[self._last_row[others] != expired]
        if self.before_overwrite is not None:
            self.before_overwrite(expired, others)
        home = self.chunk.views if self.layout.every else self.rows
        for leaf in self.layout.observation:
            view = home[("obs", *leaf.path)]
            poison = (
                np.nan if leaf.dtype.kind == "f" else np.full((), _POISON_BYTE).astype(leaf.dtype)
            )
            view[expired, others] = poison

    def observe_all(self, row: int, chunk: int | None) -> Any:
        """Views of a row: ``(N, …)``, or ``(N, K, …)`` when every step is delivered."""
        if self.layout.every:
            values = {}
            for leaf in self.layout.observation:
                view = self.chunk.views[("obs", *leaf.path)][row]
                values[leaf.path] = view[:, 0] if chunk is None else view[:, :chunk]
            return nest(self._space, values)
        if (known := self._observed[row]) is not None:
            return known.copy()
        values = {o.path: self.rows[("obs", *o.path)][row] for o in self.layout.observation}
        observed = nest(self._space, values)
        if isinstance(observed, dict) and all(len(o.path) == 1 for o in self.layout.observation):
            self._observed[row] = observed.copy()
        return observed

    def observe(self, slots: Slots, chunk: int | None, lengths: Sequence[int]) -> Any:
        """The newest observations of some slots, gathered once into a reusable buffer.

        Args:
            slots: The batch.
            chunk: The longest chunk of the batch, or None for single steps.
            lengths: How many actions each slot was sent.
        """
        rows, num_envs = self.slot_row[slots], self.layout.num_envs
        values = {}
        for place, leaf in enumerate(self.layout.observation):
            name = ("obs", *leaf.path)
            if self.layout.every:
                gathered = np.zeros((len(slots), chunk or 1, *leaf.shape), leaf.dtype)
                for i, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
                    held = self.slot_chunk[slot].views[name]
                    gathered[i, :length] = held[rows[i], slot, :length]
                values[leaf.path] = gathered[:, 0] if chunk is None else gathered
                continue
            if len(self._buffers[place]) == 0:
                self._buffers[place] = np.empty((num_envs, *leaf.shape), leaf.dtype)
            flat = self.rows[name].reshape(self.layout.rows * num_envs, *leaf.shape)
            out = self._buffers[place][: len(slots)]
            np.take(flat, rows * num_envs + slots, axis=0, out=out, mode="clip")
            values[leaf.path] = out
        return nest(self._space, values)

    def flags(self, slots: Slots | None, rows: Slots | int) -> tuple[Array, Array]:
        """Copies of the flags, ``(3, n)``, and the steps, of some slots or of all in one row."""
        if slots is None:
            return self._flags[int(rows)].copy(), self._steps[int(rows)].copy()
        return self.rows[("flags",)][rows, :, slots].T, self.rows[("steps",)][rows, slots]

    def goes_on(self, row: int) -> bool:
        """Whether no slot's episode has ended in a row that all slots have written."""
        return bool(self._ends[row] == self._no_ends)

    def rewards(
        self,
        slots: Slots | None,
        rows: Slots | int,
        chunk: int | None,
        lengths: Sequence[int] | None = None,
    ) -> Array:
        """Copies of rewards: ``(n,)``, or ``(n, K)`` for chunks."""
        if slots is None and self._shared_chunk is self.chunk:
            rewards: Array = self.chunk.rewards[int(rows)]
            return rewards[:, 0].copy() if chunk is None else rewards[:, :chunk].copy()
        return self._gather(("rewards",), slots, rows, chunk, lengths)

    def frame_valid(
        self,
        slots: Slots | None,
        rows: Slots | int,
        chunk: int | None,
        lengths: Sequence[int] | None = None,
    ) -> Array:
        """Copies of the frame validity of every step, ``(n,)`` or ``(n, K)``."""
        return self._gather(("frame_valid",), slots, rows, chunk, lengths)

    def _gather(
        self,
        name: Path,
        slots: Slots | None,
        rows: Slots | int,
        chunk: int | None,
        lengths: Sequence[int] | None,
    ) -> Array:
        """One ``[T][N][K]`` field of slots whose chunks may differ in segment and length."""
        chosen = np.arange(self.layout.num_envs) if slots is None else slots
        each = np.broadcast_to(rows, (len(chosen),))
        out = np.zeros((len(chosen), chunk or 1), self.chunk.views[name].dtype)
        for i, slot in enumerate(chosen):
            length = (chunk or 1) if lengths is None else lengths[i]
            out[i, :length] = self.slot_chunk[slot].views[name][each[i], slot, :length]
        return out[:, 0] if chunk is None else out

    def history(self) -> dict[str, Any]:
        """The whole ring, in the block's order: views of observations, copies of all else.

        Raises:
            InvalidCall: Rows are not in the order of time.
        """
        if not self._in_order or (self.slot_row != self.slot_row[0]).any():
            raise InvalidCall(
                "history() is of all slots together, and some have been sent more often than others"
                " since the last rewind(): their rows are not in the order of time. rewind() begins"
                " a new history with the newest observations."
            )
        self.use_chunk(None)
        flags, steps = self.rows[("flags",)], self.rows[("steps",)]
        # A row may have held a longer chunk before: what lies behind the steps made is not of it.
        places = np.arange(self.longest)
        rewards = self.chunk.views[("rewards",)][..., : self.longest]
        rewards = np.where(places < steps[..., None], rewards, 0.0)
        home = self.chunk.views if self.layout.every else self.rows
        values = {leaf.path: home[("obs", *leaf.path)] for leaf in self.layout.observation}
        if self.layout.every:
            behind = (places >= np.maximum(steps, 1)[..., None]) & (steps != _FORGOTTEN)[..., None]
            for path, array in values.items():
                values[path] = view = array[:, :, : self.longest]
                view[behind] = 0
        return {
            "obs": nest(self._space, values),
            "rewards": rewards[..., 0] if self.longest == 1 else rewards,
            "terminated": flags[:, 0].copy(),
            "truncated": flags[:, 1].copy(),
            "steps": np.maximum(steps, 0),
            "row": int(self.slot_row[0]),
        }
