"""Commands on their way to slots, and answers on their way back, whatever interrupts the way.

An exception in the trainer (Ctrl-C, an alarm) may cut any call short. What had been commanded by
then is still owed: slots of a step or a reset become pending and can be received, answers to a
call are waited for and dropped before the next command goes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from polyarm.errors import EnvCallError, SlotError
from polyarm.vector.board import EPOCH_SHIFT, Command, Op
from polyarm.vector.engine import Done, Engine
from polyarm.vector.envcalls import CallMode
from polyarm.vector.episodes import Episodes
from polyarm.vector.interrupts import HandlersWait
from polyarm.vector.layout import Slots
from polyarm.vector.ledger import Ledger
from polyarm.vector.plans import SlotPlan
from polyarm.vector.ring import Ring

_ROW = int(Command.ROW)
_FAILURE = itemgetter(1)


class Commands:
    """Writes commands, publishes them and keeps track of what is owed.

    Args:
        engine: What runs the slots.
        ring: Where rows are chosen.
        ledger: Who is pending and who has ended.
        episodes: Which episode comes next.
    """

    def __init__(self, engine: Engine, ring: Ring, ledger: Ledger, episodes: Episodes) -> None:
        self._engine = engine
        self._ring = ring
        self._ledger = ledger
        self._episodes = episodes
        self._written: tuple[int, int, int, int] | None = None
        self.underway: tuple[Slots, int | None] | None = None
        """A step or reset that has been begun and not been entered in the books."""
        self.calling: set[int] = set()
        """Slots of calls or switches that have been published and whose answers are not taken."""

    def write(self, slots: Slots | None, op: Op, rows: Slots | int, chunk: int) -> None:
        """Fill in the commands of some slots, or of all; nothing is published yet."""
        commands = self._engine.board.commands
        index: Slots | slice = slice(None) if slots is None else slots
        commands[index, _ROW] = rows
        self._ledger.commanded(slots, reset=op is Op.RESET)
        # A lockstep step differs from the one before in its row alone, until an episode ends.
        state = (op, chunk, self._ring.epoch, self._episodes.version)
        if slots is None and state == self._written:
            return
        self._written = None
        commands[index, Command.OP] = op
        commands[index, Command.CHUNK] = chunk
        commands[index, Command.LETTER] = 0
        self._episodes.write(self._engine.board, index, self._ring.epoch << EPOCH_SHIFT)
        if slots is None:  # only now: a handler that raised in between has left something unwritten
            self._written = state

    def write_letters(self, slots: Slots, letters: Sequence[Any]) -> None:
        """Put a letter beside the command of each slot."""
        self._written = None
        for slot, letter in zip(slots.tolist(), letters, strict=True):
            nbytes = self._engine.mail.put(slot, letter, to_worker=True)
            self._engine.board.commands[slot, Command.LETTER] = nbytes

    def run(self, slots: Slots, op: Op, chunk: int | None) -> dict[int, SlotError]:
        """Publish what was written and wait for all slots; returns what failed."""
        self.underway = (slots, chunk)
        self._publish(slots, op)
        engine = self._engine
        engine.wait(len(slots), None, together=True)
        return dict(filter(_FAILURE, engine.done))  # type: ignore[arg-type]

    def delivered(self) -> None:
        """The answers of `run` have been entered in the books."""
        self._engine.done.clear()
        self.underway = None

    def send(self, slots: Slots, op: Op, chunk: int | None) -> None:
        """Publish what was written; the slots are pending from now on."""
        self.underway = (slots, chunk)  # first, so that what is never published is not waited for
        self._ledger.pending.update(dict.fromkeys(slots.tolist(), chunk))
        self._publish(slots, op)
        self.underway = None

    def request(
        self, mode: CallMode, name: str, each: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Call into every env; one value per slot.

        Raises:
            EnvCallError: With the first env's traceback.
        """
        self.raise_for(name, self.ask(mode, name, each, kwargs))
        return tuple(self._engine.letter(slot)["value"] for slot in self._ledger.everybody)

    def ask(
        self, mode: CallMode, name: str, each: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[SlotError]:
        """Call into every env; what failed, while the others' values are in their letters."""
        engine, everybody = self._engine, self._ledger.everybody
        self._written = None
        engine.board.commands[:, Command.OP] = Op.CALL
        self.write_letters(self._ledger.all, [(mode, name, args, kwargs) for args in each])
        self.calling = set(everybody)
        engine.dispatch(everybody, Op.CALL)
        return self._lost_among(self._take(self.calling))

    @staticmethod
    def raise_for(name: str, failures: Sequence[SlotError]) -> None:
        """Raise what failed of a call, if anything did."""
        if failures:
            raise EnvCallError(name, failures)

    def switched(self) -> list[Done]:
        """Wait until the slots of ``calling`` hold the envs that they were to have."""
        return self._take(self.calling)

    def begin_switch(self, slot: int, plan: SlotPlan) -> None:
        """Have a slot hold another env; it answers like a command."""
        self._written = None
        self._engine.switch(slot, plan)

    def _take(self, slots: set[int]) -> list[Done]:
        """Wait for answers of these slots to calls or switches, and take them, not others'."""
        engine, missing = self._engine, slots
        while missing:  # the last wait has nobody to wait for, and says if the engine has ended
            missing = slots.difference(slot for slot, _ in engine.done)
            engine.wait(len(engine.done) + len(missing), None)
        answers = [answer for answer in engine.done if answer[0] in slots]
        engine.done[:] = [answer for answer in engine.done if answer[0] not in slots]
        self.calling = set()
        return answers

    def _lost_among(self, answers: Sequence[Done]) -> list[SlotError]:
        """What failed; envs that died are lost, and their slots' next steps say so."""
        failures = [failure for _, failure in answers if failure is not None]
        dead = {failure.slot: failure for failure in failures if failure.kind != "exception"}
        self._engine.lost.update(dead)
        return failures

    def recover(self) -> None:
        """Put things in order after an exception has cut a call short."""
        if self.calling:
            self._lost_among(self._take(self.calling & self._engine.owing()))
        if self.underway is None:
            return
        slots, chunk = self.underway
        owing, pending = self._engine.owing(), self._ledger.pending
        for slot in slots.tolist():
            if slot in owing:
                pending[slot] = chunk
            else:
                pending.pop(slot, None)
        never = np.array([slot for slot in slots.tolist() if slot not in owing], np.intp)
        if len(never):
            self._ring.restore(never)
        self.underway = None  # last: what interrupts this is recovered from in the same way

    def forget_losses(self, slots: Slots, *, ended: bool = False) -> None:
        """Slots that lost their env between episodes, or are being reset: no episode was cut.

        Args:
            slots: The slots of a command.
            ended: Whether to look only at those whose episode has ended.
        """
        if self._engine.lost:
            for slot in (slots[self._ledger.ended[slots]] if ended else slots).tolist():
                if self._engine.lost.pop(slot, None) is not None:
                    self._episodes.failed(slot, resetting=False)

    def _publish(self, slots: Slots, op: Op) -> None:
        """Dispatch commands; slots that lost their env while idle answer at once."""
        sent = list(self._ledger.everybody) if slots is self._ledger.all else slots.tolist()
        if self._engine.lost and op is not Op.RESET:
            with HandlersWait():
                for slot in slots.tolist():
                    if (failure := self._engine.lost.pop(slot, None)) is not None:
                        self._engine.done.append((slot, failure))
                        sent.remove(slot)
        self._engine.dispatch(sent, op)
