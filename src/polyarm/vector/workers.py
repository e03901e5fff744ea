"""The worker engine: rings doorbells, collects completions, and leaves lives to the supervisor.

Completions, the fork server's events and deadlines are served by one poll; nothing spins.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from polyarm.errors import HostLimit, SlotError, WorkerError
from polyarm.vector import host, process
from polyarm.vector.attribute import Attribute
from polyarm.vector.board import Board, Command, Op, Result, board_segment
from polyarm.vector.engine import Done
from polyarm.vector.interrupts import HandlersWait
from polyarm.vector.launcher import ForkServerProcess
from polyarm.vector.memory import Block, Mail
from polyarm.vector.plans import SlotPlan
from polyarm.vector.roll import Roll
from polyarm.vector.settings import SlotSettings
from polyarm.vector.signals import Completion, Completions, without_attention
from polyarm.vector.supervisor import Supervisor
from polyarm.vector.workerstate import Stage, WorkerOptions, WorkerState

log = logging.getLogger("polyarm")

_SEQUENCE = int(Command.SEQUENCE)


class WorkerEngine:
    """Slots in supervised worker processes.

    Args:
        plans: What each slot holds, by slot.
        groups: Slots of each worker.
        settings: What all slots share.
        options: How workers are started and supervised.
    """

    def __init__(
        self,
        plans: Sequence[SlotPlan],
        groups: Sequence[tuple[int, ...]],
        settings: SlotSettings,
        options: WorkerOptions,
    ) -> None:
        host.allow_workers(len(groups))
        Mail.allow(settings.num_envs)
        self.plans = list(plans)
        self._sequences = np.zeros(len(groups), np.int64)
        self._workers = [
            WorkerState(index, tuple(slots), self._sequences) for index, slots in enumerate(groups)
        ]
        self._owner = [worker for worker in self._workers for _ in worker.slots]
        self._owners = np.array([worker.index for worker in self._owner], np.intp)
        self._everybody = {worker: list(worker.slots) for worker in self._workers}
        self._all_well: list[Done] = [(slot, None) for slot in range(settings.num_envs)]
        self.done: list[Done] = []
        self._before: dict[int, SlotPlan] = {}
        """What slots that switch held, which they get back if their new env cannot be built."""
        self._awaited: dict[Completion, Sequence[int]] = {}
        self._inbox: deque[Completion] = deque()
        self._roll = Roll()
        self._rung: deque[None] = deque(maxlen=0)
        self._batch: dict[Completion, Sequence[int]] | None = None
        """What is awaited, if all workers were rung together and nothing has changed since."""
        smallest = min(options.step_timeout_s, options.reset_timeout_s, options.build_timeout_s)
        self._check_every_s = min(max(smallest / 8, 0.005), 0.5)
        self._checked_at = 0.0
        process.occupy_standard_streams()
        self.block = Block()
        self.mail = Mail()
        self._completions = Completions()
        segment = board_segment(settings.num_envs, len(groups))
        buffer = self.block.map(self.block.append(segment.nbytes), segment.nbytes)
        self.board = Board(buffer, settings.num_envs, len(groups))
        self._commanded = self.board.commands[:, Command.SEQUENCE]
        self._finished = self.board.results[:, Result.SEQUENCE]
        self._commands_at = [self.board.command_at(slot) for slot in range(settings.num_envs)]
        self._results_at = [self.board.result_at(slot) for slot in range(settings.num_envs)]
        fds = (self.block.fd, self.mail.fd, self._completions.write_fd)
        try:
            self._server = ForkServerProcess(fds, options)
        except BaseException:
            self._free()
            raise
        self._supervisor = Supervisor(
            self._server,
            self.board,
            self._workers,
            self.plans,
            settings,
            options,
            owed=self._take_owed,
            answer=self._answer,
            launched=self._launched,
        )
        self.lost = self._supervisor.lost
        self._poll = select.poll()
        self._poll.register(self._completions.read_fd, select.POLLIN)
        self._poll.register(self._server.channel.fileno(), select.POLLIN)

    def start(self) -> Iterator[dict[str, Any]]:
        """Build all envs; returns a description per slot, each read when it is asked for."""
        for worker in self._workers:
            self._supervisor.launch(worker)
        while any(worker.stage is not Stage.READY or not worker.pid for worker in self._workers):
            self._serve(None)
            self.require_alive()
        self._supervisor.starting = False
        return (self.letter(plan.index)["description"] for plan in self.plans)

    def dispatch(self, slots: Sequence[int], op: Op) -> None:
        """Publish the commands of these slots, all of them idle."""
        now = time.monotonic()
        if self._before and op is not Op.SWITCH:
            for slot in slots:
                self._before.pop(slot, None)
        if len(slots) == len(self.plans):
            if self._ring_everybody(now):
                return
            groups = self._everybody
        else:
            groups = {}
            for slot in slots:
                groups.setdefault(self._owner[slot], []).append(slot)
        for worker, mine in groups.items():
            if worker.stage is Stage.READY or worker.stage is Stage.STARTING:
                self._ring(worker, mine, now)
            else:
                worker.deferred += mine

    def wait(self, min_slots: int, timeout_s: float | None, *, together: bool = False) -> None:
        """Wait until ``done`` holds at least ``min_slots`` answers, or time is up."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if not together:
            self._batch = None
        if timeout_s is not None or self._inbox or self._completions.interrupted:
            self._take_completions()
            if len(self.done) >= min_slots:
                self._serve(0.0)  # who never has to wait must hear of deaths and deadlines, too
        while len(self.done) < min_slots and self._supervisor.fatal is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            self._serve(left)
            if left == 0.0:
                break
        self.require_alive()

    def require_alive(self) -> None:
        """Raise what ended the engine, if something has."""
        fatal = self._supervisor.fatal or self._server.dead
        if fatal is not None:
            raise fatal

    def owing(self) -> set[int]:
        """Slots that have been commanded and whose answers have not been delivered."""
        waiting = {slot for slots in self._awaited.values() for slot in slots}
        deferred = {slot for worker in self._workers for slot in worker.deferred}
        switching = {slot for worker in self._workers if worker.switching for slot in worker.slots}
        return waiting | deferred | switching | {slot for slot, _ in self.done}

    def letter(self, slot: int) -> dict[str, Any]:
        """The letter that came with a slot's last answer; empty if none did."""
        nbytes = self.board.words[self._results_at[slot] + Result.LETTER]
        letter: dict[str, Any] = self.mail.get(slot, nbytes, to_worker=False) if nbytes else {}
        return letter

    def finished_episode(self, slot: int) -> None:
        """Note that a slot works: its failures are no longer in a row."""
        self._supervisor.works(slot)

    def set_attribute(self, slot: int, name: str, value: Attribute) -> None:
        """Remember an attribute, to be set again when the slot's env is rebuilt."""
        plan = self.plans[slot]
        self.plans[slot] = replace(plan, attributes={**plan.attributes, name: value})

    def switch(self, slot: int, plan: SlotPlan) -> None:
        """Give a slot another env, or else the one that it has once more.

        A worker with one slot is forked anew, which is faster.
        """
        worker = self._owner[slot]
        with HandlersWait():
            self._before[slot], self.plans[slot] = self.plans[slot], plan
            if len(worker.slots) > 1:
                nbytes = self.mail.put(slot, plan, to_worker=True)
                self.board.commands[slot, Command.LETTER] = nbytes
                self.board.commands[slot, Command.OP] = Op.SWITCH
                self.dispatch([slot], Op.SWITCH)
                return
            worker.switching = True
            if worker.stage is Stage.STARTING or worker.stage is Stage.READY:
                self._supervisor.retire(worker, kill=True)

    def worker_pids(self) -> list[int]:
        """Pids of the worker processes."""
        return [worker.pid for worker in self._workers if worker.pid]

    def close(self, timeout_s: float) -> None:
        """Close idle envs, end all processes, free all descriptors."""
        self._supervisor.fatal = None
        try:
            self._take_completions()  # whoever has answered is idle
            busy = self._busy()
            leaving = [
                worker
                for worker in self._workers
                if worker.stage is Stage.READY and worker.index not in busy
            ]
            for worker in leaving:
                worker.leaving = worker.closing = True
                self.board.commands[worker.slots[0], Command.OP] = Op.CLOSE
                self._ring(worker, worker.slots[:1], time.monotonic())
            end = time.monotonic() + timeout_s
            while any(worker.pid for worker in leaving) and time.monotonic() < end:
                self._serve(0.1)
        except (WorkerError, HostLimit, OSError) as error:
            log.warning("closing: %s", str(error))
        finally:
            self._server.close()
            self._supervisor.close()
            for worker in self._workers:
                worker.forget_process()
            self._free()

    def _free(self) -> None:
        self._completions.close()
        self.block.close()
        self.mail.close()

    def _ring(self, worker: WorkerState, slots: Sequence[int], now: float) -> None:
        """Wake a worker for these slots.

        What an interrupt must not tear apart has no call, no loop and no function entry in it:
        Python runs signal handlers there only, so none comes between the first store and the ring.
        """
        assert worker.doorbell is not None
        fd, alone = worker.doorbell.fd, len(slots) == 1
        mine: Sequence[int] | slice = slots
        if len(slots) == len(worker.slots):  # neighbours, and a slice is written 3 µs faster
            mine = slice(worker.slots[0], worker.slots[-1] + 1)
        words, commands, at = self.board.words, self.board.commands, self._commands_at
        sequence = worker.sequence + 1
        self._batch = None
        self._sequences[worker.index] = sequence
        self._awaited[worker.index, worker.generation, sequence] = slots
        worker.rung_at = now
        if alone:
            words[at[slots[0]] + _SEQUENCE] = sequence
        else:
            commands[mine, _SEQUENCE] = sequence
        os.eventfd_write(fd, 1)

    def _ring_everybody(self, now: float) -> bool:
        """Wake all workers for all slots with one call; False if they must be rung one by one.

        As in `_ring`, no handler runs between the first store and the last ring.
        """
        roll, changes = self._roll, self._supervisor.changes
        if self._awaited:
            return False
        if roll.changes != changes:
            roll = self._roll = Roll.call(self._workers, changes)
        if not roll.doorbells:
            return False
        numbers = self._sequences + 1
        commands = numbers if len(numbers) == len(self._owners) else numbers[self._owners]
        answers, rings = roll.answers(numbers.tolist()), roll.rings(os.eventfd_write)
        ring = self._rung.extend
        self._supervisor.rung_at = now
        self._sequences[:] = numbers
        self._commanded[:] = commands
        self._awaited = self._batch = answers
        ring(rings)
        return True

    def _serve(self, timeout_s: float | None) -> None:
        """One poll: completions, events of the fork server, deadlines."""
        wait_s = self._check_every_s if timeout_s is None else min(timeout_s, self._check_every_s)
        for fd, _ in self._poll.poll(wait_s * 1000):
            if fd == self._completions.read_fd:
                self._take_together()
            else:
                self._supervisor.receive()
        self._supervisor.handle_events(self._take_completions)
        now = time.monotonic()
        if now - self._checked_at >= self._check_every_s:
            self._checked_at = now
            if self._inbox:
                self._take_completions()  # whoever has answered is not overdue
            self._supervisor.check_deadlines(now, self._busy())

    def _take_together(self) -> None:
        """Enter the answers of all workers at once when the last has arrived, if all went well.

        Until then they stay in the inbox. An answer that needs attention ends the waiting.
        """
        inbox, batch = self._inbox, self._batch
        if batch is None:
            self._take_completions()
            return
        known = len(inbox)
        self._completions.take(inbox)
        if len(inbox) < len(batch) and batch.keys() >= set(islice(inbox, known, None)):
            return
        if batch.keys() != set(inbox) or (self._finished != self._commanded).any():
            self._take_completions()
            return
        self._roll.latest_first(inbox)
        self.done += self._all_well
        self._awaited, self._batch = {}, None
        inbox.clear()

    def _take_completions(self) -> None:
        """Enter the answers that have arrived.

        An interrupt must not lose what is not yet entered: an announcement stays in the inbox until
        it is dealt with, and what must not be torn apart has no call and no loop in it, or has
        handlers wait.
        """
        words, results_at, inbox = self.board.words, self._results_at, self._inbox
        awaited = self._awaited
        self._completions.take(inbox)
        if inbox:
            self._batch = None
        while inbox:
            announcement = without_attention(inbox[0])
            # What is not awaited was dealt with, or comes from a worker that has been replaced.
            slots = awaited.get(announcement)
            if slots is not None:
                worker, sequence = self._workers[announcement[0]], announcement[2]
                well: list[Done] = []
                trouble = []
                for slot in slots:
                    at = results_at[slot]
                    if words[at + Result.FAILED] or words[at + Result.SEQUENCE] != sequence:
                        trouble.append(slot)
                    else:
                        well.append((slot, None))
                if trouble or sequence == worker.ready_sequence:
                    with HandlersWait():
                        del awaited[announcement]
                        self.done += well
                        self._attend(worker, sequence, trouble)
                else:
                    del awaited[announcement]
                    self.done += well
            inbox.popleft()

    def _attend(self, worker: WorkerState, sequence: int, trouble: Sequence[int]) -> None:
        """Act on an answer that says more than that all went well."""
        if sequence == worker.ready_sequence:
            self._on_built(worker)
        for slot in trouble:
            self._on_trouble(worker, slot, sequence)

    def _on_built(self, worker: WorkerState) -> None:
        failed = [slot for slot in worker.slots if self.board.results[slot, Result.FAILED]]
        self._supervisor.built(
            worker, failed, {slot: self.letter(slot)["error"] for slot in failed}
        )

    def _on_trouble(self, worker: WorkerState, slot: int, sequence: int) -> None:
        if worker.closing:
            return
        finished = int(self.board.results[slot, Result.SEQUENCE])
        if finished != sequence:
            raise WorkerError(
                f"slot {slot} announced command {sequence} but finished {finished}:"
                f" the shared block is corrupt"
            )
        op = Op(int(self.board.commands[slot, Command.OP]))
        error = self._supervisor.raised(worker, slot, self.letter(slot)["error"])
        self._answer(slot, error)
        if op is Op.SWITCH:
            return
        if op is not Op.CALL:
            self._supervisor.strike(error)
            if len(worker.slots) == 1:
                self._supervisor.retire(worker)

    def _launched(self, worker: WorkerState) -> None:
        """A new generation exists: await its build, and ring what had to wait."""
        self._batch = None
        self._awaited[worker.index, worker.generation, worker.ready_sequence] = ()
        if worker.deferred:
            slots, worker.deferred = worker.deferred, []
            self._ring(worker, slots, time.monotonic())

    def _take_owed(self, worker: WorkerState) -> list[int]:
        """Slots that wait for this worker's answer; they wait no longer."""
        self._batch = None
        mine = [key for key in self._awaited if key[0] == worker.index]
        return [slot for key in mine for slot in self._awaited.pop(key)]

    def _busy(self) -> set[int]:
        return {worker for worker, _, _ in self._awaited}

    def _answer(self, slot: int, error: SlotError | None) -> None:
        self.done.append((slot, error))
        if error is None or slot not in self._before:
            return
        before = self._before.pop(slot)
        # Of a death, a neighbour may be guilty, or what the slot held before.
        if error.kind == "exception" or len(self._owner[slot].slots) == 1:
            self.plans[slot] = before
