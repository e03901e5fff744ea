"""What lies under a vector env: slots behind one block, made, looked at and closed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from polyarm.contracts import EnvSpec
from polyarm.errors import BuildError, ClosedEnv, InvalidCall, SlotError
from polyarm.vector.actions import ActionCheck
from polyarm.vector.board import Result
from polyarm.vector.commands import Commands
from polyarm.vector.copies import CopyPool
from polyarm.vector.deliveries import InfoAssembler
from polyarm.vector.engine import Engine
from polyarm.vector.episodes import Episodes
from polyarm.vector.gpu_copies import GpuCopies
from polyarm.vector.layout import Array, Slots
from polyarm.vector.ledger import Ledger
from polyarm.vector.plans import SlotPlan
from polyarm.vector.ring import Ring
from polyarm.vector.settings import SlotSettings
from polyarm.vector.switching import BatchFit, Switches

_CLOSE_S = 3.0
_MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """How a vector env delivers, besides `SlotSettings`.

    Attributes:
        copy: Whether observations are independent arrays instead of views.
        check_lifetimes: Whether rows whose views have expired are spoiled, for debugging.
        clip_actions: Whether Box actions are clipped to their bounds.
        episodic: Whether the envs know episode indices.
        seed: Default of the first reset.
        scatter: Whether forked envs must be given seeds of their own.
    """

    copy: bool = False
    check_lifetimes: bool = False
    clip_actions: bool = False
    episodic: bool = False
    seed: int | None = None
    scatter: bool = False


class BlockEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The part of a vector env that does not step it.

    Args:
        engine: What runs the slots.
        settings: What all slots share.
        options: How results are delivered.
        planner: Turns a task's name into a plan for a slot, for `switch_task`.
        provenance: Tells the versions and settings that shape the episodes of a plan.
    """

    def __init__(
        self,
        engine: Engine,
        settings: SlotSettings,
        options: VectorOptions,
        planner: Callable[[int, Any], SlotPlan],
        provenance: Callable[[SlotPlan], Mapping[str, Any]],
    ) -> None:
        self.closed = False
        self.num_envs = settings.num_envs
        self._engine = engine
        self._maker_pid = os.getpid()
        _living.add(self)
        self._finalizer = weakref.finalize(self, _close_engine, engine, self._maker_pid)
        self._settings = settings
        self._options = options
        self._planner = planner
        self._gpu_copies = GpuCopies()
        self._provenance = provenance
        try:
            self._episodes = Episodes(
                self.num_envs, episodic=options.episodic, seed=options.seed, scatter=options.scatter
            )
            self._describe(engine.start())
            layout = settings.layout(self._env_observation_space, self.single_action_space)
            self._ring = Ring(
                engine.block, engine.board, engine.mail, layout, self.single_observation_space
            )
        except BaseException:
            self.close()
            raise
        self._check = ActionCheck(
            self.single_action_space, layout.action, clip=options.clip_actions
        )
        self._infos = InfoAssembler(engine, self._ring, settings)
        self._ledger = Ledger(self.num_envs, settings.autoreset, engine, self._ring, self._episodes)
        self._copies = CopyPool()
        self._commands = Commands(engine, self._ring, self._ledger, self._episodes)
        self._switches = Switches(engine, self._commands, self._ledger, self._fits)

    def _describe(self, descriptions: Iterator[dict[str, Any]]) -> None:
        first = next(descriptions)
        self.single_action_space = first["action_space"]
        self._fits = BatchFit(self._settings, first["observation_space"], first["action_space"])
        for slot, other in enumerate(descriptions, 1):
            if not self._fits(other["observation_space"], other["action_space"]):
                tasks = self.tasks
                raise BuildError(
                    f"slots 0 ({tasks[0]}) and {slot} ({tasks[slot]}) cannot share a batch: their"
                    f" spaces differ:\n"
                    f"  {first['observation_space']}, {first['action_space']}\n"
                    f"  {other['observation_space']}, {other['action_space']}"
                )
        self._env_observation_space = first["observation_space"]
        self.single_observation_space = self._settings.delivered(first["observation_space"])
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**first["metadata"], "autoreset_mode": _MODES[self._settings.autoreset]}
        self.render_mode = first["render_mode"]
        self.spec = first["spec"]

    @cached_property
    def observation_space(self) -> gymnasium.Space[Any]:  # type: ignore[override]
        """That of all slots; made when it is asked for, as its bounds are four times the batch."""
        return batch_space(self.single_observation_space, self.num_envs)

    # Looking at the block.

    def history(self) -> dict[str, Any]:
        """The whole ring, in the block's order: row ``row`` is the newest, the next is the oldest.

        After `rewind`, row 0 is where it begins. A row in which a slot made no step (a reset, that
        of others, a failure, a row not written yet) has 0 in ``steps`` and no reward.

        Returns:
            ``obs``, contiguous views ``(T, N, …)``, with ``frames="every"`` ``(T, N, K, …)``, and
            copies: ``rewards`` ``(T, N, K)``, or ``(T, N)`` if there have been single steps alone;
            ``terminated``, ``truncated`` and ``steps``, ``(T, N)``; ``row``. K is the longest chunk
            there has been; what is behind the steps made is 0.

        Raises:
            InvalidCall: Since the last `rewind`, slots have been sent more often than others, or
                some are pending.
        """
        self._require_idle("history")
        return self._ring.history()

    @property
    def specs(self) -> tuple[EnvSpec, ...]:
        """What each slot's env was built from."""
        return tuple(plan.spec for plan in self._engine.plans)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Full task name of every slot."""
        return tuple(plan.spec.name for plan in self._engine.plans)

    @property
    def provenance(self) -> list[Mapping[str, Any]]:
        """Versions and settings that shape the episodes of every slot."""
        return [self._provenance(plan) for plan in self._engine.plans]

    @property
    def delivers_frames(self) -> bool:
        """Whether observations carry frames where the envs have cameras."""
        return self._settings.frames != "none"

    @property
    def episodic(self) -> bool:
        """Whether ``options["episodes"]`` chooses episodes; else seeds do."""
        return self._options.episodic

    @property
    def episodes(self) -> NDArray[np.int64]:
        """Episode index of every slot; meaningful for suites."""
        return self._episodes.current.copy()

    @property
    def worker_pids(self) -> list[int]:
        """Pids of the processes that hold envs."""
        return self._engine.worker_pids()

    def timings_ns(self) -> dict[str, NDArray[np.int64]]:
        """Where each slot's worker spent its last command, in nanoseconds, ``(N,)`` each."""
        results = self._engine.board.results
        return {
            "total": results[:, Result.TOTAL_NS].copy(),
            "sim": results[:, Result.SIM_NS].copy(),
            "frames": results[:, Result.FRAMES_NS].copy(),
            "obs": results[:, Result.OBS_NS].copy(),
            "toggle": results[:, Result.TOGGLE_NS].copy(),
            "video": results[:, Result.VIDEO_NS].copy(),
        }

    def close(self, timeout_s: float = _CLOSE_S, **_: Any) -> None:
        """Close envs and end all processes; returns within seconds in every state.

        Does nothing in a forked copy of the process that made the env.

        Args:
            timeout_s: How long workers may take to close their envs before they are killed.
            **_: Gymnasium's ``timeout`` and ``terminate`` are accepted, and mean nothing here.
        """
        if not self.closed:
            self.closed = True
            if self._finalizer.detach() is not None:
                _close_engine(self._engine, self._maker_pid, timeout_s)
            self._gpu_copies.pins.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Bookkeeping.

    def _collect(
        self,
        slots: Slots | None,
        rows: Slots | int,
        chunk: int | None,
        failures: dict[int, SlotError],
        lengths: Sequence[int] | None = None,
    ) -> tuple[Array, Array, dict[str, Any]]:
        """Rewards, flags and infos of slots, or all of them, that have answered."""
        flags, steps = self._ring.flags(slots, rows)
        info = self._infos.assemble(slots, failures, steps)
        info["steps"] = steps
        every = self._settings.frames == "every"
        valid = self._ring.frame_valid(slots, rows, chunk, lengths) if every else flags[2]
        info["frame_valid"] = valid
        return self._ring.rewards(slots, rows, chunk, lengths), flags, info

    def _own(self, obs: Any) -> Any:
        return self._copies.copy(obs) if self._options.copy else obs

    def _require_idle(self, what: str) -> None:
        self._require_open()
        self._ledger.require_none_pending(what)

    def _require_open(self) -> None:
        if self.closed and os.getpid() != self._maker_pid:
            raise InvalidCall(
                f"this vector env belongs to process {self._maker_pid}, and this one is a forked"
                f" copy, such as a DataLoader's worker: make a vector env here"
            )
        if self.closed:
            raise ClosedEnv("this vector env has been closed")
        self._engine.require_alive()
        self._commands.recover()
        if self._switches.unsure:
            self._switches.recover()


def _close_engine(engine: Engine, maker: int, timeout_s: float = _CLOSE_S) -> None:
    """Close an engine, but only in the process that made it."""
    if os.getpid() == maker:
        engine.close(timeout_s)


_living: weakref.WeakSet[BlockEnv] = weakref.WeakSet()


def _disown() -> None:
    """In a forked copy of the process, close all: they share their block with the original's."""
    for env in _living:
        env.closed = True


os.register_at_fork(after_in_child=_disown)
