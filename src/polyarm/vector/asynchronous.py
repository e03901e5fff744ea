"""Slots on their own: `send` and `recv`, where a slow env or a long episode stalls nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from polyarm.errors import InvalidCall
from polyarm.vector.arguments import is_int
from polyarm.vector.block_env import BlockEnv
from polyarm.vector.board import Op
from polyarm.vector.episodes import Seed, deal_options
from polyarm.vector.layout import Array, Slots


class Ready(NamedTuple):
    """What `VectorEnv.recv` returns: slots in the order they became ready, and their batch.

    The observation lives in a buffer that the next ``recv`` fills again. ``rewards`` is ``(n,)``
    if all of them were sent single steps, else ``(n, K)``.
    """

    slots: Slots
    obs: Any
    rewards: Array
    terminated: Array
    truncated: Array
    info: dict[str, Any]


class AsynchronousEnv(BlockEnv):
    """Each slot goes its own way; the same commands as in lockstep, sent to some slots."""

    def send(self, actions: Any, slots: Sequence[int] | Slots | None = None) -> None:
        """Send actions to idle slots without waiting; `recv` collects the results.

        Args:
            actions: ``(n, …)`` for single steps, ``(n, K, …)`` for chunks.
            slots: The n slots; None for all.
        """
        self._require_open()
        chosen = self._ledger.idle(slots, "send")
        arrays, chunk = self._check(actions, chosen, chunked=None)
        self._send_steps(chosen, Op.STEP, arrays, chunk)

    def send_expert(self, steps: int, slots: Sequence[int] | Slots | None = None) -> None:
        """Have the envs' own experts act for up to so many steps, asked before each one.

        `recv` collects the results, and `executed_actions` has what the experts did. An env
        without ``expert_action()`` answers with an error.
        """
        self._require_open()
        chosen = self._ledger.idle(slots, "send_expert")
        if not is_int(steps) or steps < 1:
            raise InvalidCall(f"send_expert needs a number of steps from 1 on, found {steps!r}")
        steps = int(steps)
        self._send_steps(chosen, Op.EXPERT, None, steps)

    def _send_steps(
        self, chosen: Slots, op: Op, arrays: list[Array] | None, chunk: int | None
    ) -> None:
        self._ledger.require_steppable(chosen)
        self._commands.forget_losses(chosen, ended=True)
        ring = self._ring
        ring.reserve(chunk or 1)
        ring.use_chunk(chosen)
        if arrays is not None:
            ring.write_actions(chosen, arrays, chunk or 1)
        self._commands.underway = chosen, chunk
        rows = ring.advance(chosen)
        self._expire(chosen, rows)
        self._commands.write(chosen, op, rows, chunk or 1)
        self._commands.send(chosen, op, chunk)

    def _expire(self, slots: Slots, rows: Slots) -> None:
        """Spoil rows whose views are no longer valid once these are written, for debugging."""
        if self._options.check_lifetimes:
            for slot, row in zip(slots, rows.tolist(), strict=True):
                self._ring.poison(np.array([slot]), row)

    def executed_actions(self, slot: int, steps: int) -> Array:
        """The first ``steps`` actions of the slot's last chunk, ``(steps, …)``, owned.

        For action spaces that are no Dict.
        """
        return self._ring.actions(slot, steps)

    def send_reset(
        self,
        slots: Sequence[int] | Slots | None = None,
        *,
        seed: Seed = None,
        options: dict[str, Any] | None = None,
        task: Any = None,
    ) -> None:
        """Reset idle slots without waiting; `recv` delivers their first observations.

        A reset that fails is delivered like any other failure.

        Args:
            slots: The slots; None for all.
            seed: As in `reset`.
            options: As in `reset`; ``observed`` lists an `ObservedEpisode` per slot, for observers.
            task: Another task for these slots; they are given new envs first, in the background. If
                that fails, they have their old task again; `tasks` says which.
        """
        self._require_open()
        chosen = self._ledger.idle(slots, "send_reset")
        if task is None:
            self._reset_now(chosen, seed, options)
            return
        plans = {slot: self._planner(slot, task) for slot in chosen.tolist()}
        dealt = deal_options(options or {}, len(chosen))
        self._episodes.check(chosen, seed, options or {})
        self._commands.forget_losses(chosen)
        self._ledger.switched(chosen)
        for (slot, plan), own in zip(plans.items(), dealt, strict=True):
            one = np.array([slot], np.intp)
            self._switches.begin(slot, plan, partial(self._reset_now, one, seed, own))

    def _reset_now(self, chosen: Slots, seed: Seed, options: dict[str, Any] | None) -> None:
        options = dict(options or {})
        self._commands.forget_losses(chosen)
        self._episodes.begin(chosen, seed, options)
        self._ring.use_chunk(chosen)
        self._commands.underway = chosen, None
        rows = self._ring.advance(chosen)
        self._expire(chosen, rows)
        self._commands.write(chosen, Op.RESET, rows, 1)
        if options:
            observed = options.pop("observed", None) or [None] * len(chosen)
            letters = [{**options, "observed": each} if each else options for each in observed]
            self._commands.write_letters(chosen, letters)
        self._commands.send(chosen, Op.RESET, None)

    def recv(
        self, min_slots: int = 1, timeout_s: float | None = None, *, observe: bool = True
    ) -> Ready:
        """Results of slots that are ready, first come, first served.

        Args:
            min_slots: How many to wait for.
            timeout_s: How long to wait for them; then fewer are returned, maybe none.
            observe: Whether to gather the observations; without, they are left where they are,
                for `observe`.

        Raises:
            InvalidCall: When fewer than ``min_slots`` are pending.
        """
        self._require_open()
        engine, pending = self._engine, self._ledger.pending
        if not is_int(min_slots):
            raise InvalidCall(f"recv waits for a number of slots, found {min_slots!r}")
        timeout_s = None if timeout_s is None else float(timeout_s)
        if min_slots > len(pending):
            raise InvalidCall(
                f"recv({min_slots}) would wait for ever: {len(pending)} slots are pending"
            )
        end = None if timeout_s is None else time.monotonic() + timeout_s
        engine.wait(min_slots, timeout_s)
        while self._switches.settle():
            left = None if end is None else max(0.0, end - time.monotonic())
            engine.wait(min_slots, left)
        answers = list(engine.done)
        slots = np.array([slot for slot, _ in answers], np.intp)
        sent = [pending[slot] for slot, _ in answers]
        chunk = max((length for length in sent if length is not None), default=None)
        lengths = [length or 1 for length in sent]
        failures = {slot: failure for slot, failure in answers if failure is not None}
        for slot in failures:
            self._ring.fail(slot, chunk or 1)
        rows = self._ring.slot_row[slots]
        rewards, flags, info = self._collect(slots, rows, chunk, failures, lengths)
        obs = self._own(self._ring.observe(slots, chunk, lengths)) if observe else None
        received = partial(self._received, slots.tolist())
        self._ledger.settle(slots, rows, failures, (flags, info["steps"]), received)
        return Ready(slots, obs, rewards, flags[0], flags[1], info)

    def _received(self, slots: list[int]) -> None:
        """These are no longer pending; an interrupt finds all of them so, or none."""
        ledger, engine, gone = self._ledger, self._engine, set(slots)
        done = engine.done[len(slots) :]
        pending = {slot: chunk for slot, chunk in ledger.pending.items() if slot not in gone}
        engine.done, ledger.pending = done, pending

    def observe(self, slots: Sequence[int] | Slots) -> Any:
        """The newest observations of idle slots, gathered into a buffer that is filled again.

        Not with ``frames="every"``, where a slot has many.
        """
        self._require_open()
        chosen = self._ledger.idle(slots, "observe")
        if self._settings.frames == "every":
            raise InvalidCall("observe() needs frames='last' or 'none'; recv() has every frame")
        return self._own(self._ring.observe(chosen, None, [1] * len(chosen)))
