"""`eval_policy_all`: LeRobot's function of that name, over our batched runner."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyarm.compat.lerobot.batched import (
    Evaluation,
    Job,
    Scores,
    batched_policy,
    is_ours,
    play_batched,
)
from polyarm.compat.lerobot.metrics import summarise
from polyarm.compat.lerobot.threads import play_in_threads
from polyarm.errors import InvalidCall, MissingExtra, PolicyError

_log = logging.getLogger(__name__)


def eval_policy_all(  # noqa: PLR0913  LeRobot's signature
    envs: Mapping[str, Mapping[int, Any]],
    policy: Any,
    env_preprocessor: Any,
    env_postprocessor: Any,
    preprocessor: Any,
    postprocessor: Any,
    n_episodes: int,
    *,
    max_episodes_rendered: int = 0,
    videos_dir: Path | None = None,
    return_episode_data: bool = False,
    start_seed: int | None = None,
    max_parallel_tasks: int = 1,
    recording_dir: Path | None = None,
    env_features: Mapping[str, Any] | None = None,
    recording_repo_id: str | None = None,
    recording_private: bool = False,
) -> dict[str, Any]:
    """Evaluate a policy on all tasks; every episode is the same at any ``max_parallel_tasks``.

    Our envs of all tasks are played in one batched run. Other vector envs are driven by LeRobot's
    own loop, each thread with a copy of the policy; so are ours for what needs every frame (a
    recording, an env that films itself) and policies that can only be asked step by step.

    Args:
        envs: ``{group: {task_id: VectorEnv}}``, as from `make_env`.
        policy: A ``PreTrainedPolicy``, or one with PEFT adapters.
        env_preprocessor: LeRobot's pipeline for the env's observations.
        env_postprocessor: The same for actions.
        preprocessor: LeRobot's pipeline before the policy.
        postprocessor: The same behind it.
        n_episodes: Per task.
        max_episodes_rendered: How many of them are filmed.
        videos_dir: Gets ``<group>_<task_id>/eval_episode_<n>.mp4``.
        return_episode_data: Without effect, as in LeRobot, whose result does not hold it either.
        start_seed: Of each task's first episode; the others count up from it.
        max_parallel_tasks: How many tasks' envs may run at once: so many times ``n_envs``.
        recording_dir: Newer versions of LeRobot write datasets there.
        env_features: The same.
        recording_repo_id: The same.
        recording_private: The same.

    Returns:
        ``per_task``, ``per_group`` and ``overall``, with the installed LeRobot's keys.

    Raises:
        InvalidCall: No policy of LeRobot's, fewer episodes than envs, videos without a folder, or
            a recording that the installed version of LeRobot cannot make.
        WorkerError: A simulator failed again and again; no score leaves out an episode.
        MissingExtra: LeRobot is not installed.
    """
    began = time.time()
    names = _metric_names()
    jobs = [Job(group, place, env) for group, tasks in envs.items() for place, env in tasks.items()]
    processors = {
        "env_preprocessor": env_preprocessor,
        "env_postprocessor": env_postprocessor,
        "preprocessor": preprocessor,
        "postprocessor": postprocessor,
    }
    evaluation = Evaluation(
        policy,
        processors,
        n_episodes,
        start_seed,
        max_parallel_tasks,
        max_episodes_rendered,
        None if videos_dir is None else Path(videos_dir),
    )
    recording = {
        "recording_dir": recording_dir,
        "env_features": env_features,
        "recording_repo_id": recording_repo_id,
        "recording_private": recording_private or None,
    }
    recording = {name: value for name, value in recording.items() if value is not None}
    _check(jobs, evaluation)
    was_training = policy.training
    policy.eval()
    try:
        scores = _play(jobs, evaluation, recording)
    finally:
        policy.train(was_training)
    tasks = [
        (group, place, {name: scores[group, place].get(name, []) for name in names})
        for group, members in envs.items()
        for place in members
    ]
    return summarise(tasks, names, time.time() - began)


def _play(jobs: list[Job], evaluation: Evaluation, recording: dict[str, Any]) -> Scores:
    ours = [job for job in jobs if is_ours(job.env) and not recording]
    if evaluation.max_episodes_rendered:
        # An env without cameras can only be filmed by its own render().
        ours = [job for job in ours if job.plan.suite != "callable"]
    if ours and (reason := _refusal(ours[0], evaluation)):
        _log.warning("LeRobot's own loop evaluates this policy, step by step: %s", reason)
        ours = []
    others = [job for job in jobs if job not in ours]
    scores = play_batched(ours, evaluation)
    return scores | play_in_threads(others, evaluation, recording) if others else scores


def _refusal(job: Job, evaluation: Evaluation) -> str:
    """Why our runner cannot ask the policy, or ""; LeRobot's loop plays the same episodes."""
    try:
        batched_policy(job.plan, evaluation)
    except PolicyError as error:
        return str(error)
    return ""


def _check(jobs: list[Job], evaluation: Evaluation) -> None:
    if not hasattr(evaluation.policy, "select_action"):
        kind = type(evaluation.policy).__name__
        raise InvalidCall(f"the policy must be a PreTrainedPolicy of LeRobot's, found {kind}")
    if evaluation.n_episodes < 1:
        raise InvalidCall(f"n_episodes must be at least 1, found {evaluation.n_episodes}")
    if evaluation.max_episodes_rendered > 0 and evaluation.videos_dir is None:
        raise InvalidCall("max_episodes_rendered needs videos_dir")
    for job in jobs:
        if job.env.num_envs > evaluation.n_episodes:
            raise InvalidCall(
                f"{job.env.num_envs} envs of {job.group} {job.task_id} for "
                f"{evaluation.n_episodes} episodes: the rest would play for nothing. Make at most "
                "as many envs as there are episodes (eval.batch_size <= eval.n_episodes)"
            )


def _metric_names() -> tuple[str, ...]:
    """What the installed version of LeRobot says about a task."""
    try:
        from lerobot.scripts.lerobot_eval import ACC_KEYS
    except ImportError as error:
        raise MissingExtra(
            f"LeRobot cannot be imported ({error}): pip install 'polyarm[lerobot]'"
        ) from error
    return tuple(ACC_KEYS)
