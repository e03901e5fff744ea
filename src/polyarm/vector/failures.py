"""From the traces a failure leaves (a letter, an exit status, a board record) to a `SlotError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyarm.errors import SlotError
from polyarm.vector import process
from polyarm.vector.board import Board, Doing, Phase
from polyarm.vector.channel import Message
from polyarm.vector.plans import SlotPlan
from polyarm.vector.workerstate import Stage, WorkerOptions, WorkerState

_STACK_MARK = "Fatal Python error:"


def from_letter(letter: Mapping[str, Any], plan: SlotPlan, pid: int, stderr: str) -> SlotError:
    """The error an env raised, as its worker reported it."""
    return SlotError(
        kind="exception",
        slot=plan.index,
        task=plan.spec.name,
        phase=letter["phase"],
        step=letter["step"],
        message=f"raised {letter['error_class']}: {letter['message']}",
        error_class=letter["error_class"],
        pid=pid,
        stack=letter["stack"],
        stderr=stderr,
    )


def from_failed_start(event: Message, plans: Sequence[SlotPlan]) -> dict[int, SlotError]:
    """Errors of a worker's slots whose zygote raised, died or took too long.

    The zygote says which slot's env it was building; without that, all are charged.
    """
    stack, stderr = split_stack(event["stderr"])
    raised = f"raised {event['error_class']}: " if event["error_class"] else ""
    errors = {
        plan.index: SlotError(
            kind=event["kind"],
            slot=plan.index,
            task=plan.spec.name,
            phase="build",
            step=0,
            message=f"{raised}{event['message']}",
            error_class=event["error_class"],
            pid=event["pid"],
            stack=event["stack"] or stack,
            stderr=stderr,
        )
        for plan in plans
    }
    if (cause := errors.get(event["slot"])) is None:
        return errors
    return {p.index: cause if p.index == cause.slot else as_collateral(cause, p) for p in plans}


def as_collateral(error: SlotError, plan: SlotPlan) -> SlotError:
    """The same failure as a neighbour in the worker sees it."""
    return replace(
        error,
        kind="collateral",
        slot=plan.index,
        task=plan.spec.name,
        message=f"lost its worker: slot {error.slot} {error.message}",
        stack="",
        stderr="",
    )


def from_death(
    worker: WorkerState,
    event: Message,
    board: Board,
    plans: Sequence[SlotPlan],
    options: WorkerOptions,
) -> dict[int, SlotError]:
    """Errors of all slots of a worker that ended: the one in its call is the cause.

    A worker that dies between calls has no cause among its slots, so all of them are charged.
    """
    doing = board.workers[worker.index]
    phase = Phase(int(doing[Doing.PHASE]))
    cause = int(doing[Doing.SLOT]) if phase is not Phase.IDLE else None
    if phase is Phase.IDLE and worker.stage is Stage.STARTING:
        phase = Phase.BUILD  # it has not come as far as saying so
    stack, stderr = split_stack(event["stderr"])
    status = int(event["status"])
    name = process.signal_name(-status) if status < 0 else ""
    kind, message = "died", f"died with exit status {status}" if status >= 0 else f"died of {name}"
    if worker.hung:
        limit_s = options.limit_s(phase)
        kind, message = "hung", f"did not answer within {limit_s:g} s and was killed"
    elif event["reason"] == "memory":
        kind, message = "memory", f"outgrew memory_limit={options.memory_limit} bytes, was killed"
    blamed = worker.slots[0] if cause is None else cause
    error = SlotError(
        kind=kind,
        slot=blamed,
        task=plans[blamed].spec.name,
        phase=phase.name.lower(),
        step=int(doing[Doing.STEP]),
        message=message,
        pid=event["pid"],
        signal=name,
        stack=stack,
        stderr=stderr,
    )
    if cause is None:
        return {s: replace(error, slot=s, task=plans[s].spec.name) for s in worker.slots}
    neighbours = (plans[slot] for slot in worker.slots if slot != cause)
    return {cause: error, **{plan.index: as_collateral(error, plan) for plan in neighbours}}


def split_stack(stderr: str) -> tuple[str, str]:
    """A dying process's stack, as faulthandler wrote it, and what it had written before."""
    before, mark, stack = stderr.rpartition(_STACK_MARK)
    return (mark + stack, before) if mark else ("", stderr)
