"""Envs that fail on purpose: they raise, crash, hang, leak, chatter or leave children behind.

Each is a `CountingEnv` up to the moment of its failure. With ``only_first=path`` the failure
happens once in all processes together: the env that manages to create the file ``path`` fails,
every other env and every later attempt goes on as if nothing were wrong.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyarm.testing.counting import CountingEnv, Observation, Step

Where = Literal["constructor", "reset", "step", "render", "close"]


class FailingEnv(CountingEnv):
    """Calls `fail` at one chosen moment; the envs below say what failing means.

    Args:
        where: The call that fails.
        at: In ``"step"``, the number of the failing step in each episode; elsewhere, the number
            of the failing call of this env. Both count from 1.
        only_first: Path of a file; fail only if it does not exist yet, and create it.
        length: Steps until the episode ends.
    """

    def __init__(
        self,
        *,
        where: Where = "step",
        at: int = 1,
        only_first: str | os.PathLike[str] | None = None,
        length: int = 10,
    ) -> None:
        super().__init__(length=length)
        self.where, self.at, self.only_first = where, at, only_first
        self._calls = 0
        self._visit("constructor")

    def fail(self) -> None:
        """Do what this env is there for."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset, unless this is the moment to fail."""
        self._visit("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: NDArray[np.float32]) -> Step:
        """Step, unless this is the moment to fail."""
        if self.where == "step" and self.step_number + 1 == self.at:
            self._fail_if_chosen()
        return super().step(action)

    def render(self) -> NDArray[np.uint8]:
        """Render, unless this is the moment to fail."""
        self._visit("render")
        return super().render()

    def close(self) -> None:
        """Close, unless this is the moment to fail."""
        self._visit("close")
        super().close()

    def _visit(self, where: Where) -> None:
        if where != self.where:
            return
        self._calls += 1
        if self._calls == self.at:
            self._fail_if_chosen()

    def _fail_if_chosen(self) -> None:
        if self.only_first is None or _create(self.only_first):
            self.fail()


class CrashingEnv(FailingEnv):
    """Raises RuntimeError."""

    def fail(self) -> None:
        """Raise."""
        raise RuntimeError(f"CrashingEnv raises in {self.where}, as it was asked to")


class SegfaultingEnv(FailingEnv):
    """Dies of a real SIGSEGV: it reads address 0."""

    def fail(self) -> None:
        """Read address 0."""
        ctypes.string_at(0)


class HangingEnv(FailingEnv):
    """Never returns.

    Args:
        where: The call that hangs.
        at: Which of those calls; see `FailingEnv`.
        only_first: Path of a file; hang only if it does not exist yet, and create it.
        length: Steps until the episode ends.
        hold_gil: Block in C with the interpreter lock held, so that no other thread runs either.
    """

    def __init__(
        self,
        *,
        where: Where = "step",
        at: int = 1,
        only_first: str | os.PathLike[str] | None = None,
        length: int = 10,
        hold_gil: bool = False,
    ) -> None:
        self.hold_gil = hold_gil
        super().__init__(where=where, at=at, only_first=only_first, length=length)

    def fail(self) -> None:
        """Block, and block again whenever a signal ends the wait."""
        pause = ctypes.PyDLL(None).pause
        while True:
            if self.hold_gil:
                pause()
            else:
                time.sleep(3600)


class LeakingEnv(FailingEnv):
    """From step ``at`` on, keeps ``mb_per_step`` MB more at every step until it is closed.

    Args:
        mb_per_step: Megabytes (2**20 bytes) kept per step, all of them resident.
        at: The step of an episode at which the leak begins.
        only_first: Path of a file; leak only if it does not exist yet, and create it.
        length: Steps until the episode ends.
    """

    def __init__(
        self,
        *,
        mb_per_step: int = 16,
        at: int = 1,
        only_first: str | os.PathLike[str] | None = None,
        length: int = 10,
    ) -> None:
        super().__init__(where="step", at=at, only_first=only_first, length=length)
        self.mb_per_step = mb_per_step
        self._leaking = False
        self._kept: list[bytes] = []

    def fail(self) -> None:
        """Begin to leak."""
        self._leaking = True

    def step(self, action: NDArray[np.float32]) -> Step:
        """Step and, once the leak has begun, keep some more memory."""
        result = super().step(action)
        if self._leaking:
            # Multiplication writes every page; bytes(n) would get untouched zero pages.
            self._kept.append(b"x" * (self.mb_per_step << 20))
        return result

    def close(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        super().close()


class ChatteringEnv(FailingEnv):
    """Writes ``nbytes`` bytes to descriptor 2 in one call, below Python's ``sys.stderr``.

    Args:
        nbytes: Bytes written; lines of 64 bytes.
        where: The call that chatters.
        at: Which of those calls; see `FailingEnv`.
        length: Steps until the episode ends.
    """

    def __init__(
        self, *, nbytes: int = 1 << 20, where: Where = "step", at: int = 1, length: int = 10
    ) -> None:
        self.nbytes = nbytes
        super().__init__(where=where, at=at, length=length)

    def fail(self) -> None:
        """Chatter, then go on."""
        line = b"chatter ".ljust(63, b".") + b"\n"
        remaining = memoryview((line * (self.nbytes // 64 + 1))[: self.nbytes])
        while remaining:
            remaining = remaining[os.write(2, remaining) :]


class ForkingEnv(CountingEnv):
    """Starts ``sleep 1000`` in its constructor and never ends it.

    Args:
        length: Steps until the episode ends.
        new_session: Start the child in a session of its own, out of reach of a group's signal.

    Attributes:
        child_pid: Process id of the child; also in every info.
    """

    def __init__(self, *, length: int = 10, new_session: bool = False) -> None:
        super().__init__(length=length)
        self._child = subprocess.Popen(["sleep", "1000"], start_new_session=new_session)
        self.child_pid = self._child.pid

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "child_pid": self.child_pid}


def _create(path: str | os.PathLike[str]) -> bool:
    """Create the file; whether this call, of all processes, was the one that did."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True
