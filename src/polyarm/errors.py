"""Every exception polyarm raises.

::

    PolyarmError
    ├── UnknownName (ValueError)          a suite, task, camera, option … that does not exist
    ├── MissingExtra (ImportError)        an optional dependency is not installed
    ├── BrokenSuite (RuntimeError)        what a plug-in announces is no suite, or cannot be loaded
    ├── UnsupportedSpace (TypeError)      a space that has no fixed layout
    ├── InvalidAction (ValueError)        NaN, wrong shape or dtype, out of range; nothing was sent
    ├── InvalidObservation (ValueError)   an env's observation does not fit its own space
    ├── InvalidCall (RuntimeError)        a call that does not fit the engine's state
    │   └── ClosedEnv                     the engine is closed
    ├── DisplayError (RuntimeError)       no way to render, or not the way that was asked for
    ├── HostLimit (MemoryError)           the machine cannot hold what was asked for
    ├── PolicyError (RuntimeError)        a policy raised, hung, or returned what no env can use
    ├── WireError (ValueError)            bytes that are no message between policy and client
    ├── RunConflict (RuntimeError)        an output folder holds, or is used by, another run
    ├── StorageError (OSError)            results could not be written; what was written is intact
    ├── RankLost (RuntimeError)           another rank of the job has ended, or has not come
    ├── StoppedEarly (RuntimeError)       asked to stop while waiting for others; nothing was begun
    └── WorkerError (RuntimeError)        something went wrong outside the trainer
        ├── BuildError                    an env could not be built
        ├── WorkerDied                    a slot failed more often than max_restarts allows
        ├── EnvCallError                  call / get_attr / set_attr / render raised in the env
        └── ForkServerDied                the fork server is gone, and all workers with it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from polyarm import signatures


class PolyarmError(Exception):
    """Root of all exceptions raised by polyarm."""


class UnknownName(PolyarmError, ValueError):
    """A name that is not one of the valid ones; the message lists them, closest first.

    Args:
        kind: What was named, such as ``"task"``.
        name: The name that was not found.
        valid: The valid names.
        hint: A further sentence for the message.
        meant: Names that are surely meant; by default the closest of the valid ones.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        valid: Iterable[str],
        hint: str = "",
        meant: Iterable[str] = (),
    ) -> None:
        names = sorted(valid)
        close = list(meant) or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        others = [other for other in names if other not in close]
        shown = [*(one for one in close if one in names), *others][:12]
        message = f"unknown {kind} {name!r}"
        message += f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
        if shown:
            more = f", … ({len(names)} in all)" if len(names) > len(shown) else ""
            message += f" Valid: {', '.join(shown)}{more}."
        super().__init__(f"{message} {hint}" if hint else message)
        self.name, self.valid = name, tuple(names)
        self._args = (kind, name, self.valid, hint, tuple(meant))

    def meaning(self, names: Iterable[str]) -> UnknownName:
        """The same error, which asks whether these names were meant, if there are any."""
        return type(self)(*self._args[:4], names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._args


class MissingExtra(PolyarmError, ImportError):
    """An optional dependency is missing; the message holds the command that installs it."""


class BrokenSuite(PolyarmError, RuntimeError):
    """A suite that a plug-in announces cannot be loaded, or is none; names plug-in and reason."""


class UnsupportedSpace(PolyarmError, TypeError):
    """A space without a fixed byte layout; named by its path inside the observation or action."""


class InvalidAction(PolyarmError, ValueError):
    """An action that must not reach a simulator; names slot and value. Nothing was sent."""


class InvalidObservation(PolyarmError, ValueError):
    """An observation whose keys, shape or dtype differ from the env's own space."""


class InvalidCall(PolyarmError, RuntimeError):
    """A call that does not fit the engine's state, such as a second send to a busy slot."""


class ClosedEnv(InvalidCall):
    """The vector env has been closed."""


class DisplayError(PolyarmError, RuntimeError):
    """Rendering is impossible in the way that was asked for; the message names the fix."""


class HostLimit(PolyarmError, MemoryError):
    """The machine cannot hold what was asked for, such as memory or open files; says what helps."""


class PolicyError(PolyarmError, RuntimeError):
    """A policy raised, hung, or returned what no env can use.

    Args:
        message: What was expected and what was found.
        row: The row of the batch that is at fault, if it is one.
    """

    def __init__(self, message: str, *, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class WireError(PolyarmError, ValueError):
    """Bytes that are no message of the wire protocol, or a message that cannot be sent."""


class RunConflict(PolyarmError, RuntimeError):
    """An output folder holds another run, or is in use by one; the message says what differs."""


class StorageError(PolyarmError, OSError):
    """The journal, a video or a report could not be written; what was written before is intact."""


class RankLost(PolyarmError, RuntimeError):
    """Another rank of the job has ended, does not answer, or has not come; its message says why."""


class StoppedEarly(PolyarmError, RuntimeError):
    """A stop was asked for while this process waited for others; nothing was begun."""


class WorkerError(PolyarmError, RuntimeError):
    """Something went wrong in a process other than the trainer's."""


class BuildError(WorkerError):
    """An env could not be built: it raised, crashed or took longer than ``build_timeout_s``."""


class WorkerDied(WorkerError):
    """A slot failed more often than ``max_restarts`` forgives, or its worker is lost for good.

    The message names slot, pid, task, phase and signal, as far as they are known.
    """


class EnvCallError(WorkerError):
    """A method or attribute access raised inside an env; carries the child's traceback.

    Args:
        name: The method or attribute.
        failures: What went wrong, of each slot where it did.
    """

    def __init__(self, name: str, failures: Iterable[SlotError]) -> None:
        self.name, self.failures = name, tuple(failures)
        super().__init__(f"{name}: {self.failures[0]}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.failures)


class ForkServerDied(WorkerError):
    """The fork server ended unexpectedly; its workers were killed by the kernel with it."""


@dataclass(frozen=True, slots=True)
class SlotError:
    """Why a slot's episode was cut short; found in ``info["error"]``.

    Attributes:
        kind: ``exception``, ``died``, ``hung``, ``memory`` or ``collateral`` (a neighbour's fault).
        slot: Row of the batch.
        task: Full task name.
        phase: What the env was doing: build, reset, step, call (``render`` too), close or idle.
        step: Index inside the chunk of the step that failed.
        message: One line: what happened.
        error_class: Class of the exception, if there was one.
        pid: Process id of the worker, or with ``num_workers=0`` of the trainer; 0 for none.
        signal: Name of the signal that ended the worker, such as ``SIGSEGV``.
        stack: The child's traceback, or the stack of a hung worker.
        stderr: The last lines the worker wrote to its standard error.
    """

    kind: str
    slot: int
    task: str
    phase: str
    step: int
    message: str
    error_class: str = ""
    pid: int = 0
    signal: str = ""
    stack: str = ""
    stderr: str = ""

    def __str__(self) -> str:
        where = f"{self.task}, pid {self.pid}" if self.pid else self.task
        text = f"slot {self.slot} ({where}) {self.message} in phase {self.phase}"
        if self.signal:
            text += f" [{self.signal}]"
        if self.kind != "collateral" and (known := self._explanation()):
            text += f"\n{known}"
        for title, body in (("stack", self.stack), ("last stderr", self.stderr)):
            if body:
                text += f"\n--- {title} ---\n{body.rstrip()}"
        return text

    def _explanation(self) -> str | None:
        # A crash's stack is split off its stderr, and may hold the only trace of its cause.
        traces = f"{self.stderr}\n{self.stack}" if self.kind == "died" else self.stderr
        return signatures.explain(traces, self.signal, self.phase, self.message, task=self.task)
