"""What a vector env drives: slots that take commands and report, wherever they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from polyarm.errors import SlotError
from polyarm.vector.attribute import Attribute
from polyarm.vector.board import Board, Op
from polyarm.vector.memory import Block, Mail
from polyarm.vector.plans import SlotPlan

Done = tuple[int, SlotError | None]
"""A slot that has answered, and what went wrong if something did."""


class Engine(Protocol):
    """Runs the commands written on the board.

    The in-process engine and the worker engine differ only here.
    """

    block: Block
    board: Board
    mail: Mail
    done: list[Done]
    """Answers that have come in; whoever delivers them removes them."""
    plans: list[SlotPlan]
    """What each slot holds, or is about to hold."""
    lost: dict[int, SlotError]
    """Idle slots whose env is gone, and why; whoever reads an entry removes it."""

    def start(self) -> Iterator[dict[str, Any]]:
        """Build all envs; returns a description per slot, each made when it is asked for.

        Raises:
            BuildError: If one of them cannot be built.
        """
        ...

    def dispatch(self, slots: Sequence[int], op: Op) -> None:
        """Publish the commands of these slots, all of them idle."""
        ...

    def wait(self, min_slots: int, timeout_s: float | None, *, together: bool = False) -> None:
        """Wait until ``done`` holds at least ``min_slots`` answers, or time is up.

        Args:
            min_slots: How many to wait for.
            timeout_s: How long to wait for them, or None.
            together: Whether answers may be entered when the last has come, in any order.

        Raises:
            WorkerDied: When a slot has failed more often than allowed.
        """
        ...

    def require_alive(self) -> None:
        """Raise what ended the engine, if something has."""
        ...

    def owing(self) -> set[int]:
        """Slots that have been commanded and whose answers have not been delivered."""
        ...

    def letter(self, slot: int) -> dict[str, Any]:
        """The letter that came with a slot's last answer; empty if none did."""
        ...

    def finished_episode(self, slot: int) -> None:
        """Note that a slot works: its failures are no longer in a row."""
        ...

    def set_attribute(self, slot: int, name: str, value: Attribute) -> None:
        """Remember an attribute, to be set again when the slot's env is rebuilt."""
        ...

    def switch(self, slot: int, plan: SlotPlan) -> None:
        """Give a slot another env; it answers like a command."""
        ...

    def worker_pids(self) -> list[int]:
        """Pids of the processes that hold envs, for accounting."""
        ...

    def close(self, timeout_s: float) -> None:
        """Close envs, end processes, free memory; returns within seconds in every state."""
        ...
