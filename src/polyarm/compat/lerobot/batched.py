"""All tasks of an evaluation in one batched run: frames only where the policy decides.

Which envs play beside an episode changes nothing in it, so neither does the number of tasks that
run at once.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from polyarm.compat.lerobot.metrics import Metrics
from polyarm.compat.lerobot.plans import RENDER_FPS, EnvPlan
from polyarm.compat.lerobot.seeds import Episodes, episode_indices
from polyarm.compat.lerobot.vector import LeRobotVectorEnv
from polyarm.contracts import STREAM, EpisodeKey
from polyarm.errors import WorkerError
from polyarm.policies.lerobot import LeRobotPolicy
from polyarm.policies.lerobot_observations import LIBERO_CAMERAS
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode
from polyarm.rollout.filming import Film, plan_film
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule
from polyarm.vector.make import make_vec

_log = logging.getLogger(__name__)

_NO_LIMIT = 1_000_000
"""Restarts are limited per episode, by the runner."""

Played = dict[EpisodeKey, RunningEpisode]
Scores = dict[tuple[str, int], Metrics]
"""By group and task id."""


@dataclass(frozen=True)
class Job:
    """One task of an evaluation.

    Attributes:
        group: The group that it belongs to.
        task_id: Its place there.
        env: Its vector env; ours is only asked what it would play.
    """

    group: str
    task_id: int
    env: Any

    @property
    def plan(self) -> EnvPlan:
        """What our vector env would play."""
        plan: EnvPlan = self.env.plan
        return plan


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated, with LeRobot's words.

    Attributes:
        policy: A ``PreTrainedPolicy``.
        processors: LeRobot's four, by its names.
        n_episodes: Per task.
        start_seed: Of each task's first episode.
        max_parallel_tasks: How many tasks' envs may run at once.
        max_episodes_rendered: Episodes of each task that are filmed.
        videos_dir: Where videos go.
    """

    policy: Any
    processors: dict[str, Any]
    n_episodes: int
    start_seed: int | None = None
    max_parallel_tasks: int = 1
    max_episodes_rendered: int = 0
    videos_dir: Path | None = None

    def episodes(self, suite: str) -> Episodes:
        """The episodes of a suite's tasks."""
        count, first = self.n_episodes, self.start_seed
        seeds = None if first is None else range(first, first + count)
        return episode_indices(suite, 0, count, seeds)


def play_batched(jobs: Sequence[Job], evaluation: Evaluation) -> Scores:
    """Play all episodes of all jobs.

    Raises:
        PolicyError: The policy cannot be asked about episodes one by one.
        WorkerError: A simulator failed again and again, so an episode has no outcome.
    """
    batches: dict[Any, list[Job]] = {}
    for job in jobs:
        job.env.close()  # if it was open: what is played here has envs of its own
        batches.setdefault(_shared(job.plan), []).append(job)
    scores: Scores = {}
    for batch in batches.values():
        with _filming(batch, evaluation) as film:
            played = _play(batch, evaluation, film)
            for job in batch:
                scores[job.group, job.task_id] = _metrics(job, evaluation, played, film)
    return scores


def batched_policy(plan: EnvPlan, evaluation: Evaluation) -> LeRobotPolicy:
    """The policy as our runner asks it, with observations under the config's names.

    Raises:
        PolicyError: It cannot be asked about episodes one by one.
    """
    inner = evaluation.processors["env_preprocessor"]

    def named(observed: dict[str, Any]) -> Any:
        return inner(_renamed(observed, plan))

    return LeRobotPolicy(evaluation.policy, **{**evaluation.processors, "env_preprocessor": named})


def _shared(plan: EnvPlan) -> Any:
    """What tasks must have in common to share a batch."""
    alone = plan.task if plan.suite == "callable" else None
    settings = (plan.cameras, plan.options)
    return (
        plan.suite, alone, plan.obs_type, plan.image_size,
        *(tuple(each.items()) for each in settings),
    )  # fmt: skip


def _keys(job: Job, evaluation: Evaluation) -> list[EpisodeKey]:
    spec = job.plan.spec
    indices = evaluation.episodes(job.plan.suite).indices
    return [EpisodeKey(spec.suite, spec.task, index) for index in indices]


def _play(batch: Sequence[Job], evaluation: Evaluation, film: Film | None) -> Played:
    plan = batch[0].plan
    acting = batched_policy(plan, evaluation)
    # A task may be named in two groups; it is played once.
    keys = list(dict.fromkeys(chain.from_iterable(_keys(job, evaluation) for job in batch)))
    num_envs = max(job.env.num_envs for job in batch) * max(1, evaluation.max_parallel_tasks)
    num_envs = min(num_envs, len(keys))
    tasks = dict.fromkeys(job.plan.task for job in batch)
    options = {**plan.options, **evaluation.episodes(plan.suite).options}
    played: Played = {}
    with make_vec(
        list(tasks)[:num_envs],
        num_envs=num_envs,
        cameras=plan.frames or (film.cameras if film else ()),
        image_size=plan.image_size,
        frames="last" if plan.frames and acting.needs_frames else "none",
        autoreset="disabled",
        max_restarts=_NO_LIMIT,
        **(film.make_arguments() if film else {}),
        **options,
    ) as env:
        how = RunnerOptions(EpisodeOptions(acting.execute), observed=film is not None)
        runner = Runner(env, acting, Schedule(keys), how)
        for episode in runner.episodes():
            if episode is not None:
                played[episode.key] = episode
    for task in sorted(runner.silent):
        _log.warning("%s does not say whether an episode succeeded: all count as failures", task)
    _refuse_errors(played)
    return played


def _refuse_errors(played: Played) -> None:
    results = [episode.result for episode in played.values() if episode.result is not None]
    errors = [result for result in results if result.outcome == "error"]
    if errors:
        first = errors[0]
        raise WorkerError(
            f"{len(errors)} of {len(played)} episodes have no outcome, because their simulator "
            f"failed {first.attempts} times; the first is {first.key}: "
            f"{first.error.get('message', '')}"
        )


@contextmanager
def _filming(batch: Sequence[Job], evaluation: Evaluation) -> Iterator[Film | None]:
    """What is filmed, into a folder that goes away when the videos have been copied."""
    plan, count = batch[0].plan, evaluation.max_episodes_rendered
    if not count or evaluation.videos_dir is None:
        yield None
        return
    evaluation.videos_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".filming-", dir=evaluation.videos_dir) as folder:
        yield plan_film(
            [job.plan.spec for job in batch],
            tuple(plan.cameras.values())[:1],
            Path(folder),
            None,
            record=f"first:{count}",
            fps=RENDER_FPS,
            caption=False,
            start=evaluation.episodes(plan.suite).indices[0] % STREAM,
        )


def _metrics(job: Job, evaluation: Evaluation, played: Played, film: Film | None) -> Metrics:
    episodes = [played[key] for key in _keys(job, evaluation)]
    results = [episode.result for episode in episodes if episode.result is not None]
    videos = []
    for number, result in enumerate(results[: evaluation.max_episodes_rendered]):
        if film is None or evaluation.videos_dir is None:
            break
        folder = evaluation.videos_dir / f"{job.group}_{job.task_id}"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"eval_episode_{number}.mp4"
        shutil.copyfile(film.folder / result.videos[0], file)
        videos.append(str(file))
    return {
        "sum_rewards": [result.total_reward for result in results],
        "max_rewards": [episode.max_reward for episode in episodes],
        "successes": [result.outcome == "success" for result in results],
        "video_paths": videos,
    }


def _renamed(observed: dict[str, Any], plan: EnvPlan) -> dict[str, Any]:
    """Observations by the names, and without the parts, that the config chose."""
    names = {}
    if plan.suite == "libero":
        names = {LIBERO_CAMERAS.get(camera, camera): name for name, camera in plan.cameras.items()}
    images = {
        f"observation.images.{old}": f"observation.images.{new}" for old, new in names.items()
    }
    renamed = {images.get(key, key): value for key, value in observed.items()}
    if plan.obs_type == "pixels":
        for key in ("observation.state", "observation.robot_state"):
            renamed.pop(key, None)
    return renamed


def is_ours(env: Any) -> bool:
    """Whether a vector env is one of ours."""
    return isinstance(env, LeRobotVectorEnv)
