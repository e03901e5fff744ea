"""Evaluation: from a policy and tasks to results that survive anything.

An episode counts when its line is in the journal. Whatever ends the run, the same call goes on
with the episodes that are missing, and the results are those of an undisturbed run.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from polyarm import registry
from polyarm.contracts import EpisodeKey, EpisodeResult, Policy
from polyarm.errors import InvalidCall
from polyarm.policies.loading import load_policy
from polyarm.recording.encoder import require_video_extra
from polyarm.recording.filenames import episode_file, safe_name, stale_parts
from polyarm.recording.options import parse_record
from polyarm.recording.trajectory import save_trajectory
from polyarm.report.results import Results
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode
from polyarm.rollout.journal import Finished, Journal, storage_errors
from polyarm.rollout.options import EvalOptions, seconds
from polyarm.rollout.plan import Group, TaskLike, group_tasks, policy_fingerprint, protocol
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule
from polyarm.vector import host
from polyarm.vector.env import VectorEnv
from polyarm.vector.make import make_vec

log = logging.getLogger("polyarm")

PolicyLike = Policy | str | Callable[..., Any]

_NO_LIMIT = 1_000_000
_BLIND = ("random", "zero", "expert", "replay:")
"""Policies by name that never look at an observation."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an evaluation is.

    Attributes:
        finished: All that has been finished, by policy and episode.
        planned: Episodes in all.
        running: Episodes under way.
        seconds: Since the evaluation began.
        made: Episodes finished since then.
        last: The episode that was finished last, if one was.
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
    """

    def __init__(
        self,
        tasks: Sequence[TaskLike],
        options: EvalOptions,
        folder: Path | None = None,
        *,
        observed_slots: Sequence[int] | None = None,
    ) -> None:
        self._options = options
        self._folder = folder
        self._observed_slots = observed_slots
        if options.recorded != "none":
            parse_record(options.recorded)
            require_video_extra()
        self.groups = [_with_cameras(group, options) for group in group_tasks(tasks, options)]
        self.planned = [key for group in self.groups for key in group.keys(options)]
        self._envs: dict[int, VectorEnv] = {}
        self._policies: dict[str, Any] = {}
        self._loaded: dict[str, tuple[gymnasium.Space[Any], Policy]] = {}
        self._runner: Runner | None = None
        self._wall = dict.fromkeys(("total", "startup", "policy", "sim", "frames"), 0.0)
        self.finished: Finished = {}
        self.stopping = False
        self.notes: list[str] = []

    def stop(self) -> None:
        """Stop within a second or so; what has been finished stays finished."""
        self.stopping = True
        if self._runner is not None:
            self._runner.stopping = True

    def run(
        self,
        policies: Mapping[str, PolicyLike],
        show: Callable[[Progress], None] | None = None,
    ) -> Results:
        """Evaluate policies, by label, one after the other on the same envs.

        Args:
            policies: A single one may have the label "". On disk, what a label has finished is not
                run again; in memory, it is.
            show: Called after every episode, and now and then.
        """
        began = time.perf_counter()
        stop_after = seconds(self._options.stop_after)
        planned = len(policies) * len(self.planned)
        made = 0
        try:
            with self._journal(policies) as journal:
                for label, policy in policies.items():
                    for result in self._run_policy(label, policy):
                        if result is not None:
                            self._enter(journal, result)
                            made += 1
                        elif journal is not None:
                            journal.beat()
                        spent = time.perf_counter() - began
                        if show is not None:
                            running = self._runner.running if self._runner else 0
                            show(Progress(self.finished, planned, running, spent, made, result))
                        if stop_after is not None and spent > stop_after:
                            self.stop()
        except BaseException:
            self.close()
            raise
        finally:
            self._wall["total"] += time.perf_counter() - began
        return self.results(list(policies))

    def results(self, labels: Sequence[str]) -> Results:
        """What is known so far about these policies."""
        keys = [(label, key) for label in labels for key in self.planned]
        episodes = tuple(self.finished[key] for key in keys if key in self.finished)
        return Results(
            episodes=episodes,
            planned=len(keys),
            provenance=self._run_file()["protocol"],
            options=self._options.as_dict(),
            wall=dict(self._wall),
            notes=tuple(self.notes),
        )

    def close(self) -> None:
        """Close all envs."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One policy.

    def _run_policy(self, label: str, policy: PolicyLike) -> Iterator[EpisodeResult | None]:
        """Run what is missing; yields None now and then."""
        for place, group in enumerate(self.groups):
            missing = [key for key in group.keys(self._options) if self._is_missing(label, key)]
            if not missing or self._is_stopping():
                continue
            yield None
            env = self._env(place, group, policy, missing)
            acting = self._acting(policy, env.single_action_space)
            self._note_batching(acting)
            schedule = Schedule(missing, max_attempts=self._options.max_attempts)
            self._runner = Runner(env, acting, schedule, self._runner_options(label))
            if self._is_stopping():  # since before there was a runner
                self._runner.stopping = True
            for episode in self._runner.episodes():
                yield self._result(label, episode) if episode is not None else None
            self._account(self._runner)
            if self._is_stopping():
                self.close()  # its slots are in the middle of episodes

    def _account(self, runner: Runner) -> None:
        """Add to where the wall time went; waiting for envs is what these did meanwhile."""
        busy = sum(runner.worker_s.values()) or 1.0
        self._wall["policy"] += runner.policy_s
        for name in ("sim", "frames"):
            self._wall[name] += runner.waiting_s * runner.worker_s[name] / busy
        if runner.on_gpu:
            total = max(self._wall["total"], runner.policy_s + runner.waiting_s)
            self._wall["gpu_busy_share"] = min(1.0, self._wall["policy"] / total)

    def _is_stopping(self) -> bool:
        return self.stopping

    def _is_missing(self, label: str, key: EpisodeKey) -> bool:
        result = self.finished.get((label, key))
        return result is None or (result.outcome == "error" and self._options.retry_errors)

    def _result(self, label: str, episode: RunningEpisode) -> EpisodeResult:
        assert episode.result is not None
        result = replace(episode.result, policy=label)
        if self._options.save_trajectories and result.steps and self._folder is not None:
            below = Path("trajectories", safe_name(label) if label else "")
            name = below / episode_file(result.key, ".npz")
            with storage_errors(self._folder):
                save_trajectory(self._folder / name, episode.trajectory())
            result = replace(result, trajectory=str(name))
        return result

    def _enter(self, journal: Journal | None, result: EpisodeResult) -> None:
        if journal is not None:
            journal.append(result)
        self.finished[result.policy, result.key] = result

    def _runner_options(self, label: str) -> RunnerOptions:
        options = self._options
        keep = options.save_trajectories and self._folder is not None
        # Predictions overlap, and can be averaged, only if the policy is asked at every step.
        execute = 1 if options.execute is None and options.ensemble is not None else options.execute
        return RunnerOptions(
            episode=EpisodeOptions(execute, options.ensemble, keep),
            max_batch=options.max_batch,
            max_wait_s=options.max_wait_ms / 1000,
            policy_timeout_s=seconds(options.policy_timeout),
            observed=self._records(),
            label=label,
        )

    # Envs.

    def _env(
        self, place: int, group: Group, policy: PolicyLike, missing: Sequence[EpisodeKey]
    ) -> VectorEnv:
        if (env := self._envs.get(place)) is not None and not env.closed:
            return env
        began, options = time.perf_counter(), self._options
        wanted = options.num_envs or max(4, 2 * host.cores())
        needed = {key.name for key in missing}
        pairs = zip(group.tasks, group.specs, strict=True)
        env = make_vec(
            [task for task, spec in pairs if spec.name in needed],
            num_envs=min(wanted, len(missing)),
            num_workers=options.num_workers,
            cameras=group.specs[0].cameras,
            image_size=options.image_size,
            frames="last" if _looks(policy) else "none",
            autoreset="disabled",
            display=options.display,
            max_restarts=_NO_LIMIT,
            **self._observer(group),
            **options.suite_settings(),
        )
        self._envs[place] = env
        self._wall["startup"] += time.perf_counter() - began
        return env

    def _records(self) -> bool:
        return self._options.recorded != "none" and self._folder is not None

    def _observer(self, group: Group) -> dict[str, Any]:
        if not self._records():
            return {}
        options, spec = self._options, group.specs[0]
        description = registry.load(spec.suite).describe(spec)
        metadata = description.metadata if description is not None else {}
        return {
            "observed_slots": self._observed_slots,
            "observer": "polyarm.recording.video:video_recorder",
            "observer_options": {
                "folder": str((self._folder or Path()).absolute() / "videos"),
                "cameras": spec.cameras,
                "record": options.recorded,
                "fps": options.fps,
                "env_fps": float(metadata.get("render_fps", 0) or 0),
                "stride": options.video_stride,
                "realtime": options.realtime,
                "layout": options.video_layout,
            },
        }

    # The folder.

    @contextmanager
    def _journal(self, policies: Mapping[str, PolicyLike]) -> Iterator[Journal | None]:
        for label, policy in policies.items():
            self._policies[label] = self._fingerprint(policy)
        if self._folder is None:
            self.finished.clear()  # nothing but the journal says what is still true
            yield None
            return
        journal = Journal(self._folder, self._run_file(), fresh=self._options.fresh)
        try:
            for part in stale_parts(self._folder / "videos"):
                part.unlink(missing_ok=True)
            self.finished.update(journal.finished)
            yield journal
        finally:
            journal.close()

    def _run_file(self) -> dict[str, Any]:
        agreed = protocol(self.groups, self._options)
        agreed["policies"] = dict(self._policies)
        return {
            "protocol": agreed,
            "options": self._options.as_dict(),
            "planned": len(self.planned),
        }

    def _fingerprint(self, policy: PolicyLike) -> Any:
        """What tells a policy from others; checkpoints are told by their bytes, unloaded."""
        if isinstance(policy, str):
            if (file := checkpoint_file(policy)) is not None:
                return {"name": policy, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            spec = self.groups[0].specs[0]
            description = registry.load(spec.suite).describe(spec)
            if description is None:
                return {"name": policy}
            policy = self._acting(policy, description.action_space)
        return policy_fingerprint(policy)

    def _acting(self, policy: PolicyLike, space: gymnasium.Space[Any]) -> Policy:
        """The policy for an action space; one that has a name is loaded once, one at a time."""
        if not isinstance(policy, str):
            return as_policy(policy, space, self._options.chunk)
        if (known := self._loaded.get(policy)) is None or known[0] != space:
            self._loaded = {policy: (space, as_policy(policy, space, self._options.chunk))}
        return self._loaded[policy][1]

    def _note_batching(self, policy: Policy) -> None:
        if not getattr(policy, "row_independent", True):
            note = (
                "This policy's actions may depend on which episodes share its batch, so outcomes"
                " may change with num_envs and timing; batch_invariant=True removes that."
            )
            if note not in self.notes:
                self.notes.append(note)


_KEPT: dict[tuple[tuple[TaskLike, ...], EvalOptions], Evaluator] = {}
"""Envs kept alive for the next call of `evaluate`; one set at a time."""


def evaluate(
    policy: PolicyLike,
    tasks: TaskLike | Sequence[TaskLike],
    *,
    episodes: int = 10,
    num_envs: int | None = None,
    out: str | Path | None = None,
    keep_envs: bool = False,
    **options: Any,
) -> Results:
    """Evaluate a policy.

    In a training loop, ``keep_envs=True`` leaves the envs running for the next call with the same
    arguments; an `Evaluator` does the same with results on disk, one label per checkpoint.

    Args:
        policy: A `Policy`, a function of a `Batch`, or a name as on the command line.
        tasks: Tasks or sets of tasks (``"metaworld/mt10"``), callables that build envs, or a list.
        episodes: Episodes per task.
        num_envs: Envs that run at once; by default two per core.
        out: Folder for journal, results, report and videos; None keeps results in memory. The same
            call again goes on where an interrupted one was.
        keep_envs: Whether envs stay alive for the next call; only without ``out``.
        **options: Further fields of `EvalOptions`.

    Returns:
        All results, with intervals; ``results.success_rate`` is the headline.

    Raises:
        PolicyError: The policy raised, hung or returned what no env can use.
        RunConflict: The folder holds another run.
    """
    listed = [tasks] if isinstance(tasks, str) or callable(tasks) else list(tasks)
    given = EvalOptions(episodes=episodes, num_envs=num_envs, **options)
    folder = None if out is None else Path(out)
    if keep_envs and folder is not None:
        raise InvalidCall("keep_envs=True keeps results in memory; use an Evaluator with out")
    evaluator = _KEPT.pop((tuple(listed), given), None) or Evaluator(listed, given, folder)
    close_kept_envs()
    try:
        results = evaluator.run({"": policy})
        if keep_envs:
            _KEPT[tuple(listed), given] = evaluator
    finally:
        if not keep_envs:
            evaluator.close()
    if folder is not None:
        from polyarm.report.html import write_report

        with storage_errors(folder):
            results.write(folder)
            write_report(results, folder)
    return results


def close_kept_envs() -> None:
    """Close envs that `evaluate` has kept alive."""
    while _KEPT:
        _KEPT.popitem()[1].close()


def as_policy(policy: PolicyLike, space: gymnasium.Space[Any], chunk: int) -> Policy:
    """A policy from an object, a function or a name."""
    if isinstance(policy, str):
        return load_policy(policy, space, chunk=chunk)
    if hasattr(policy, "act"):
        return policy  # type: ignore[return-value]
    if callable(policy):
        from polyarm.policies.basic import FunctionPolicy

        return FunctionPolicy(policy)
    raise InvalidCall(f"a policy has a method act(batch), or is a function; found {policy!r}")


def checkpoint_file(name: str) -> Path | None:
    """The file in a policy's name, if there is one."""
    path = Path(name.rpartition("@")[2])
    return path if ("@" in name or name.endswith(".pt")) and path.is_file() else None


def _looks(policy: PolicyLike) -> bool:
    """Whether a policy may look at frames."""
    if isinstance(policy, str):
        return not policy.startswith(_BLIND)
    return bool(getattr(policy, "needs_frames", True))


def _with_cameras(group: Group, options: EvalOptions) -> Group:
    """The group with a camera to record, if none was asked for."""
    if options.recorded == "none" or options.cameras:
        return group
    suite = registry.load(group.specs[0].suite)
    cameras: tuple[str, ...] = getattr(suite, "default_cameras", ())
    if not cameras:
        raise InvalidCall(
            f"recording needs a camera: name one of {group.specs[0].suite}'s with cameras"
        )
    return replace(group, specs=tuple(replace(spec, cameras=cameras) for spec in group.specs))
