"""The player: policies act in envs, episode after episode; what happens to the results is not its.

An evaluation has one in its own process; a cluster has one on every node.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult, Policy
from polyarm.errors import StoppedEarly
from polyarm.rollout.acting import Policies, PolicyLike, known_space, own_execute
from polyarm.rollout.dataset import DatasetExport
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode
from polyarm.rollout.live_envs import LiveEnvs, Need
from polyarm.rollout.options import EvalOptions, seconds
from polyarm.rollout.plan import Group, protocol
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule
from polyarm.vector.env import VectorEnv

TIMES = ("startup", "policy", "sim", "frames")
_OF_A_CLUSTER = "polyarm.distributed.ray.player:RayPlayer"
"""Loaded by its name: what runs on many machines is built upon this, not the other way round."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to be played at a time: episodes of tasks that share a vector env, by one policy.

    Attributes:
        label: What the policy is called among those of the evaluation.
        policy: What acts.
        group: The tasks.
        missing: The episodes that have not been played, by anybody.
        need: What all policies of this run need of the env.
    """

    label: str
    policy: PolicyLike
    group: Group
    missing: Sequence[EpisodeKey]
    need: Need


class Player:
    """Plays turns; its envs stay alive between them.

    Args:
        options: Of the evaluation.
        folder: Where videos and trajectories go, if there are any.
        observed_slots: Slots that are recorded; None for all.
        dataset: What is saved of all episodes, if it is.

    Attributes:
        policies: Those that act.
        envs: Those they act in.
        wall: Seconds spent so far, by what they were spent on; `TIMES` are its keys.
        on_gpu: Whether a policy said that it runs on a GPU.
        notes: What readers of the results should know.
    """

    def __init__(
        self,
        options: EvalOptions,
        folder: Path | None = None,
        observed_slots: Sequence[int] | None = None,
        dataset: DatasetExport | None = None,
    ) -> None:
        self._options = options
        self._folder = folder
        self._dataset = dataset
        self._runner: Runner | None = None
        self._stopping = False
        self.policies = Policies(options.chunk)
        self.envs = LiveEnvs(options, folder, observed_slots, dataset)
        self.wall = dict.fromkeys(TIMES, 0.0)
        self.on_gpu = False
        self.notes: list[str] = []

    @property
    def running(self) -> int:
        """Episodes under way."""
        return self._runner.running if self._runner else 0

    @property
    def stopping(self) -> bool:
        """Whether to end the current turn: when the policy has answered, or the envs are built."""
        return self._stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self._stopping = stopping
        if self._runner is not None:
            self._runner.stopping = stopping
        if stopping:
            self.policies.stop_loading()

    def protocol(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Everything that shapes the episodes of these tasks, where they are played."""
        return protocol(groups, self._options)

    def _equip(self, turn: Turn) -> tuple[VectorEnv, Policy]:
        """Envs and policy of a turn; the policy first, if it can be had, as it may be refused."""
        space = known_space(turn.group)
        acting = None if space is None else self.policies.suited(turn.policy, space, turn.group)
        began = time.perf_counter()
        env = self.envs.get(turn.group, turn.need, turn.missing)
        self.wall["startup"] += time.perf_counter() - began
        return env, acting or self.policies.suited(turn.policy, env.single_action_space, turn.group)

    def play(self, turn: Turn, schedule: Schedule | None = None) -> Iterator[EpisodeResult | None]:
        """Play a turn; yields None now and then.

        Args:
            turn: What to play.
            schedule: What to play of it here, if it is not all.
        """
        try:
            env, acting = self._equip(turn)
        except StoppedEarly:  # what other policies have done is written down all the same
            self.close()
            return
        if schedule is None:
            schedule = Schedule(turn.missing, max_attempts=self._options.max_attempts)
        options = self._runner_options(turn.label, acting)
        self._runner = runner = Runner(env, acting, schedule, options)
        runner.stopping = self._stopping
        for episode in runner.episodes():
            yield self._result(turn.label, episode) if episode is not None else None
        self._account(runner)
        self._note(acting, runner)
        if runner.stopping:
            self.close()  # its slots are in the middle of episodes

    def add_notes(self, notes: Iterable[str]) -> None:
        """Note what has not been noted yet."""
        self.notes += [note for note in notes if note not in self.notes]

    def forget(self) -> None:
        """Start counting seconds, and taking notes, anew."""
        self.wall = dict.fromkeys(TIMES, 0.0)
        self.notes.clear()

    def close(self) -> None:
        """Close all envs, and the connections of policies that run elsewhere."""
        self.policies.unload()
        self.envs.close()

    def _result(self, label: str, episode: RunningEpisode) -> EpisodeResult:
        assert episode.result is not None
        result = replace(episode.result, policy=label)
        if self._options.save_trajectories and result.steps and self._folder is not None:
            result = replace(result, trajectory=episode.save_trajectory(self._folder, label))
        if self._dataset is not None and result.outcome != "error":
            self._dataset.stage(label, episode)
        return result

    def _runner_options(self, label: str, policy: Policy) -> RunnerOptions:
        options, execute = self._options, self._options.execute
        if execute is None:
            # Predictions overlap, and can be averaged, only if the policy is asked at every step.
            execute = 1 if options.ensemble is not None else own_execute(policy)
        return RunnerOptions(
            episode=EpisodeOptions(
                execute,
                options.ensemble,
                keep=options.save_trajectories,
                keep_actions=self._dataset is not None,
            ),
            max_batch=options.max_batch,
            max_wait_s=options.max_wait_ms / 1000,
            policy_timeout_s=seconds(options.policy_timeout),
            observed=self.envs.records,
            label=label,
        )

    def _account(self, runner: Runner) -> None:
        """Add to where the wall time went; waiting for envs is what these did meanwhile."""
        busy = sum(runner.worker_s.values()) or 1.0
        self.on_gpu |= runner.on_gpu
        self.wall["policy"] += runner.policy_s
        for name in ("sim", "frames"):
            self.wall[name] += runner.waiting_s * runner.worker_s[name] / busy

    def _note(self, policy: Policy, runner: Runner) -> None:
        notes = [
            f"{task} does not say whether an episode succeeded (info['is_success']), so all its"
            f" episodes count as failures; look at their returns instead."
            for task in sorted(runner.silent)
        ]
        if not getattr(policy, "row_independent", False):
            notes.append(
                "This policy does not promise that a row's actions are independent of the rest of"
                " its batch, so outcomes may change with num_envs and timing (row_independent;"
                " TorchPolicy's batch_invariant=True, or max_batch=1)."
            )
        notes += self._without_effect(runner.predicted)
        self.add_notes(notes)

    def _without_effect(self, predicted: int) -> list[str]:
        """What to say of options that a policy with so many actions per decision cannot follow."""
        asked, ensemble = self._options.execute, self._options.ensemble
        notes = []
        if asked is not None and 0 < predicted < asked:
            notes.append(
                f"execute={asked} was asked for, but the policy predicts no more actions than"
                f" {predicted} at a time: so many were executed."
            )
        if ensemble is not None and 0 < predicted <= (asked or 1):
            notes.append(
                f"Temporal ensembling (ensemble={ensemble:g}) averaged nothing: what the policy"
                f" predicts at a time ({predicted}) is all executed, so no predictions overlap."
            )
        return notes


def make_player(
    options: EvalOptions,
    folder: Path | None,
    observed_slots: Sequence[int] | None,
    dataset: DatasetExport | None,
) -> Player:
    """The player that the options ask for: of this process, or of a cluster."""
    kind: type[Player] = Player
    if options.ray is not None:
        module, _, name = _OF_A_CLUSTER.partition(":")
        kind = getattr(importlib.import_module(module), name)
    return kind(options, folder, observed_slots, dataset)
