"""The evaluator: plays what is missing, puts it into the journal, and sums it up.

An episode counts when its line is in the journal. Whatever ends a run, the same call goes on with
the episodes that are missing, and the results are those of an undisturbed run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult, Policy
from polyarm.errors import InvalidCall
from polyarm.recording.filenames import stale_parts
from polyarm.report.encoding import plain
from polyarm.report.html import require_report_extra
from polyarm.report.results import Results
from polyarm.rollout.acting import Policies, PolicyLike, known_space, own_execute
from polyarm.rollout.dataset import DatasetExport
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode
from polyarm.rollout.journal import KEPT_EPISODES, Finished, Journal
from polyarm.rollout.live_envs import LiveEnvs, Need
from polyarm.rollout.options import EvalOptions, seconds
from polyarm.rollout.plan import Group, condensed, group_tasks, planned_ranges, protocol
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule
from polyarm.rollout.suite_settings import refuse_own_options
from polyarm.vector.make import TaskLike

_MANY_GROUPS = 4
"""More groups of tasks than this are not all kept alive."""
_TIMES = ("total", "startup", "policy", "sim", "frames")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an evaluation is.

    Attributes:
        finished: What has been finished of what is planned, by policy and episode.
        planned: Episodes in all.
        running: Episodes under way.
        seconds: Since the evaluation began.
        made: Episodes finished since then.
        last: The episode that was finished last, if one was just now.
    """

    finished: Finished
    planned: int
    running: int
    seconds: float
    made: int
    last: EpisodeResult | None = None


class Evaluator:
    """Envs that stay alive between evaluations; use it as a context manager.

    Args:
        tasks: What to evaluate on.
        options: How; its ``policy`` and ``task`` are not looked at.
        folder: Where results go, or None to keep them in memory only.
        observed_slots: Slots that are recorded; None for all.

    Attributes:
        groups: The tasks, by what shares a vector env.
        planned: The episodes of each policy.
        finished: What has been finished, by policy and episode.
        notes: What readers of the results should know.
    """

    def __init__(
        self,
        tasks: Sequence[TaskLike],
        options: EvalOptions,
        folder: Path | None = None,
        *,
        observed_slots: Sequence[int] | None = None,
    ) -> None:
        if folder is not None:
            require_report_extra()
        elif options.recorded != "none" or options.save_trajectories or options.save_dataset:
            raise InvalidCall("videos, trajectories and datasets need a folder: give out")
        if options.save_dataset and observed_slots is not None:
            raise InvalidCall("a dataset needs all slots: leave observed_slots out")
        refuse_own_options(options.suite_settings())
        self._options = options
        self._folder = folder
        self.groups = group_tasks(tasks, options)
        self._dataset: DatasetExport | None = None
        if folder is not None and options.save_dataset is not None:
            self._dataset = DatasetExport(options, folder, self.groups)
        self._envs = LiveEnvs(options, folder, observed_slots, self._dataset)
        for group in self.groups:
            self._envs.check_recording(group)
        self._protocol = protocol(self.groups, options)
        self.planned = [key for group in self.groups for key in group.keys(options)]
        self._policies: dict[str, Any] = {}
        self._acting = Policies(options.chunk)
        self._runner: Runner | None = None
        self._wall = dict.fromkeys(_TIMES, 0.0)
        self._on_gpu = False
        self._opened = False
        self._stopping = False
        self.finished: Finished = {}
        self.notes: list[str] = []

    def stop(self) -> None:
        """End the current run: when the policy has answered, or the envs are built."""
        self._stopping = True
        if self._runner is not None:
            self._runner.stopping = True

    def run(
        self,
        policies: Mapping[str, PolicyLike],
        show: Callable[[Progress], None] | None = None,
    ) -> Results:
        """Evaluate policies, by label, one after the other on the same envs.

        Args:
            policies: A single one may have the label "". With a folder, what a label has finished
                is not run again; without, every call starts anew.
            show: Called after every episode, and now and then.
        """
        began = time.perf_counter()
        stop_after = seconds(self._options.stop_after)
        self._acting.unload()  # a checkpoint may have changed since
        planned = {(label, key) for label in policies for key in self.planned}
        made = 0
        try:
            with self._journal(policies) as journal:
                known = {key: self.finished[key] for key in planned if key in self.finished}
                for result in self._play(policies):
                    if result is not None:
                        self._enter(journal, result)
                        known[result.policy, result.key] = result
                        made += 1
                    elif journal is not None:
                        journal.beat()
                    spent = time.perf_counter() - began
                    if show is not None:
                        running = self._runner.running if self._runner else 0
                        show(Progress(known, len(planned), running, spent, made, result))
                    if stop_after is not None and spent > stop_after:
                        self.stop()
                if self._dataset is not None and journal is not None:
                    self._dataset.write(self.finished, self.planned, journal.beat)
        except BaseException:
            self.close()
            raise
        finally:
            self._wall["total"] += time.perf_counter() - began
            self._stopping = False
        return self.results(list(policies))

    def results(self, labels: Sequence[str]) -> Results:
        """What is known so far about these policies."""
        keys = [(label, key) for label in labels for key in self.planned]
        wall = dict(self._wall)
        if self._on_gpu and wall["total"]:
            wall["gpu_busy_share"] = min(1.0, wall["policy"] / wall["total"])
        return Results(
            episodes=tuple(self.finished[key] for key in keys if key in self.finished),
            planned=len(keys),
            provenance=condensed(self._run_file()["protocol"]),
            options=self._options.as_dict(),
            wall=wall,
            notes=tuple(self.notes),
        )

    def close(self) -> None:
        """Close all envs, and the connections of policies that run elsewhere."""
        self._acting.unload()
        self._envs.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Playing.

    def _play(self, policies: Mapping[str, PolicyLike]) -> Iterator[EpisodeResult | None]:
        """Play what is missing, policy after policy; yields None now and then."""
        needs = {group: self._need(group, policies) for group in self.groups}
        for label, policy in policies.items():
            for group in self.groups:
                missing = self._missing(label, group)
                if missing and not self._stopping:
                    yield None
                    yield from self._play_group(label, policy, group, missing, needs[group])

    def _play_group(
        self,
        label: str,
        policy: PolicyLike,
        group: Group,
        missing: Sequence[EpisodeKey],
        need: Need,
    ) -> Iterator[EpisodeResult | None]:
        space = known_space(group)
        acting = None if space is None else self._acting.suited(policy, space, group)
        began = time.perf_counter()
        env = self._envs.get(group, need, missing)
        self._wall["startup"] += time.perf_counter() - began
        acting = acting or self._acting.suited(policy, env.single_action_space, group)
        schedule = Schedule(missing, max_attempts=self._options.max_attempts)
        self._runner = runner = Runner(env, acting, schedule, self._runner_options(label, acting))
        runner.stopping = self._stopping
        for episode in runner.episodes():
            yield self._result(label, episode) if episode is not None else None
        self._account(runner)
        self._note(acting, runner)
        if runner.stopping:
            self.close()  # its slots are in the middle of episodes
        elif len(self.groups) > _MANY_GROUPS:
            self._envs.close(group)

    def _need(self, group: Group, policies: Mapping[str, PolicyLike]) -> Need:
        missing = max(len(self._missing(label, group)) for label in policies)
        looks = bool(self._options.cameras) and any(
            self._acting.looks(policy, self.groups[0]) for policy in policies.values()
        )
        return Need(looks, missing)

    def _missing(self, label: str, group: Group) -> list[EpisodeKey]:
        retried = ("error",) if self._options.retry_errors else ()
        missing = []
        for key in group.keys(self._options):
            result = self.finished.get((label, key))
            if result is None or result.outcome in retried:
                missing.append(key)
        return missing

    def _result(self, label: str, episode: RunningEpisode) -> EpisodeResult:
        assert episode.result is not None
        result = replace(episode.result, policy=label)
        if self._options.save_trajectories and result.steps and self._folder is not None:
            result = replace(result, trajectory=episode.save_trajectory(self._folder, label))
        if self._dataset is not None and result.outcome != "error":
            self._dataset.stage(label, episode)
        return result

    def _enter(self, journal: Journal | None, result: EpisodeResult) -> None:
        if journal is not None:
            journal.append(result)
        self.finished[result.policy, result.key] = result

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
            observed=self._envs.records,
            label=label,
        )

    def _account(self, runner: Runner) -> None:
        """Add to where the wall time went; waiting for envs is what these did meanwhile."""
        busy = sum(runner.worker_s.values()) or 1.0
        self._on_gpu |= runner.on_gpu
        self._wall["policy"] += runner.policy_s
        for name in ("sim", "frames"):
            self._wall[name] += runner.waiting_s * runner.worker_s[name] / busy

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
        self.notes += [note for note in notes if note not in self.notes]

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

    # The folder.

    @contextmanager
    def _journal(self, policies: Mapping[str, PolicyLike]) -> Iterator[Journal | None]:
        for label, policy in policies.items():
            self._policies[label] = plain(self._acting.fingerprint(policy, self.groups[0]))
        if self._folder is None:
            self.finished.clear()  # nothing but a journal says what is still true
            self._wall = dict.fromkeys(_TIMES, 0.0)
            self.notes.clear()
            yield None
            return
        fresh = self._options.fresh and not self._opened
        journal = Journal(self._folder, self._run_file(), fresh=fresh)
        try:
            for name in KEPT_EPISODES:
                for part in stale_parts(self._folder / name):
                    part.unlink(missing_ok=True)
            self.finished = dict(journal.finished)
            if self._dataset is not None:
                self._dataset.begin(self.finished, self.planned)
            if not self._opened:
                self._go_on_from(self._folder)
            self._opened = True
            yield journal
        finally:
            journal.close()

    def _go_on_from(self, folder: Path) -> None:
        """Add to what earlier runs of this folder took and noted."""
        if (folder / "results.json").exists():
            before = Results.read(folder)
            for name in _TIMES:
                self._wall[name] += before.wall.get(name, 0.0)
            self.notes += [note for note in before.notes if note not in self.notes]

    def _run_file(self) -> dict[str, Any]:
        return {
            "protocol": {**self._protocol, "policies": dict(self._policies)},
            "options": self._options.as_dict(),
            "planned": planned_ranges(self.groups, self._options),
        }
