"""The vector env: one batch over many slots, whatever they run in.

``step`` and ``reset`` move all slots together and return views of the block; ``send`` and
``recv`` let each slot go its own way. Both are the same commands underneath.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from polyarm.contracts import EnvSpec
from polyarm.errors import BuildError, ClosedEnv, InvalidCall, SlotError
from polyarm.vector.actions import ActionCheck
from polyarm.vector.board import Op, Result
from polyarm.vector.commands import Commands
from polyarm.vector.copies import CopyPool
from polyarm.vector.deliveries import InfoAssembler
from polyarm.vector.engine import Engine
from polyarm.vector.envcalls import check_callable
from polyarm.vector.episodes import Episodes, Seed, deal_options
from polyarm.vector.gpu_copies import GpuCopies
from polyarm.vector.layout import Array
from polyarm.vector.ledger import Ledger
from polyarm.vector.ring import Ring
from polyarm.vector.slot import SlotSettings
from polyarm.vector.switching import BatchFit, Switches
from polyarm.vector.worker import SlotPlan

if TYPE_CHECKING:
    from polyarm.vector.torch_env import TorchVectorEnv

Slots = NDArray[np.intp]
Step = tuple[Any, Array, Array, Array, dict[str, Any]]

_ALL = slice(None)
_CLOSE_S = 3.0
_MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


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


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many envs behind one shared block; made by `polyarm.make_vec`.

    Not thread-safe: one thread at a time.

    Args:
        engine: What runs the slots.
        plans: What each slot holds.
        settings: What all slots share.
        options: How results are delivered.
        planner: Turns a task's name into a plan for a slot, for `switch_task`.
        provenance: Per slot, the versions and settings that shape its episodes.
    """

    def __init__(
        self,
        engine: Engine,
        plans: Sequence[SlotPlan],
        settings: SlotSettings,
        options: VectorOptions,
        planner: Callable[[int, Any], SlotPlan],
        provenance: Sequence[Mapping[str, Any]],
    ) -> None:
        self.closed = False
        self.num_envs = settings.num_envs
        self._engine = engine
        self._maker_pid = os.getpid()
        self._finalizer = weakref.finalize(self, _close_engine, engine, self._maker_pid)
        self._plans = list(plans)
        self._settings = settings
        self._options = options
        self._planner = planner
        self._gpu_copies = GpuCopies()
        self.provenance = list(provenance)
        try:
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
        self._episodes = Episodes(
            self.num_envs, episodic=options.episodic, seed=options.seed, scatter=options.scatter
        )
        self._infos = InfoAssembler(engine, self._ring, settings)
        self._ledger = Ledger(self.num_envs, settings.autoreset, engine, self._ring, self._episodes)
        self._copies = CopyPool()
        self._commands = Commands(engine, self._ring, self._ledger, self._episodes)
        self._switches = Switches(engine, self._commands, self._plans, self._fits)

    def _describe(self, descriptions: Sequence[dict[str, Any]]) -> None:
        first = descriptions[0]
        self.single_action_space = first["action_space"]
        self._fits = BatchFit(self._settings, first["observation_space"], first["action_space"])
        for slot, other in enumerate(descriptions):
            if not self._fits(other["observation_space"], other["action_space"]):
                raise BuildError(
                    f"slots 0 ({self._plans[0].spec.name}) and {slot}"
                    f" ({self._plans[slot].spec.name}) cannot share a batch: their spaces differ:\n"
                    f"  {first['observation_space']}, {first['action_space']}\n"
                    f"  {other['observation_space']}, {other['action_space']}"
                )
        self._env_observation_space = first["observation_space"]
        self.single_observation_space = self._settings.delivered(first["observation_space"])
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**first["metadata"], "autoreset_mode": _MODES[self._settings.autoreset]}
        self.render_mode = first["render_mode"]
        self.spec = first["spec"]

    # Lockstep: all slots together.

    def reset(
        self, *, seed: Seed = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all slots, or those in ``options["reset_mask"]``.

        Args:
            seed: For suites it selects the stream of episodes; for Gymnasium envs slot i gets
                ``seed + i``. A list gives one per slot. None goes on where the slots are.
            options: Passed to the envs, except for ``reset_mask`` (bool, ``(N,)``) and, for
                suites, ``start`` (index of the first episode in the stream) and ``episodes``
                (exact indices, one per reset slot).

        Returns:
            Observations ``(N, …)`` and infos. A reset that fails is tried again with a new env.

        Raises:
            WorkerDied: When it keeps failing.
        """
        self._require_idle("reset")
        options = dict(options or {})
        slots = self._masked(options.pop("reset_mask", None))
        commands = self._commands
        commands.forget_losses(slots)
        self._episodes.begin(slots, seed, options)
        ring, before = self._ring, self._ring.slot_row.copy()
        row = ring.advance_all()
        for slot in np.setdiff1d(self._ledger.all, slots).tolist():
            ring.copy(slot, int(before[slot]), row, ring.chunk)
        ring.use_chunk(slots)
        waiting = slots
        while len(waiting):
            some = waiting if len(waiting) < self.num_envs else None
            commands.write(some, Op.RESET, row, 1)
            if options:
                commands.write_letters(waiting, [options] * len(waiting))
            failures = commands.run(waiting, Op.RESET, None)
            waiting = np.array(sorted(failures), np.intp)
            for slot in failures:
                self._episodes.failed(slot, resetting=False)
            if failures:
                commands.delivered()
        _, steps = self._ledger.settle(slots, row, {})
        infos = self._infos.assemble(slots, {}, steps)
        commands.delivered()
        if len(slots) < self.num_envs:
            infos = _widen(infos, slots, self.num_envs)
        every = self._settings.frames == "every"
        flags, _ = ring.flags(None, row)
        infos["frame_valid"] = ring.frame_valid(None, row, None) if every else flags[2]
        return self._own(ring.observe_all(row, None)), infos

    def step(self, actions: Any) -> Step:
        """Step all slots once.

        Args:
            actions: ``(N, …)`` per leaf of the action space.

        Returns:
            Observations (views of the block, valid until the second following step, unless
            ``copy=True``), rewards ``(N,)``, terminated, truncated and infos.

        Raises:
            InvalidAction: Before anything is sent; the env stays usable.
        """
        commands = self._commands
        unsettled = commands.underway is not None or commands.calling
        if self.closed or unsettled or self._ledger.pending:
            self._require_idle("step")
        arrays, _ = self._check(actions, self._ledger.all, chunked=False)
        return self._lockstep(arrays, None)

    def step_chunk(self, actions: Any) -> Step:
        """Run up to K steps in every slot with one wake-up.

        Args:
            actions: ``(N, K, …)`` per leaf of the action space.

        Returns:
            Observations of the last executed step (of every step, ``(N, K, …)``, with
            ``frames="every"``), rewards ``(N, K)``, terminated and truncated ``(N,)`` of the last
            executed step, and infos with ``steps`` ``(N,)``, the number executed.
        """
        self._require_idle("step_chunk")
        arrays, chunk = self._check(actions, self._ledger.all, chunked=True)
        return self._lockstep(arrays, chunk)

    def _lockstep(self, arrays: list[Array], chunk: int | None) -> Step:
        ledger, ring, commands = self._ledger, self._ring, self._commands
        length = chunk or 1
        ledger.require_steppable(ledger.all)
        if self._engine.lost:
            commands.forget_losses(ledger.all, ended=True)
        if length > ring.chunk.capacity:
            ring.reserve(length)
        ring.write_actions(_ALL, arrays, length)
        row = ring.advance_all()
        ring.use_chunk(None)
        if self._options.check_lifetimes:
            ring.poison(_ALL, row)
        commands.write(None, Op.STEP, row, length)
        failures = commands.run(ledger.all, Op.STEP, chunk)
        for slot in failures:
            ledger.fail(slot, length)
        rewards, terminated, truncated, info = self._collect(None, row, chunk, failures)
        commands.delivered()
        return self._own(ring.observe_all(row, chunk)), rewards, terminated, truncated, info

    # Asynchronous: each slot on its own.

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
        if steps < 1:
            raise InvalidCall(f"send_expert needs at least one step, found {steps}")
        self._send_steps(chosen, Op.EXPERT, None, steps)

    def _send_steps(
        self, chosen: Slots, op: Op, arrays: list[Array] | None, chunk: int | None
    ) -> None:
        self._ledger.require_steppable(chosen)
        self._commands.forget_losses(chosen, ended=True)
        ring = self._ring
        ring.reserve(chunk or 1)
        if arrays is not None:
            ring.write_actions(chosen, arrays, chunk or 1)
        rows = ring.advance(chosen)
        ring.use_chunk(chosen)
        if self._options.check_lifetimes:
            for slot, row in zip(chosen, rows, strict=True):
                ring.poison(np.array([slot]), int(row))
        self._commands.write(chosen, op, rows, chunk or 1)
        self._commands.send(chosen, op, chunk)

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
            task: Another task for these slots; they are given new envs first, in the background.
        """
        self._require_open()
        chosen = self._ledger.idle(slots, "send_reset")
        if task is None:
            self._reset_now(chosen, seed, options)
            return
        plans = {slot: self._planner(slot, task) for slot in chosen.tolist()}
        dealt = deal_options(options or {}, len(chosen))
        self._commands.forget_losses(chosen)
        self._ledger.switched(chosen)
        for (slot, plan), own in zip(plans.items(), dealt, strict=True):
            one = np.array([slot], np.intp)
            self._ledger.pending[slot] = None
            self._switches.begin(slot, plan, partial(self._reset_now, one, seed, own))

    def _reset_now(self, chosen: Slots, seed: Seed, options: dict[str, Any] | None) -> None:
        options = dict(options or {})
        self._commands.forget_losses(chosen)
        self._episodes.begin(chosen, seed, options)
        rows = self._ring.advance(chosen)
        self._ring.use_chunk(chosen)
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
            self._ledger.fail(slot, chunk or 1)
        rows = self._ring.slot_row[slots]
        rewards, terminated, truncated, info = self._collect(slots, rows, chunk, failures, lengths)
        obs = self._own(self._ring.observe(slots, chunk, lengths)) if observe else None
        del engine.done[: len(answers)]
        for slot, _ in answers:
            del pending[slot]
        return Ready(slots, obs, rewards, terminated, truncated, info)

    def observe(self, slots: Sequence[int] | Slots) -> Any:
        """The newest observations of idle slots, gathered into a buffer that is filled again.

        Not with ``frames="every"``, where a slot has many.
        """
        chosen = self._ledger.idle(slots, "observe")
        if self._settings.frames == "every":
            raise InvalidCall("observe() needs frames='last' or 'none'; recv() has every frame")
        return self._own(self._ring.observe(chosen, None, [1] * len(chosen)))

    def to_torch(
        self,
        device: Any = "cuda",
        *,
        dtype: Any = "float32",
        channels_first: bool = True,
        normalize: bool | None = None,
    ) -> TorchVectorEnv:
        """This env with tensors for arrays, on a GPU or on the CPU.

        Args:
            device: ``"cuda"``, ``"cuda:1"``, ``"cpu"`` or a device of PyTorch. On a GPU,
                observations are copied from the block, pinned once, on a stream of their own.
            dtype: What frames are given in: float32, bfloat16, float16 or uint8, as a name or a
                dtype of PyTorch. Other leaves keep theirs.
            channels_first: Whether frames are ``(…, C, H, W)``.
            normalize: Whether frames are divided by 255; None means unless they stay uint8.

        Raises:
            MissingExtra: PyTorch is not installed.
            InvalidCall: There is no such device.
        """
        from polyarm.vector.tensors import FrameFormat
        from polyarm.vector.torch_env import TorchVectorEnv

        self._require_open()
        frames = FrameFormat.of(dtype, channels_first=channels_first, normalize=normalize)
        return TorchVectorEnv(self, self._ring, self._ledger, self._gpu_copies, device, frames)

    # Reaching into the envs.

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; one value per slot."""
        check_callable(name)
        self._require_idle(name)
        return self._commands.request("call", name, [args] * self.num_envs, kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute on every env; restarted envs get it again.

        Args:
            name: The attribute.
            values: One value for all, or a list or tuple with one per slot.
        """
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise InvalidCall(f"set_attr needs {self.num_envs} values, found {len(each)}")
        self._require_idle("set_attr")
        self._commands.request("set", name, list(each), {})
        for slot, value in enumerate(each):
            self._engine.set_attribute(slot, name, value)

    def render(self) -> tuple[Any, ...] | None:
        """What every env's ``render()`` returns."""
        self._require_idle("render")
        return self._commands.request("render", "render", [()] * self.num_envs, {})

    def switch_task(self, slots: Sequence[int] | Slots, task: Any) -> None:
        """Give idle slots another task; they must be reset, or are by their next step."""
        self._require_open()
        chosen = self._ledger.idle(slots, "switch_task")
        before = {slot: self._plans[slot] for slot in chosen.tolist()}
        after = {slot: self._planner(slot, task) for slot in before}
        self._ledger.switched(chosen)
        problems = self._switches.run(after)
        if problems:
            # Slots must go on to have envs that fit the batch: they get their old ones back.
            self._switches.run({slot: before[slot] for slot in problems})
            slot, problem = next(iter(problems.items()))
            raise BuildError(f"could not switch slot {slot} to {task}: {problem}")

    def take_part(self, first: int, total: int) -> None:
        """Be the slots from ``first`` on of a larger batch, whose others run elsewhere.

        Episodes and seeds are then those of that batch. To be called before the first reset.
        """
        self._episodes.take_part(first, total)

    # Looking at the block.

    def history(self) -> dict[str, Any]:
        """The whole ring as contiguous arrays, ``(T, N, …)``, in the block's order.

        The newest row is ``row``; after `rewind`, rows are in the order of time.
        """
        return {**self._ring.history(), "row": int(self._ring.slot_row[0])}

    def rewind(self) -> None:
        """Carry the newest row to row 0: the next T - 1 steps fill rows 1 to T - 1 in order."""
        self._require_idle("rewind")
        self._ring.rewind()
        self._ledger.rewound()

    @property
    def specs(self) -> tuple[EnvSpec, ...]:
        """What each slot's env was built from."""
        return tuple(plan.spec for plan in self._plans)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Full task name of every slot."""
        return tuple(plan.spec.name for plan in self._plans)

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
        }

    def close(self, timeout_s: float = _CLOSE_S, **_: Any) -> None:
        """Close envs and end all processes; returns within seconds in every state.

        Does nothing in a forked copy of the process that made the env.
        """
        if not self.closed:
            self.closed = True
            if self._finalizer.detach() is not None:
                _close_engine(self._engine, self._maker_pid, timeout_s)
            self._gpu_copies.pins.release()

    def __enter__(self) -> VectorEnv:
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
    ) -> tuple[Array, Array, Array, dict[str, Any]]:
        """Rewards, flags and infos of slots, or all of them, that have answered."""
        flags, steps = self._ledger.settle(slots, rows, failures)
        info = self._infos.assemble(slots, failures, steps)
        info["steps"] = steps
        every = self._settings.frames == "every"
        valid = self._ring.frame_valid(slots, rows, chunk, lengths) if every else flags[2]
        info["frame_valid"] = valid
        return self._ring.rewards(slots, rows, chunk, lengths), flags[0], flags[1], info

    def _own(self, obs: Any) -> Any:
        return self._copies.copy(obs) if self._options.copy else obs

    def _masked(self, mask: Any) -> Slots:
        if mask is None:
            return self._ledger.all
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise InvalidCall(
                f"reset_mask must be a bool array of shape ({self.num_envs},) with at least one"
                f" True, found {mask.dtype} {mask.shape}"
            )
        return np.flatnonzero(mask)

    def _require_idle(self, what: str) -> None:
        self._require_open()
        self._ledger.require_none_pending(what)

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnv("this vector env has been closed")
        self._engine.require_alive()
        self._commands.recover()


def _close_engine(engine: Engine, maker: int, timeout_s: float = _CLOSE_S) -> None:
    """Close an engine, but only in the process that made it."""
    if os.getpid() == maker:
        engine.close(timeout_s)


def _widen(infos: dict[str, Any], slots: Slots, num_envs: int) -> dict[str, Any]:
    """Spread a batch of some slots over all slots; absent ones are zero and masked out."""
    wide: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            wide[key] = _widen(value, slots, num_envs)
        else:
            absent = None if value.dtype == object else 0
            wide[key] = np.full((num_envs, *value.shape[1:]), absent, value.dtype)
            wide[key][slots] = value
    return wide
