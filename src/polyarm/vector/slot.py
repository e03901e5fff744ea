"""One env in its slot: runs the trainer's commands and writes results in place.

The same code serves worker processes and the in-process engine, so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic_ns
from typing import Any

import gymnasium
import numpy as np

from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall, InvalidObservation
from polyarm.vector.action_source import ExpertActions, action_reader
from polyarm.vector.attribute import Attribute
from polyarm.vector.board import (
    EPISODIC,
    EPOCH_SHIFT,
    REPORT,
    SEEDED,
    Board,
    Command,
    Doing,
    Op,
    Phase,
    Result,
    SegmentKind,
)
from polyarm.vector.envcalls import binder, call_env, expert_of, set_attribute, source
from polyarm.vector.infos import InfoWriter, info_segment, mailable
from polyarm.vector.layout import Array
from polyarm.vector.memory import Block, Mail
from polyarm.vector.observations import ObservationRows
from polyarm.vector.settings import SlotSettings
from polyarm.vector.watching import EpisodeWatch

_CALL, _RESET, _EXPERT = int(Op.CALL), int(Op.RESET), int(Op.EXPERT)
_RESETTING, _STEPPING, _CALLING = int(Phase.RESET), int(Phase.STEP), int(Phase.CALL)


class Shared:
    """The memory a process works in: block, board and mail, opened from descriptors."""

    def __init__(self, settings: SlotSettings, block: Block, mail: Mail, board: Board) -> None:
        self.settings = settings
        self.block = block
        self.mail = mail
        self.board = board


class Slot:
    """An env, its rows in the block and the commands that drive it.

    Args:
        index: Row of the batch.
        worker: Index of the worker, for the record of what it is doing.
        shared: The memory to work in.
    """

    def __init__(self, index: int, worker: int, shared: Shared) -> None:
        self.index = index
        self._settings = shared.settings
        self._shared = shared
        self._words = shared.board.words
        self._doing = shared.board.worker_at(worker)
        self._command = shared.board.command_at(index)
        self._result = shared.board.result_at(index)
        at = self._words.itemsize * (self._result + Result.SEQUENCE)
        self.report: Callable[..., None] = partial(REPORT.pack_into, self._words, at)
        self.attributes: dict[str, Attribute] = {}
        self._watch: EpisodeWatch | None = None
        self._info_writer: InfoWriter | None = None
        self._named_drops: set[str] = set()

    def install(
        self, env: gymnasium.Env[Any, Any], spec: EnvSpec, attributes: Mapping[str, Attribute]
    ) -> None:
        """Take over a newly built env; ``attributes`` are set on it as the user once did."""
        self.attributes = dict(attributes)
        for name, attribute in attributes.items():
            set_attribute(env, name, attribute.copy())
        self.env = env
        self._ended = True
        self._switch = source(env, "frames_enabled")
        self._clock = self._switch if hasattr(self._switch, "frame_seconds") else None
        self._bind: Callable[[Mapping[str, Array]], None] | None = binder(env)
        self._watch = None
        self._watch = EpisodeWatch(spec, env) if spec.observer else None
        self._added: dict[str, Any] = {}
        self._epoch = 0

    def close_env(self) -> None:
        """Close the env, and tell its observer."""
        try:
            if self._watch is not None:
                self._watch.close()
        finally:
            self.env.close()

    def publish(self, phase: int, step: int = 0) -> None:
        """Say what is being done, and since when: deadlines apply to each env call."""
        words, at = self._words, self._doing
        words[at + Doing.SLOT] = self.index
        words[at + Doing.STEP] = step
        words[at + Doing.SINCE_NS] = monotonic_ns()
        words[at + Doing.PHASE] = phase

    def doing(self) -> dict[str, Any]:
        """What was last published, for the report of an error."""
        words, at = self._words, self._doing
        phase = Phase(words[at + Doing.PHASE]).name.lower()
        return {"phase": phase, "step": words[at + Doing.STEP]}

    def execute(self, sequence: int) -> None:
        """Run the slot's current command and report it; raises what the env raises.

        Args:
            sequence: The command's number.
        """
        began = monotonic_ns()
        words, command = self._words, self._command
        words[self._result + Result.LETTER] = 0
        self._sim_ns = self._frames_ns = self._obs_ns = self._toggle_ns = self._video_ns = 0
        op = words[command + Command.OP]
        if op == _CALL:
            self._call()
        else:
            epoch = words[command + Command.FLAGS] >> EPOCH_SHIFT
            if epoch != self._epoch:
                self._attach(epoch)
            row, chunk = words[command + Command.ROW], words[command + Command.CHUNK]
            if op == _RESET or self._ended:
                self._reset(row, chunk)
            else:
                self._step(row, chunk, expert=op == _EXPERT)
        spent = self._sim_ns, self._frames_ns, self._obs_ns, self._toggle_ns, self._video_ns
        self.report(sequence, False, monotonic_ns() - began, *spent)

    def fail(self, sequence: int, letter: Mapping[str, Any]) -> None:
        """Report that the command of this number failed, with a letter that says how."""
        self.post(letter)
        self.report(sequence, True, 0, 0, 0, 0, 0, 0)

    def post(self, letter: Mapping[str, Any]) -> None:
        """Leave a letter for the trainer; it goes out with this command's completion."""
        nbytes = self._shared.mail.put(self.index, letter, to_worker=False)
        self._words[self._result + Result.LETTER] = nbytes

    def _letter(self) -> Any:
        nbytes = self._words[self._command + Command.LETTER]
        return self._shared.mail.get(self.index, nbytes, to_worker=True) if nbytes else None

    def _attach(self, epoch: int) -> None:
        """Map the segments that are new since the last command."""
        while self._epoch < epoch:
            kind, offset, size = (int(n) for n in self._shared.board.segments[self._epoch, :3])
            if kind == SegmentKind.ROWS:
                self._attach_rows(offset, size)
            elif kind == SegmentKind.CHUNK:
                self._attach_chunk(offset, size)
            else:
                self._attach_infos(offset, size)
            self._epoch += 1

    def _attach_rows(self, offset: int, digest: int) -> None:
        env = self.env
        self._layout = self._settings.layout(env.observation_space, env.action_space)
        if self._layout.digest() != digest:
            raise InvalidObservation(
                "the env's spaces differ from those the block was laid out for: all slots must"
                " share one observation and one action space"
            )
        segment = self._layout.row_segment()
        self._rows = segment.views(self._shared.block.map(offset, segment.nbytes))
        flags = self._rows[("flags",)][:, :, self.index]
        self._terminated, self._truncated, self._frame_valid = flags[:, 0], flags[:, 1], flags[:, 2]
        self._steps = self._rows[("steps",)][:, self.index]

    def _attach_chunk(self, offset: int, capacity: int) -> None:
        layout, slot = self._layout, self.index
        segment = layout.chunk_segment(capacity)
        views = segment.views(self._shared.block.map(offset, segment.nbytes))
        actions = {leaf.path: views[("action", *leaf.path)][slot] for leaf in layout.action}
        self._read_actions = action_reader(self.env.action_space, actions)
        self._action_rows = actions
        self._reward_rows = [rewards[slot] for rewards in views[("rewards",)]]
        space = self._settings.delivered(self.env.observation_space)
        if layout.every:
            valid = views[("frame_valid",)][:, slot]
            self._observations = ObservationRows(layout, views, valid, slot, space)
        else:
            valid = self._frame_valid[:, np.newaxis]
            self._observations = ObservationRows(layout, self._rows, valid, slot, space)

    def _attach_infos(self, offset: int, letter: int) -> None:
        num_envs = self._settings.num_envs
        schema = self._shared.mail.get(num_envs, letter, to_worker=True)
        segment = info_segment(schema, num_envs)
        views = segment.views(self._shared.block.map(offset, segment.nbytes))
        self._info_writer = InfoWriter(schema, views, self.index)

    def _step(self, row: int, chunk: int, *, expert: bool = False) -> None:
        """Run up to ``chunk`` actions and deliver the last observation, or all of them."""
        clock, watch, every = self._clock, self._watch, self._layout.every
        rendered_s = clock.frame_seconds if clock is not None else 0.0
        actions = self._expert_actions() if expert else self._read_actions(chunk)
        executed, framed, last = self._run_actions(row, chunk, actions)
        if clock is not None:
            self._count_rendering(clock.frame_seconds - rendered_s)
        obs, reward, terminated, truncated, info = last
        ended = bool(terminated or truncated)
        if executed < chunk:
            self._reward_rows[row][executed:chunk] = 0.0
        frames = None if framed else self._timed(self._last_frames, ended=ended)
        if not every:
            self._write(row, 0, obs, frames)
        if watch is not None:
            success = _succeeds(info)
            seen = {**obs, **frames} if frames else obs
            self._watched(watch.next, seen, float(reward), success=success)
            if ended:
                self._added = {"observed_files": self._watched(watch.end, success=success)}
        self._finish(row, chunk, executed, terminated=bool(terminated), truncated=bool(truncated))
        if ended and self._settings.autoreset == "same_step":
            self._reset_in_step(row, executed - 1 if every else 0, info)
        else:
            self._ended = ended
            self._send_info(info, whole=ended)

    def _run_actions(self, row: int, chunk: int, actions: Any) -> tuple[int, bool, Any]:
        """Step until the chunk or the episode ends: the hot path of every worker.

        Returns:
            Steps made, whether the last one rendered, and what it returned.
        """
        words, doing, step = self._words, self._doing, self.env.step
        every, switch, watch = self._layout.every, self._switch, self._watch
        delivers = self._settings.frames != "none"
        rewards, executed, spent = self._reward_rows[row], 0, 0
        if not every:
            self._bind_row(row, 0)
        words[doing + Doing.SLOT] = self.index
        step_at, since_at = doing + Doing.STEP, doing + Doing.SINCE_NS
        phase_at = doing + Doing.PHASE
        while True:
            framed = delivers and (every or executed == chunk - 1)
            if watch is not None:
                framed = framed or watch.wants_next()
            if switch is not None and switch.frames_enabled != framed:
                self._set_frames(wanted=framed)
            if every:
                self._bind_row(row, executed)
            words[step_at] = executed
            words[since_at] = began = monotonic_ns()
            words[phase_at] = _STEPPING
            last = step(actions[executed])
            spent += monotonic_ns() - began
            rewards[executed] = last[1]
            if every:
                self._write(row, executed, last[0])
            executed += 1
            if executed == chunk or last[2] or last[3]:
                self._sim_ns += spent
                return executed, framed, last
            if watch is not None:
                self._watched(watch.next, last[0], float(last[1]), success=_succeeds(last[4]))

    def _reset(self, row: int, chunk: int) -> None:
        obs, info = self._reset_env(row, 0)
        self._reward_rows[row][:chunk] = 0.0
        self._write(row, 0, obs)
        self._finish(row, chunk, 0, terminated=False, truncated=False)
        self._ended = False
        self._send_info(info, whole=True)

    def _reset_in_step(self, row: int, place: int, final_info: Mapping[str, Any]) -> None:
        final_obs, valid = self._observations.owned(row, place)
        obs, info = self._reset_env(row, place)
        self._write(row, place, obs)
        final = {"final_obs": final_obs, "final_info": dict(final_info), "final_frame_valid": valid}
        self._send_info(info, whole=True, final=final)

    def _finish(
        self, row: int, chunk: int, steps: int, *, terminated: bool, truncated: bool
    ) -> None:
        self._terminated[row] = terminated
        self._truncated[row] = truncated
        self._steps[row] = steps
        if self._layout.every and steps < chunk:
            self._observations.clear(row, max(1, steps), chunk)

    def _expert_actions(self) -> ExpertActions:
        act = expert_of(self.env)
        if act is None or len(self._action_rows) != 1:
            raise InvalidCall(f"{type(self.env.unwrapped).__name__} has no expert_action()")
        (actions,) = self._action_rows.values()
        return ExpertActions(act, actions)

    def _last_frames(self, *, ended: bool) -> Mapping[str, Array] | None:
        """Frames that the last step of a chunk did not render: it came earlier than expected."""
        delivered = self._settings.frames != "none" and self._observations.has_frames
        watched = ended and self._watch is not None and self._watch.wants_last()
        if self._switch is None or not (delivered or watched):
            return None
        frames: Mapping[str, Array] = self._switch.terminal_frame() or {}
        return frames

    def _reset_env(self, row: int, place: int) -> tuple[Any, dict[str, Any]]:
        words, command = self._words, self._command
        flags = words[command + Command.FLAGS]
        seed = words[command + Command.SEED] if flags & SEEDED else None
        options = self._letter()
        index = words[command + Command.EPISODE] if flags & EPISODIC else seed
        if flags & EPISODIC:
            options = {**(options or {}), "episode": index}
        observed = options.pop("observed", None) if options else None
        wanted = self._settings.frames != "none"
        if self._watch is not None:
            wanted = self._watched(self._watch.begin, observed, index) or wanted
        self._set_frames(wanted=wanted)
        self.publish(_RESETTING)
        self._bind_row(row, place)
        obs, info = self._timed(self.env.reset, seed=seed, options=options or None)
        if self._watch is not None:
            self._watched(self._watch.first, obs)
        return obs, info

    def _call(self) -> None:
        mode, name, args, kwargs = self._letter()
        self.publish(_CALLING)
        self.post({"value": call_env(self.env, mode, name, args, kwargs)})
        if mode == "set":
            self.attributes[name] = args

    def _timed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call into the env; what it spends rendering counts as frames, the rest as simulation."""
        clock = self._clock
        rendered_s = clock.frame_seconds if clock is not None else 0.0
        began = monotonic_ns()
        value = function(*args, **kwargs)
        self._sim_ns += monotonic_ns() - began
        if clock is not None:
            self._count_rendering(clock.frame_seconds - rendered_s)
        return value

    def _count_rendering(self, rendered_s: float) -> None:
        """What an env call has spent rendering counted as simulation so far."""
        rendered_ns = int(rendered_s * 1e9)
        self._frames_ns += rendered_ns
        self._sim_ns -= rendered_ns

    def _watched(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Tell the observer something; what it takes counts as video."""
        began = monotonic_ns()
        value = function(*args, **kwargs)
        self._video_ns += monotonic_ns() - began
        return value

    def _set_frames(self, *, wanted: bool) -> None:
        if self._switch is not None and self._switch.frames_enabled != wanted:
            began = monotonic_ns()
            self._switch.frames_enabled = wanted
            self._toggle_ns += monotonic_ns() - began

    def _bind_row(self, row: int, place: int) -> None:
        if self._bind is not None:
            self._bind(self._observations.buffers(row, place))

    def _write(
        self, row: int, place: int, obs: Any, frames: Mapping[str, Array] | None = None
    ) -> None:
        began = monotonic_ns()
        self._observations.write(row, place, obs, frames)
        self._obs_ns += monotonic_ns() - began

    def _send_info(self, info: Mapping[str, Any], *, whole: bool, **extras: Any) -> None:
        """Infos go into the block once their keys are known; by mail before, and when whole."""
        if self._info_writer is not None:
            dropped = self._info_writer.write(info)
            if not whole and self._settings.infos == "auto":
                if dropped and not self._named_drops.issuperset(dropped):
                    self._named_drops.update(dropped)
                    self.post({"dropped": dropped})
                return
        letter = {"info": dict(info), "added": self._added, **extras}
        self._added = {}
        try:
            self.post(letter)
        except Exception:  # noqa: BLE001  objects may raise anything when they are pickled
            self.post(mailable(letter))


def _succeeds(info: Mapping[str, Any]) -> bool:
    """As an evaluation reads it; not every Gymnasium env uses the first name."""
    return bool(np.all(info.get("is_success", info.get("success", False))))
