"""The worker engine: rings doorbells, collects completions, and replaces workers that fail.

Completions, the fork server's events and deadlines are served by one poll. A worker's bytes are
given to a successor only after the fork server has reported it reaped.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyarm.errors import BuildError, SlotError, WorkerDied, WorkerError
from polyarm.vector import failures, host
from polyarm.vector.board import Board, Command, Doing, Op, Phase, Result, board_segment
from polyarm.vector.channel import Message
from polyarm.vector.engine import Done
from polyarm.vector.launcher import ForkServerProcess
from polyarm.vector.memory import Block, Mail
from polyarm.vector.signals import Completions, Doorbell
from polyarm.vector.slot import SlotSettings
from polyarm.vector.worker import SlotPlan, WorkerPlan
from polyarm.vector.workerstate import Stage, WorkerOptions, WorkerState

log = logging.getLogger("polyarm")

_LAST_WORDS_S = 0.5
_UNKILLABLE_S = 10.0
_PHASE_OF = {Op.RESET: Phase.RESET, Op.STEP: Phase.STEP, Op.SWITCH: Phase.BUILD}


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
        host.raise_descriptor_limit(2 * len(groups) + 256)
        self._plans = list(plans)
        self._settings = settings
        self._options = options
        self._workers = [WorkerState(index, tuple(slots)) for index, slots in enumerate(groups)]
        self._owner = {slot: worker for worker in self._workers for slot in worker.slots}
        self._done: deque[Done] = deque()
        self._events: deque[Message] = deque()
        self._strikes = [0] * settings.num_envs
        self._fatal: WorkerError | None = None
        self._starting = True
        smallest = min(options.step_timeout_s, options.reset_timeout_s, options.build_timeout_s)
        self._check_every_s = min(max(smallest / 8, 0.005), 0.5)
        self._checked_at = 0.0
        self.lost: dict[int, SlotError] = {}
        self.block = Block()
        self.mail = Mail()
        self._completions = Completions()
        segment = board_segment(settings.num_envs, len(groups))
        buffer = self.block.map(self.block.append(segment.nbytes), segment.nbytes)
        self.board = Board(buffer, settings.num_envs, len(groups))
        fds = (self.block.fd, self.mail.fd, self._completions.write_fd)
        self._server = ForkServerProcess(fds, options.environment, options.memory_limit)
        self._poll = select.poll()
        self._poll.register(self._completions.read_fd, select.POLLIN)
        self._poll.register(self._server.channel.fileno(), select.POLLIN)

    def start(self) -> list[dict[str, Any]]:
        """Build all envs; returns a description per slot."""
        for worker in self._workers:
            self._launch(worker)
        while any(worker.stage is not Stage.READY for worker in self._workers):
            self._serve(None)
            if self._fatal is not None:
                raise self._fatal
        self._starting = False
        return [self.letter(slot)["description"] for slot in range(self._settings.num_envs)]

    def dispatch(self, slots: Sequence[int], op: Op) -> None:
        """Publish the commands of these slots, all of them idle."""
        if len(self._workers) == self._settings.num_envs:
            groups: Mapping[WorkerState, Sequence[int]] = {self._owner[s]: (s,) for s in slots}
        else:
            groups = {}
            for slot in slots:
                groups.setdefault(self._owner[slot], []).append(slot)  # type: ignore[union-attr]
        for worker, mine in groups.items():
            if worker.stage is Stage.LOST and self._fatal is not None:
                raise self._fatal
            if worker.stage is Stage.ENDING:
                worker.deferred += mine
            else:
                self._ring(worker, mine)

    def wait(self, min_slots: int, timeout_s: float | None) -> list[Done]:
        """Slots that have answered: at least ``min_slots``, or fewer when time is up."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        self._take_completions()
        while len(self._done) < min_slots:
            if self._fatal is not None:
                raise self._fatal
            left = None if end is None else max(0.0, end - time.monotonic())
            self._serve(left)
            if left == 0.0:
                break
        done = list(self._done)
        self._done.clear()
        return done

    def letter(self, slot: int) -> dict[str, Any]:
        """The letter that came with a slot's last answer; empty if none did."""
        nbytes = self.board.words[self.board.result_at(slot) + Result.LETTER]
        letter: dict[str, Any] = self.mail.get(slot, nbytes, to_worker=False) if nbytes else {}
        return letter

    def finished_episode(self, slot: int) -> None:
        """Note that a slot works: its failures are no longer consecutive."""
        self._strikes[slot] = 0

    def set_attribute(self, slot: int, name: str, value: Any) -> None:
        """Remember an attribute, to be set again when the slot's env is rebuilt."""
        plan = self._plans[slot]
        self._plans[slot] = replace(plan, attributes={**plan.attributes, name: value})

    def switch(self, slot: int, plan: SlotPlan) -> None:
        """Give a slot another env; a worker with one slot is forked anew, which is faster."""
        worker = self._owner[slot]
        self._plans[slot] = plan
        if len(worker.slots) > 1:
            nbytes = self.mail.put(slot, plan, to_worker=True)
            self.board.commands[slot, Command.LETTER] = nbytes
            self.board.commands[slot, Command.OP] = Op.SWITCH
            self.dispatch([slot], Op.SWITCH)
            return
        worker.switching = True
        if worker.stage is Stage.STARTING or worker.stage is Stage.READY:
            worker.stage, worker.leaving = Stage.ENDING, True
            worker.signal(signal.SIGKILL)

    def worker_pids(self) -> list[int]:
        """Pids of the worker processes."""
        return [worker.pid for worker in self._workers if worker.pid]

    def close(self, timeout_s: float) -> None:
        """Close idle envs, end all processes, free all descriptors."""
        self._fatal = None
        leaving = [w for w in self._workers if w.stage is Stage.READY and not w.rung]
        try:
            for worker in leaving:
                self.board.commands[worker.slots[0], Command.OP] = Op.CLOSE
                self._ring(worker, worker.slots[:1])
                worker.leaving = worker.closing = True
            end = time.monotonic() + timeout_s
            while any(worker.pid for worker in leaving) and time.monotonic() < end:
                self._serve(0.1)
        except WorkerError as error:
            log.warning("closing: %s", error)
        finally:
            self._server.close()
            for worker in self._workers:
                worker.forget_process()
            self._completions.close()
            self.block.close()
            self.mail.close()

    def _launch(self, worker: WorkerState) -> None:
        """Ask for the worker's next generation; commands may be rung at once."""
        worker.generation += 1
        worker.sequence += 1
        worker.ready_sequence = worker.sequence
        worker.doorbell = Doorbell()
        worker.stage = Stage.STARTING
        self.board.workers[worker.index] = 0
        cpus = sorted(os.sched_getaffinity(0))
        plan = WorkerPlan(
            worker=worker.index,
            generation=worker.generation,
            sequence=worker.sequence,
            slots=tuple(self._plans[slot] for slot in worker.slots),
            settings=self._settings,
            entropy=self._options.entropy,
            cpu=cpus[worker.index % len(cpus)] if self._options.pin else None,
        )
        options = self._options
        self._server.start_worker(
            plan, worker.doorbell.fd, options.mode, options.environment, options.build_timeout_s
        )
        if worker.deferred:
            slots, worker.deferred = worker.deferred, []
            self._ring(worker, slots)

    def _ring(self, worker: WorkerState, slots: Sequence[int]) -> None:
        worker.sequence += 1
        words, board = self.board.words, self.board
        for slot in slots:
            words[board.command_at(slot) + Command.SEQUENCE] = worker.sequence
        worker.rung[worker.sequence] = slots
        worker.rung_at = time.monotonic()
        assert worker.doorbell is not None
        worker.doorbell.ring()

    def _serve(self, timeout_s: float | None) -> None:
        """One poll: completions, events of the fork server, deadlines."""
        wait_s = self._check_every_s if timeout_s is None else min(timeout_s, self._check_every_s)
        for fd, _ in self._poll.poll(0 if self._events else wait_s * 1000):
            if fd == self._completions.read_fd:
                self._take_completions()
            else:
                self._events.extend(self._server.receive())
        while self._events:
            self._handle(self._events.popleft())
        now = time.monotonic()
        if now - self._checked_at >= self._check_every_s:
            self._checked_at = now
            self._check_deadlines(now)

    def _take_completions(self) -> None:
        for index, generation, sequence in self._completions.take():
            worker = self._workers[index] if index < len(self._workers) else None
            if worker is None or worker.generation != generation:
                continue
            if sequence == worker.ready_sequence and worker.stage is Stage.STARTING:
                self._on_built(worker)
                continue
            for slot in worker.rung.pop(sequence, ()):
                self._on_answer(worker, slot, sequence)

    def _on_built(self, worker: WorkerState) -> None:
        for slot in worker.slots:
            if self.board.results[slot, Result.FAILED]:
                error = self._raised(worker, slot, Phase.BUILD)
                worker.stage, worker.leaving = Stage.ENDING, True
                others = {
                    other: replace(error, kind="collateral", slot=other, stack="", stderr="")
                    for other in worker.slots
                }
                self._fail(worker, {**others, slot: error})
                return
        worker.stage = Stage.READY
        if worker.switching:
            worker.switching = False
            self._done.append((worker.slots[0], None))

    def _on_answer(self, worker: WorkerState, slot: int, sequence: int) -> None:
        words, at = self.board.words, self.board.result_at(slot)
        if worker.closing:
            return
        if words[at + Result.SEQUENCE] != sequence:
            raise WorkerError(
                f"slot {slot} announced command {sequence} but finished"
                f" {words[at + Result.SEQUENCE]}: the shared block is corrupt"
            )
        if not words[at + Result.FAILED]:
            self._done.append((slot, None))
            return
        op = Op(int(self.board.commands[slot, Command.OP]))
        error = self._raised(worker, slot, _PHASE_OF.get(op, Phase.CALL))
        self._done.append((slot, error))
        if op is not Op.CALL:
            self._strike(error)
            if len(worker.slots) == 1:
                worker.stage, worker.leaving = Stage.ENDING, True

    def _handle(self, event: Message) -> None:
        worker = self._workers[event["worker"]]
        if event.get("generation", worker.generation) != worker.generation:
            return
        if event["event"] == "started":
            worker.pid = event["pid"]
            worker.pidfd = event["fds"][0] if event["fds"] else -1
            worker.rung_at = time.monotonic()
            if worker.leaving:
                worker.signal(signal.SIGKILL)
        elif event["event"] == "ended":
            self._on_ended(worker, event)
        elif event["event"] == "failed":
            pending = dict.fromkeys(worker.slots)
            errors = {s: failures.from_failed_start(event, self._plans[s]) for s in pending}
            self._fail(worker, errors)
            worker.forget_process()
            self._relaunch(worker)
        elif event["event"] == "threads":
            self._fall_back(event["threads"])
            worker.deferred += [s for slots in worker.rung.values() for s in slots]
            worker.forget_process()
            self._relaunch(worker)

    def _on_ended(self, worker: WorkerState, event: Message) -> None:
        self._take_completions()  # what was finished before the end counts
        if not worker.leaving:
            self._fail(
                worker,
                failures.from_death(worker, event, self.board, self._plans, self._options),
            )
        closing = worker.closing
        worker.forget_process()
        worker.stage = Stage.ENDING
        if not closing:
            self._relaunch(worker)

    def _relaunch(self, worker: WorkerState) -> None:
        if self._fatal is None:
            self._launch(worker)
        else:
            worker.stage = Stage.LOST

    def _fail(self, worker: WorkerState, errors: Mapping[int, SlotError]) -> None:
        """Report errors to slots that wait for an answer, keep those of idle slots for later."""
        pending = {slot for slots in worker.rung.values() for slot in slots}
        worker.rung.clear()
        if worker.switching:
            worker.switching = False
            pending.update(worker.slots)
        for slot, error in errors.items():
            if slot in pending:
                self._done.append((slot, error))
            else:
                self.lost[slot] = error
            if error.kind != "collateral":
                self._strike(error)

    def _strike(self, error: SlotError) -> None:
        self._strikes[error.slot] += 1
        if self._starting:
            self._fatal = BuildError(f"could not build {error.task}: {error}")
        elif self._strikes[error.slot] > self._options.max_restarts:
            self._fatal = WorkerDied(
                f"gave up after {self._strikes[error.slot]} consecutive failures"
                f" (max_restarts={self._options.max_restarts}): {error}"
            )
        else:
            log.warning("restarting %s", error)

    def _fall_back(self, threads: int) -> None:
        if self._options.mode != "never":
            warnings.warn(
                f"importing this env starts {threads} threads, so workers cannot be forked safely;"
                f" starting fresh interpreters instead (slower; start='fresh' silences this)",
                RuntimeWarning,
                stacklevel=2,
            )
            self._options = replace(self._options, mode="never")

    def _raised(self, worker: WorkerState, slot: int, phase: Phase) -> SlotError:
        step = int(self.board.workers[worker.index, Doing.STEP])
        letter = self.letter(slot)["error"]
        return failures.from_letter(
            letter, self._plans[slot], phase, step, worker.pid, self._tail(worker)
        )

    def _tail(self, worker: WorkerState) -> str:
        """The worker's last stderr lines, from the fork server, which never runs user code."""
        self._server.send({"op": "tail", "worker": worker.index, "generation": worker.generation})
        poll = select.poll()
        poll.register(self._server.channel.fileno(), select.POLLIN)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            if poll.poll(100):
                for event in self._server.receive():
                    if event["event"] == "tail":
                        return str(event["stderr"])
                    self._events.append(event)
        return ""

    def _check_deadlines(self, now: float) -> None:
        for worker in self._workers:
            if not worker.pid:
                continue
            if worker.give_up_at is not None and now > worker.give_up_at:
                self._give_up(worker)
            elif worker.kill_at is not None:
                if now > worker.kill_at:
                    worker.signal(signal.SIGKILL)
                    worker.give_up_at = worker.give_up_at or now + _UNKILLABLE_S
            elif worker.rung or worker.leaving or worker.stage is Stage.STARTING:
                self._check_call(worker, now)

    def _check_call(self, worker: WorkerState, now: float) -> None:
        doing = self.board.workers[worker.index]
        phase = int(doing[Doing.PHASE])
        since = int(doing[Doing.SINCE_NS]) / 1e9
        if phase == Phase.IDLE:
            since = max(since, worker.rung_at)
            phase = Phase.BUILD if worker.stage is Stage.STARTING else Phase.STEP
        if now - since > self._options.limit_s(phase):
            worker.hung = not worker.leaving
            worker.signal(signal.SIGABRT)  # faulthandler writes the stack, then it dies
            worker.kill_at = now + _LAST_WORDS_S

    def _give_up(self, worker: WorkerState) -> None:
        warnings.warn(
            f"worker {worker.index} (pid {worker.pid}) does not die of SIGKILL; leaving it behind",
            ResourceWarning,
            stacklevel=2,
        )
        worker.stage = Stage.LOST
        self._fatal = WorkerDied(
            f"worker {worker.index} (pid {worker.pid}, slots {list(worker.slots)},"
            f" {self._plans[worker.slots[0]].spec.name}) cannot be killed"
        )
