"""What runs on a node of a cluster: the local engine, in one actor that owns workers and block.

The actor is the trainer that the fork server watches: however it ends, its workers end with it.
It is called by its evaluation in order, in its main thread: each call plays on for a moment and
says what has been finished. Between calls the envs go on with the actions that they have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyarm import registry
from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import RunConflict
from polyarm.report.encoding import plain
from polyarm.rollout.journal import differences
from polyarm.rollout.live_envs import Need
from polyarm.rollout.options import EvalOptions
from polyarm.rollout.plan import Group, protocol
from polyarm.rollout.player import Player, Turn
from polyarm.rollout.schedule import Schedule

REPORT_S = 0.25
"""How long a node plays between two reports, while it has enough to play."""
_MANY_GROUPS = 4
"""More groups of tasks than this are not all kept alive."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node says about itself before it plays.

    Attributes:
        protocol: What shapes episodes there; must be what it is elsewhere.
        lacking: What the suites need and it does not have, with the fix.
    """

    protocol: Mapping[str, Any]
    lacking: Sequence[str]


@dataclass(frozen=True, slots=True)
class Report:
    """What happened on a node since its last report.

    Attributes:
        results: Episodes that have ended.
        files: What was recorded of them, by path relative to the output folder.
        running: Episodes under way.
        wall: Seconds spent so far, by what they were spent on.
        notes: What readers of the results should know.
        on_gpu: Whether a policy said that it runs on a GPU.
    """

    results: Sequence[EpisodeResult] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    running: int = 0
    wall: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    on_gpu: bool = False


class EvalNode:
    """The actor of an evaluation.

    Args:
        options: Of the evaluation; ``num_envs`` are this node's.
        folder: The evaluation's working directory: relative paths mean what they mean there.
    """

    def __init__(self, options: EvalOptions, folder: str) -> None:
        stand_in(folder)
        self._options = options
        self._folder: Path | None = None
        self._own_player: Player | None = None
        self._groups: dict[int, Group] = {}
        self._turn: tuple[str, Any, int, Need] | None = None
        self._schedule = Schedule([])
        self._playing: Iterator[EpisodeResult | None] | None = None

    @property
    def _player(self) -> Player:
        if self._own_player is None:
            if self._options.recorded != "none" or self._options.save_trajectories:
                self._folder = Path(tempfile.mkdtemp(prefix="polyarm-"))
            self._own_player = Player(self._options, self._folder)
        return self._own_player

    def pid(self) -> int:
        """Process id of this actor."""
        return os.getpid()

    def examine(self, groups: Sequence[Group]) -> Facts:
        """What this node is, as far as it shapes episodes of these tasks."""
        lacking = []
        for suite in sorted({spec.suite for group in groups for spec in group.specs}):
            for need in registry.load(suite).requirements():
                if need.found is None:
                    lacking.append(f"{need.name} for {suite} (install it there: {need.fix})")
        return Facts(comparable(protocol(groups, self._options)), lacking)

    def begin(self, label: str, policy: Any, number: int, group: Group, need: Need) -> None:
        """Another turn begins; what the last one has left is given up.

        Args:
            label: The policy's.
            policy: What acts.
            number: The group's, so that its envs are found again.
            group: The tasks.
            need: What all policies of this run need of the env.
        """
        self._playing = None
        self._schedule = Schedule([], max_attempts=self._options.max_attempts)
        if self._turn is not None and self._turn[2] != number and len(self._groups) > _MANY_GROUPS:
            self._player.envs.close(self._groups[self._turn[2]])
        self._groups.setdefault(number, group)
        self._turn = (label, policy, number, need)

    def require_same_policy(self, name: str, fingerprint: Any) -> None:
        """Refuse to play a policy that is another one here.

        Raises:
            RunConflict: A checkpoint or a module differs from what the evaluation has found.
        """
        assert self._turn is not None
        group = self._groups[self._turn[2]]
        here = plain(self._player.policies.fingerprint(name, group))
        if found := differences({"policy": fingerprint}, {"policy": here}):
            raise RunConflict(f"{name} is another policy on this node:\n  " + "\n  ".join(found))

    def go_on(self, keys: Sequence[EpisodeKey], *, more: bool) -> Report:
        """Play for a moment.

        Args:
            keys: Further episodes.
            more: Whether there are others besides: then it is said at once if a slot has none.
        """
        began = time.monotonic()
        self._schedule.add(keys)
        if self._playing is None and keys:
            self._playing = self._play(keys)
        results = []
        hungry = more and not self._schedule.waiting and not keys
        while self._playing is not None and not hungry:
            try:
                result = next(self._playing)
            except StopIteration:
                self._playing = None
                break
            if result is not None:
                results.append(result)
                hungry = more and not self._schedule.waiting
            if time.monotonic() - began > REPORT_S:
                break
        return self._report(results)

    def close(self) -> None:
        """Close all envs and remove what was recorded."""
        self._playing = None
        if self._own_player is not None:
            self._own_player.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _play(self, keys: Sequence[EpisodeKey]) -> Iterator[EpisodeResult | None]:
        assert self._turn is not None
        label, policy, number, need = self._turn
        turn = Turn(label, policy, self._groups[number], keys, need)
        return self._player.play(turn, self._schedule)

    def _report(self, results: Sequence[EpisodeResult]) -> Report:
        player = self._player
        files: dict[str, bytes] = {}
        if self._folder is not None:
            for result in results:
                for name in filter(None, (*result.videos, result.trajectory)):
                    files[name] = (self._folder / name).read_bytes()
                    (self._folder / name).unlink()
        wall, notes = dict(player.wall), list(player.notes)
        return Report(results, files, player.running, wall, notes, player.on_gpu)


def comparable(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """A protocol without what is sent to nodes: functions, known by sources that are not there."""
    tasks = {
        name: {key: value for key, value in about.items() if key != "env"}
        for name, about in protocol["tasks"].items()
    }
    return {**protocol, "tasks": tasks}


def stand_in(folder: str) -> None:
    """Look for files and modules where the driver does, if the folder exists here."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
