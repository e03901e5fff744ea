"""Worker lives: started, watched, judged, replaced.

A worker's bytes are given to a successor only after the fork server has reported it reaped.
Deadlines apply to each env call, by what the worker itself last wrote on the board. A worker that
computes, or waits for a core, is given time beyond them.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from polyarm.errors import BuildError, SlotError, WorkerDied, WorkerError
from polyarm.vector import failures, host
from polyarm.vector.board import Board, Doing, Phase
from polyarm.vector.channel import Message
from polyarm.vector.interrupts import HandlersWait
from polyarm.vector.launcher import ForkServerProcess
from polyarm.vector.plans import SlotPlan, WorkerPlan
from polyarm.vector.settings import SlotSettings
from polyarm.vector.signals import Doorbell
from polyarm.vector.workerstate import Stage, WorkerOptions, WorkerState

log = logging.getLogger("polyarm")

_LAST_WORDS_S = 0.5
_UNKILLABLE_S = 10.0
_PATIENCE_S = 60.0
_ABSENT_S = 5.0


class Supervisor:
    """Keeps every worker alive, or says why it can't.

    Args:
        server: The fork server.
        board: Where workers write what they are doing.
        workers: Their states, by index.
        plans: What each slot holds; the owner changes it in place.
        settings: What all slots share.
        options: How workers are started and supervised.
        owed: Gives the slots that wait for an answer of a worker, and forgets them.
        answer: Delivers an answer to a slot, with its error if it failed.
        launched: Called when a new generation can be rung.
    """

    def __init__(  # noqa: PLR0913  wired up once, by the engine
        self,
        server: ForkServerProcess,
        board: Board,
        workers: Sequence[WorkerState],
        plans: list[SlotPlan],
        settings: SlotSettings,
        options: WorkerOptions,
        *,
        owed: Callable[[WorkerState], list[int]],
        answer: Callable[[int, SlotError | None], None],
        launched: Callable[[WorkerState], None],
    ) -> None:
        self._server = server
        self._board = board
        self._workers = workers
        self._plans = plans
        self._settings = settings
        self._options = options
        self._owed = owed
        self._answer = answer
        self._launched = launched
        self._events: deque[Message] = deque()
        self._strikes = [0] * settings.num_envs
        self._cpus = host.own_cpus()
        self.starting = True
        self.changes = 0
        """Counts what changes whom a doorbell wakes, or who may be rung."""
        self.rung_at = 0.0
        """When all workers were last rung together."""
        self._heard_at = self._checked_at = 0.0
        # Whatever a start may wait for has a limit of its own: its zygotes, those before it.
        most = 2 + max(len(worker.slots) for worker in workers)
        self._start_limit_s = most * options.build_timeout_s + _PATIENCE_S
        self.fatal: WorkerError | None = None
        self.lost: dict[int, SlotError] = {}

    def launch(self, worker: WorkerState) -> None:
        """Ask for the worker's next generation; it may be rung at once."""
        self.changes += 1
        self._heard_at = time.monotonic()
        worker.generation += 1
        worker.sequences[worker.index] += 1
        worker.ready_sequence = worker.sequence
        worker.doorbell = Doorbell()
        worker.stage = Stage.STARTING
        self._board.workers[worker.index] = 0
        options = self._options
        plan = WorkerPlan(
            worker=worker.index,
            generation=worker.generation,
            sequence=worker.sequence,
            slots=tuple(self._plans[slot] for slot in worker.slots),
            settings=self._settings,
            describe=self.starting or worker.switching,
            entropy=options.entropy,
            cpu=self._cpus[worker.index % len(self._cpus)] if options.pin else None,
            own_screen=options.x_server == "worker",
        )
        self._server.start_worker(plan, worker.doorbell.fd, options)
        self._launched(worker)

    def retire(self, worker: WorkerState, *, kill: bool = False) -> None:
        """Expect a worker to leave, or make it; its end is then no failure."""
        self.changes += 1
        worker.stage, worker.leaving = Stage.ENDING, True
        worker.rung_at = time.monotonic()
        if kill:
            worker.signal(signal.SIGKILL)

    def works(self, slot: int) -> None:
        """Note that a slot has finished an episode: its failures are no longer in a row."""
        self._strikes[slot] = 0

    def receive(self) -> None:
        """Take the fork server's events; call when its channel is readable."""
        with HandlersWait():
            self._events.extend(self._server.receive())

    def handle_events(self, before_death: Callable[[], None]) -> None:
        """Act on events; ``before_death`` collects what a worker finished before it died."""
        while self._events:
            with HandlersWait():
                self._handle(self._events.popleft(), before_death)

    def close(self) -> None:
        """Close the descriptors of events that nobody will act on."""
        while self._events:
            for fd in self._events.popleft()["fds"]:
                os.close(fd)

    def _handle(self, event: Message, before_death: Callable[[], None]) -> None:
        self._heard_at = time.monotonic()
        if event["event"] in ("tail", "left behind", "patience"):
            return
        worker = self._workers[event["worker"]]
        if event["generation"] != worker.generation:
            for fd in event["fds"]:
                os.close(fd)
            return
        if event["event"] == "started":
            self._on_started(worker, event)
            return
        before_death()
        if event["event"] == "ended":
            self._on_ended(worker, event)
        elif event["event"] == "failed":
            if not worker.leaving:
                plans = [self._plans[slot] for slot in worker.slots]
                self.fail(worker, failures.from_failed_start(event, plans))
            worker.deferred += self._owed(worker)
            self._replace(worker)
        elif event["event"] == "threads":
            self._fall_back(event["reason"])
            worker.deferred += self._owed(worker)
            self._replace(worker)

    def built(
        self, worker: WorkerState, failed: Iterable[int], letters: Mapping[int, Message]
    ) -> None:
        """A worker has reported its build: it is ready, or a slot's env could not be built.

        One that has been told to leave has built what its slot is no longer to hold.
        """
        self._heard_at = time.monotonic()
        if worker.leaving:
            return
        for slot in failed:
            error = self.raised(worker, slot, letters[slot])
            plans = [self._plans[other] for other in worker.slots if other != slot]
            self.retire(worker)
            collateral = {plan.index: failures.as_collateral(error, plan) for plan in plans}
            self.fail(worker, {slot: error, **collateral})
            return
        worker.stage = Stage.READY
        if worker.switching:
            worker.switching = False
            self._answer(worker.slots[0], None)

    def raised(self, worker: WorkerState, slot: int, letter: Message) -> SlotError:
        """The error of an env that raised, from its worker's letter."""
        return failures.from_letter(letter, self._plans[slot], worker.pid, self._tail(worker))

    def strike(self, error: SlotError) -> None:
        """Charge a slot with a failure; too many in a row are fatal."""
        self._strikes[error.slot] += 1
        count, allowed = self._strikes[error.slot], self._options.max_restarts
        if self.starting:
            self.fatal = BuildError(f"could not build {error.task}: {error}")
        elif count > allowed:
            self.fatal = WorkerDied(
                f"gave up after {count} failures in a row (max_restarts={allowed}): {error}"
            )
        else:
            log.warning("restarting %s", error)

    def fail(self, worker: WorkerState, errors: Mapping[int, SlotError]) -> None:
        """Answer slots that wait with their errors; keep the errors of idle slots for later."""
        waiting, switched = set(self._owed(worker)), worker.switching
        if switched:
            worker.switching = False
            waiting.update(worker.slots)
        for slot, error in errors.items():
            if slot in waiting:
                self._answer(slot, error)
            else:
                self.lost[slot] = error
            if error.kind != "collateral" and not switched:
                self.strike(error)

    def check_deadlines(self, now: float, busy: set[int]) -> None:
        """Kill workers that are overdue; ``busy`` are those that owe an answer."""
        if now - self._checked_at > _ABSENT_S:
            self._heard_at = now  # nobody has listened meanwhile, nor ended builds that hang
        self._checked_at = now
        for worker in self._workers:
            if not worker.pid:
                if worker.stage is not Stage.LOST and self.fatal is None:
                    self._check_start(worker, now)
                continue
            if worker.kill_at is None:
                if worker.index in busy or worker.leaving or worker.stage is Stage.STARTING:
                    self._check_call(worker, now)
            elif worker.give_up_at is not None:
                if now > worker.give_up_at and worker.stage is not Stage.LOST:
                    self._give_up(worker)
            elif now > worker.kill_at:
                worker.signal(signal.SIGKILL)
                worker.give_up_at = now + _UNKILLABLE_S

    def _on_started(self, worker: WorkerState, event: Message) -> None:
        worker.pid = event["pid"]
        worker.pidfd = event["fds"][0] if event["fds"] else -1
        worker.rung_at = time.monotonic()
        if worker.leaving:
            worker.signal(signal.SIGKILL)

    def _on_ended(self, worker: WorkerState, event: Message) -> None:
        if not worker.leaving:
            errors = failures.from_death(worker, event, self._board, self._plans, self._options)
            self.fail(worker, errors)
        worker.deferred += [slot for slot in self._owed(worker) if not worker.closing]
        self._replace(worker)

    def _replace(self, worker: WorkerState) -> None:
        self.changes += 1
        closing = worker.closing
        worker.forget_process()
        worker.stage = Stage.ENDING
        if self.fatal is not None:
            worker.stage = Stage.LOST
        elif not closing:
            self.launch(worker)

    def _check_call(self, worker: WorkerState, now: float) -> None:
        doing = self._board.workers[worker.index]
        phase = int(doing[Doing.PHASE])
        since = int(doing[Doing.SINCE_NS]) / 1e9
        if phase == Phase.IDLE:
            since = max(since, worker.rung_at, self.rung_at)
            phase = Phase.BUILD if worker.stage is Stage.STARTING else Phase.STEP
        if worker.hangs(since, self._options.limit_s(phase), now):
            worker.hung = not worker.leaving
            worker.signal(signal.SIGABRT)  # faulthandler writes the stack, then the process dies
            worker.kill_at = now + _LAST_WORDS_S

    def _check_start(self, worker: WorkerState, now: float) -> None:
        if now - self._heard_at > self._start_limit_s:
            self.fatal = WorkerDied(
                f"worker {worker.index} (slots {list(worker.slots)},"
                f" {self._plans[worker.slots[0]].spec.name}) has not been started, and nothing has"
                f" been heard of any start for {self._start_limit_s:g} s; close this env and make a"
                f" new one"
            )

    def _give_up(self, worker: WorkerState) -> None:
        warnings.warn(
            f"worker {worker.index} (pid {worker.pid}) does not die of SIGKILL; leaving it behind",
            ResourceWarning,
            stacklevel=2,
        )
        self.changes += 1
        phase = Phase(int(self._board.workers[worker.index, Doing.PHASE])).name.lower()
        self.fatal = WorkerDied(
            f"worker {worker.index} (pid {worker.pid}, slots {list(worker.slots)},"
            f" {self._plans[worker.slots[0]].spec.name}, phase {phase}) cannot be killed, not even"
            f" by SIGKILL"
        )
        worker.stage = Stage.LOST

    def _fall_back(self, reason: str) -> None:
        if self._options.mode != "never":
            warnings.warn(
                f"{reason}, so workers cannot be forked safely; starting fresh interpreters instead"
                f" (slower; start='fresh' silences this)",
                RuntimeWarning,
                stacklevel=2,
            )
            self._options = replace(self._options, mode="never")

    def _tail(self, worker: WorkerState) -> str:
        """The worker's last stderr lines, from the fork server, which never runs user code."""
        self._server.send({"op": "tail", "worker": worker.index, "generation": worker.generation})
        poll = select.poll()
        poll.register(self._server.channel.fileno(), select.POLLIN)
        end = time.monotonic() + 1.0
        text: str | None = None
        while text is None and time.monotonic() < end:
            if poll.poll(100):
                for event in self._server.receive():
                    if event["event"] == "tail":
                        text = str(event["stderr"]) if event["worker"] == worker.index else text
                    else:
                        self._events.append(event)
        return text or ""
