"""The in-process engine: the same slots and the same block, run one after the other by the trainer.

For debugging, for tests, and where processes cannot be had. Nothing protects the trainer from an
env that hangs or crashes the interpreter.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from polyarm.display.xvfb import XServer
from polyarm.errors import BuildError, SlotError, WorkerDied, WorkerError
from polyarm.vector.attribute import Attribute
from polyarm.vector.board import Board, Op, Phase, Result, board_segment
from polyarm.vector.building import RAISED, attach_display, build, describe, open_screen
from polyarm.vector.engine import Done
from polyarm.vector.failures import from_letter
from polyarm.vector.interrupts import handler_leaves
from polyarm.vector.memory import Block, Mail
from polyarm.vector.plans import SlotPlan
from polyarm.vector.raised import describe_error
from polyarm.vector.settings import SlotSettings
from polyarm.vector.slot import Shared, Slot
from polyarm.vector.surroundings import HERE

log = logging.getLogger("polyarm")


class SerialEngine:
    """Slots in this process.

    Args:
        plans: What each slot holds, by slot.
        settings: What all slots share.
        environment: Of display and suites, set here from the start until the engine is closed.
        max_restarts: Failures of a slot in a row, without a finished episode.
        own_screen: Whether to start an X server for this process.
    """

    def __init__(
        self,
        plans: Sequence[SlotPlan],
        settings: SlotSettings,
        environment: Mapping[str, str],
        max_restarts: int,
        *,
        own_screen: bool = False,
    ) -> None:
        Mail.allow(settings.num_envs)
        self._environment = environment
        self._own_screen = own_screen
        self._screen: XServer | None = None
        self.plans = list(plans)
        self._max_restarts = max_restarts
        self._strikes = [0] * settings.num_envs
        self.done: list[Done] = []
        self._broken: set[int] = set()
        self._sequence = 0
        self._fatal: WorkerError | None = None
        self.lost: dict[int, SlotError] = {}
        self.block = Block()
        self.mail = Mail()
        segment = board_segment(settings.num_envs, 1)
        buffer = self.block.map(self.block.append(segment.nbytes), segment.nbytes)
        self.board = Board(buffer, settings.num_envs, 1)
        shared = Shared(settings, self.block, self.mail, self.board)
        self._slots = [Slot(plan.index, 0, shared) for plan in plans]

    def start(self) -> Iterator[dict[str, Any]]:
        """Build all envs; returns a description per slot, each made when it is asked for.

        Raises:
            BuildError: An env cannot be built.
            DisplayError: The X server does not start.
        """
        HERE.enter(self, self._environment)
        if self._own_screen:
            self._screen = open_screen()
            HERE.enter(self, {"DISPLAY": self._screen.name})
        for plan in self.plans:
            try:
                self._build(plan.index)
            except RAISED as error:
                if handler_leaves(error):
                    raise
                letter = {**describe_error(error), "phase": "build", "step": 0}
                failure = from_letter(letter, plan, os.getpid(), "")
                raise BuildError(f"could not build {plan.spec.name}: {failure}") from error
        return (describe(slot.env) for slot in self._slots)

    def dispatch(self, slots: Sequence[int], op: Op) -> None:
        """Run the commands of these slots, here and now."""
        self._sequence += 1
        for slot in slots:
            try:
                if slot in self._broken:
                    self._build(slot)
                self._slots[slot].execute(self._sequence)
                self.done.append((slot, None))
            except RAISED as error:  # reported like a worker's
                if handler_leaves(error):
                    raise
                self._failed(slot, op, error)

    def wait(self, min_slots: int, timeout_s: float | None, *, together: bool = False) -> None:
        """Nothing is ever pending here: commands have run when `dispatch` returns."""
        self.require_alive()

    def require_alive(self) -> None:
        """Raise what ended the engine, if something has."""
        if self._fatal is not None:
            raise self._fatal

    def owing(self) -> set[int]:
        """Slots whose answers have not been delivered."""
        return {slot for slot, _ in self.done}

    def letter(self, slot: int) -> dict[str, Any]:
        """The letter that came with a slot's last answer; empty if none did."""
        nbytes = int(self.board.results[slot, Result.LETTER])
        letter: dict[str, Any] = self.mail.get(slot, nbytes, to_worker=False) if nbytes else {}
        return letter

    def finished_episode(self, slot: int) -> None:
        """Note that a slot works: its failures are no longer in a row."""
        self._strikes[slot] = 0

    def set_attribute(self, slot: int, name: str, value: Attribute) -> None:
        """Remember an attribute, to be set again when the slot's env is rebuilt."""
        plan = self.plans[slot]
        self.plans[slot] = replace(plan, attributes={**plan.attributes, name: value})

    def switch(self, slot: int, plan: SlotPlan) -> None:
        """Give a slot another env, or else the one that it has once more."""
        before, self.plans[slot] = self.plans[slot], plan
        self._broken.add(slot)  # also if an interrupt ends the build: it is tried again
        try:
            self._close_env(self._slots[slot])
            self._build(slot)
            self._slots[slot].post({"description": describe(self._slots[slot].env)})
            self.done.append((slot, None))
        except RAISED as error:  # reported like a worker's
            if handler_leaves(error):
                raise
            self._failed(slot, Op.SWITCH, error)
            self.plans[slot] = before

    def worker_pids(self) -> list[int]:
        """No processes of its own."""
        return []

    def close(self, timeout_s: float) -> None:
        """Close all envs and free the memory; what raises keeps nothing else from being freed."""
        with ExitStack() as last_first:
            last_first.callback(self.mail.close)
            last_first.callback(self.block.close)
            if self._screen is not None:
                last_first.callback(self._screen.close)
            last_first.callback(HERE.leave, self)
            for slot in reversed(self._slots):
                last_first.callback(self._close_env, slot)

    def _build(self, index: int) -> None:
        plan = self.plans[index]
        self._slots[index].publish(Phase.BUILD)
        env = build(plan)
        attach_display(plan, env)
        self._slots[index].install(env, plan.spec, plan.attributes)
        self._broken.discard(index)

    @staticmethod
    def _close_env(slot: Slot) -> None:
        if hasattr(slot, "env"):
            try:
                slot.close_env()
            except RAISED as error:  # an env that fails to close is dropped all the same
                if handler_leaves(error):
                    raise
                log.warning("closing the env of slot %d:\n%s", slot.index, traceback.format_exc())

    def _failed(self, slot: int, op: Op, error: BaseException) -> None:
        letter = {**describe_error(error), **self._slots[slot].doing()}
        failure = from_letter(letter, self.plans[slot], os.getpid(), "")
        self.done.append((slot, failure))
        if op is Op.CALL:
            return
        self._broken.add(slot)  # first: an interrupt may end the closing
        if op is not Op.SWITCH:
            self._strikes[slot] += 1
        self._close_env(self._slots[slot])
        if self._strikes[slot] > self._max_restarts:
            self._fatal = WorkerDied(
                f"gave up after {self._strikes[slot]} failures in a row"
                f" (max_restarts={self._max_restarts}): {failure}"
            )
