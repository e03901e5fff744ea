"""A worker process: builds its envs, then serves wake-ups until it is told to close.

One ring of the doorbell is one sequence number: the worker runs every slot whose command carries
it, then announces that number once. An env that raises costs its slot a rebuild and nobody else
anything; a worker with one slot leaves instead, because a fork replaces it faster and cleaner.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import random
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from polyarm.display.xvfb import XServer
from polyarm.vector import process
from polyarm.vector.board import Board, Command, Doing, Op, Phase, Result, board_segment
from polyarm.vector.building import RAISED, attach_display, build, describe, open_screen
from polyarm.vector.memory import Block, Mail
from polyarm.vector.plans import WorkerPlan
from polyarm.vector.raised import describe_error
from polyarm.vector.signals import ATTENTION, announce
from polyarm.vector.slot import Shared, Slot

_CALL, _SWITCH, _CLOSE = int(Op.CALL), int(Op.SWITCH), int(Op.CLOSE)
_SEQUENCE, _OP = int(Command.SEQUENCE), int(Command.OP)
_IDLE = int(Phase.IDLE)

REPLACE_ME = 3
"""Exit status of a worker whose only env raised."""


@dataclass(frozen=True, slots=True)
class WorkerFds:
    """Descriptors of a worker."""

    block: int
    mail: int
    completions: int
    built: int
    doorbell: int


def report(fd: int, plan: WorkerPlan, screen: XServer | None = None) -> None:
    """Tell the fork server that a worker has built its envs, or which X server is its."""
    pid, number = (screen.pid, screen.number) if screen is not None else (0, 0)
    os.write(fd, process.REPORT.pack(plan.worker, plan.generation, pid, number))


class Worker:
    """The child's side of one worker.

    Args:
        plan: What to do.
        fds: Descriptors inherited from the fork server.
        envs: Envs built before the fork, or None to build them here.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        fds: WorkerFds,
        envs: Sequence[gymnasium.Env[Any, Any]] | None,
    ) -> None:
        settings = plan.settings
        block, mail = Block(fds.block), Mail(fds.mail)
        segment = board_segment(settings.num_envs, settings.num_workers)
        buffer = block.map(0, segment.nbytes)
        board = Board(buffer, settings.num_envs, settings.num_workers)
        shared = Shared(settings, block, mail, board)
        self._plan = plan
        self._plans = {slot.index: slot for slot in plan.slots}
        self._fds = fds
        self._envs = envs
        self._board = board
        self._mail = mail
        self._slots = [Slot(slot.index, plan.worker, shared) for slot in plan.slots]
        self._phase_at = board.worker_at(plan.worker) + Doing.PHASE
        self._places = [(slot, board.command_at(slot.index)) for slot in self._slots]
        self._sender = fds.completions, plan.worker
        self._sequence = plan.sequence
        self._broken: set[int] = set()
        self._screen: XServer | None = None

    def serve(self) -> None:
        """Build, then answer wake-ups; returns when told to close."""
        if not self._build_all():
            sys.exit(1)
        while True:
            for _ in range(os.eventfd_read(self._fds.doorbell)):
                self._sequence += 1
                if not self._run(self._sequence):
                    return

    def _rest(self) -> None:
        self._board.words[self._phase_at] = _IDLE

    def _build_all(self) -> bool:
        built = True
        for slot in self._slots:  # what an earlier worker said of slots that this one may not reach
            self._board.results[slot.index, Result.FAILED] = 0
        for place, slot in enumerate(self._slots):
            slot.publish(Phase.BUILD)
            try:
                plan = self._plans[slot.index]
                if self._plan.own_screen and self._screen is None:
                    self._screen = open_screen()
                    os.environ["DISPLAY"] = self._screen.name
                    report(self._fds.built, self._plan, self._screen)
                env = build(plan) if self._envs is None else self._envs[place]
                attach_display(plan, env)
                slot.install(env, plan.spec, plan.attributes)
                if self._plan.describe:
                    slot.post({"description": describe(env)})
            except BaseException as error:  # noqa: BLE001  reported to the trainer, which decides
                built = False
                slot.post({"error": {**describe_error(error), **slot.doing()}})
                self._board.results[slot.index, Result.FAILED] = 1
                break
        self._rest()
        self._announce(self._sequence, attention=True)
        report(self._fds.built, self._plan)
        return built

    def _run(self, sequence: int) -> bool:
        """Run the commands of one wake-up; False when the worker is to end."""
        words = self._board.words
        failed: list[Slot] = []
        troubled = False
        for slot, command in self._places:
            if words[command + _SEQUENCE] != sequence:
                continue
            op = words[command + _OP]
            if op == _CLOSE:
                self._close_all()
                self._announce(sequence)
                return False
            try:
                if op == _SWITCH:
                    self._switch(slot)
                    slot.report(sequence, False, 0, 0, 0, 0, 0, 0)
                else:
                    if self._broken:
                        self._repair(slot)
                    slot.execute(sequence)
            except BaseException as error:  # noqa: BLE001  reported to the trainer, which decides
                slot.fail(sequence, {"error": {**describe_error(error), **slot.doing()}})
                troubled = True
                if op != _CALL:
                    failed.append(slot)
        self._rest()  # before the announcement: whoever dies after it was in no call
        self._announce(sequence, attention=troubled)
        if failed and len(self._slots) == 1:
            self._close(failed[0])
            sys.exit(REPLACE_ME)
        self._broken.update(slot.index for slot in failed)
        for slot in failed:
            self._rebuild_quietly(slot)
            self._rest()
        return True

    def _announce(self, sequence: int, *, attention: bool = False) -> None:
        generation = self._plan.generation
        announce(*self._sender, generation + ATTENTION if attention else generation, sequence)

    def _rebuild_quietly(self, slot: Slot) -> None:
        """Rebuild right away, so that the next command finds a ready env if it can be had."""
        # Raised again, and reported, by the next command.
        with contextlib.suppress(*RAISED):
            self._close(slot)
            self._repair(slot)

    def _repair(self, slot: Slot) -> None:
        if slot.index in self._broken:
            plan = self._plans[slot.index]
            slot.publish(Phase.BUILD)
            env = build(plan)
            attach_display(plan, env)
            slot.install(env, plan.spec, {**plan.attributes, **slot.attributes})
            self._broken.discard(slot.index)

    def _switch(self, slot: Slot) -> None:
        words = self._board.words
        nbytes = words[self._board.command_at(slot.index) + Command.LETTER]
        plan = self._mail.get(slot.index, nbytes, to_worker=True)
        self._close(slot)
        before = self._plans[slot.index], dict(slot.attributes)
        self._plans[slot.index] = plan
        slot.attributes.clear()
        self._broken.add(slot.index)
        try:
            self._repair(slot)
        except BaseException:
            self._plans[slot.index], slot.attributes = before
            raise
        slot.post({"description": describe(slot.env)})

    def _close(self, slot: Slot) -> None:
        if slot.index not in self._broken or hasattr(slot, "env"):
            slot.publish(Phase.CLOSE)
            try:
                slot.close_env()
            except RAISED:  # an env that fails to close is dropped all the same
                traceback.print_exc()

    def _close_all(self) -> None:
        for slot in self._slots:
            self._close(slot)
        if self._screen is not None:
            self._screen.close()


def run_worker(
    plan: WorkerPlan, fds: WorkerFds, envs: Sequence[gymnasium.Env[Any, Any]] | None
) -> None:
    """Body of a worker process, forked or fresh, once it has settled."""
    process.set_name(f"polyarm-w{plan.worker}")
    if plan.cpu is not None:
        os.sched_setaffinity(0, {plan.cpu})
    _seed(plan.entropy, plan.worker, plan.generation)
    Worker(plan, fds, envs).serve()


def be_spare() -> None:
    """What costs a worker less if it has been done before: it has touched what that writes to."""
    settle()
    _seed(0, 0, 0)


def settle() -> None:
    """What any worker begins with."""
    os.environ[process.WORKER_TAG] = str(os.getpid())
    process.be_expendable()
    process.yield_to_trainer()
    faulthandler.enable(file=2, all_threads=True)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)


def _seed(entropy: int | None, worker: int, generation: int) -> None:
    """Give Python's and NumPy's global generators a state of this worker's own."""
    state = np.random.SeedSequence(entropy, spawn_key=(worker, generation)).generate_state(8)
    random.seed(state.tobytes())
    np.random.seed(state)


def main() -> None:
    """Entry of a fresh interpreter: ``python -m polyarm.vector.worker <server pid> <fds…>``."""
    server, plan_fd, *fds = (int(argument) for argument in sys.argv[1:])
    os.setsid()
    process.die_with(server)
    with open(plan_fd, "rb") as file:
        search_path, blob = pickle.load(file)
    if search_path is not None:
        sys.path[:] = search_path
    plan = pickle.loads(blob)

    def serve() -> None:
        settle()
        run_worker(plan, WorkerFds(*fds), None)

    process.run_and_leave(serve)


if __name__ == "__main__":
    main()
