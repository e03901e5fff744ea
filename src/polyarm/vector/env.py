"""The vector env: one batch over many slots, whatever they run in.

``step`` and ``reset`` move all slots together and return views of the block; ``send`` and
``recv`` let each slot go its own way. Both are the same commands underneath.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarm.errors import BuildError, InvalidCall
from polyarm.vector.asynchronous import AsynchronousEnv
from polyarm.vector.attribute import Attribute
from polyarm.vector.board import Op
from polyarm.vector.deliveries import widen
from polyarm.vector.envcalls import check_callable
from polyarm.vector.episodes import Seed
from polyarm.vector.layout import Array, Slots

if TYPE_CHECKING:
    from polyarm.vector.torch_env import TorchVectorEnv

Step = tuple[Any, Array, Array, Array, dict[str, Any]]

_ALL = slice(None)


class VectorEnv(AsynchronousEnv):
    """Many envs behind one shared block; made by `polyarm.make_vec`.

    Not thread-safe: one thread at a time.
    """

    # Lockstep: all slots together.

    def reset(
        self, *, seed: Seed = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all slots, or those in ``options["reset_mask"]``.

        Args:
            seed: For suites it selects the stream of episodes, below 2**31; for Gymnasium envs slot
                i gets ``seed + i``. A list gives one per slot. None goes on where the slots are.
            options: Passed to the envs, except for ``reset_mask`` (bool, ``(N,)``) and, for
                suites, ``start`` (index of the first episode in the stream) and ``episodes``
                (exact indices, one per reset slot).

        Returns:
            Observations ``(N, …)``, views that live as those of `step` do, and infos. To views it
            is one more step, also of slots that are not reset. A reset that fails is tried again
            with a new env.

        Raises:
            InvalidCall: A seed or an index that cannot be; nothing has changed.
            WorkerDied: When it keeps failing.
        """
        self._require_idle("reset")
        if not isinstance(options or {}, Mapping):
            raise InvalidCall(f"options must be a dict or None, found {options!r}")
        options = dict(options or {})
        slots = self._masked(options.pop("reset_mask", None))
        commands = self._commands
        commands.forget_losses(slots)
        self._episodes.begin(slots, seed, options)
        ring, before = self._ring, self._ring.slot_row.copy()
        ring.use_chunk(None)
        commands.underway = self._ledger.all, None
        row = ring.advance_all()
        for slot in np.setdiff1d(self._ledger.all, slots).tolist():
            ring.stay(slot, int(before[slot]), row)
        if self._options.check_lifetimes:
            ring.poison(_ALL, row)
        waiting = slots
        while len(waiting):
            some = waiting if len(waiting) < self.num_envs else None
            commands.write(some, Op.RESET, row, 1)
            if options:
                commands.write_letters(waiting, [options] * len(waiting))
            failures = commands.run(waiting, Op.RESET, None)
            well = np.setdiff1d(waiting, sorted(failures)).astype(np.intp)
            told, then = ring.flags(well, row), partial(self._try_again, list(failures))
            self._ledger.settle(well, row, {}, told, then)
            waiting = np.array(sorted(failures), np.intp)
        infos = self._infos.assemble(slots, {}, ring.flags(slots, row)[1])
        if len(slots) < self.num_envs:
            infos = widen(infos, slots, self.num_envs)
        every = self._settings.frames == "every"
        flags, _ = ring.flags(None, row)
        infos["frame_valid"] = ring.frame_valid(None, row, None) if every else flags[2]
        return self._own(ring.observe_all(row, None)), infos

    def _try_again(self, failed: list[int]) -> None:
        """Resets have been answered; those that failed are commanded anew."""
        for slot in failed:
            self._episodes.failed(slot, resetting=False)
        self._commands.delivered()
        if failed:
            self._commands.underway = np.array(failed, np.intp), None

    def step(self, actions: Any) -> Step:
        """Step all slots once.

        Args:
            actions: ``(N, …)`` per leaf of the action space.

        Returns:
            Observations (views of the block, valid until the slot's T-th following send with
            ``ring=T``, unless ``copy=True``), rewards ``(N,)``, terminated, truncated and infos.

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
        if length > ring.longest:
            ring.reserve(length)
        ring.use_chunk(None)
        ring.write_actions(_ALL, arrays, length)
        commands.underway = ledger.all, chunk
        row = ring.advance_all()
        if self._options.check_lifetimes:
            ring.poison(_ALL, row)
        commands.write(None, Op.STEP, row, length)
        failures = commands.run(ledger.all, Op.STEP, chunk)
        for slot in failures:
            ring.fail(slot, length)
        rewards, flags, info = self._collect(None, row, chunk, failures)
        ledger.settle(None, row, failures, (flags, info["steps"]), commands.delivered)
        return self._own(ring.observe_all(row, chunk)), rewards, flags[0], flags[1], info

    def rewind(self) -> None:
        """Carry the newest row to row 0: the next T - 1 steps fill rows 1 to T - 1 in order.

        Until then, `history` says that no steps were made in those. All views expire but those of
        the newest observations, which do with the next step.
        """
        self._require_idle("rewind")
        if self._options.check_lifetimes:
            for row in range(self._ring.layout.rows):
                self._ring.poison(_ALL, row)
        self._ring.rewind()

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
        """Set an attribute on every env, each a copy; restarted envs get it again, as it is now.

        Args:
            name: The attribute.
            values: One value for all, or a list or tuple with one per slot.

        Raises:
            EnvCallError: An env refuses its value; the others have theirs, also when restarted.
        """
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise InvalidCall(f"set_attr needs {self.num_envs} values, found {len(each)}")
        self._require_idle("set_attr")
        attributes = [Attribute(value) for value in each]
        failures = self._commands.ask("set", name, attributes, {})
        failed = {failure.slot for failure in failures}
        for slot, value in enumerate(attributes):
            if slot not in failed:
                self._engine.set_attribute(slot, name, value)
        self._commands.raise_for(name, failures)

    def render(self) -> tuple[Any, ...] | None:
        """What every env's ``render()`` returns."""
        self._require_idle("render")
        return self._commands.request("render", "render", [()] * self.num_envs, {})

    def switch_task(self, slots: Sequence[int] | Slots, task: Any) -> None:
        """Give idle slots another task; they must be reset, or are by their next step."""
        self._require_open()
        chosen = self._ledger.idle(slots, "switch_task")
        before = {slot: self._engine.plans[slot] for slot in chosen.tolist()}
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
