"""Vector envs that LeRobot's own loop drives: several at once, each with a policy of its own.

LeRobot's threads share one policy object, whose queue of actions then serves several envs at once
and turns good scores into zeros; here each thread has a copy that shares nothing but the weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from polyarm.compat.copies import policy_copies
from polyarm.compat.lerobot.batched import Evaluation, Job, Scores, is_ours
from polyarm.compat.lerobot.metrics import Metrics
from polyarm.errors import InvalidCall


def play_in_threads(
    jobs: Sequence[Job], evaluation: Evaluation, recording: dict[str, Any]
) -> Scores:
    """Play jobs with LeRobot's ``run_one``.

    Args:
        jobs: The tasks.
        evaluation: What is evaluated.
        recording: Arguments that newer versions of LeRobot know, where they are given.

    Raises:
        InvalidCall: The installed version does not know such an argument.
    """
    from lerobot.scripts.lerobot_eval import run_one

    if foreign := recording.keys() - inspect.signature(run_one).parameters.keys():
        raise InvalidCall(f"the installed version of LeRobot does not know {sorted(foreign)}")
    count = max(1, min(evaluation.max_parallel_tasks, len(jobs)))
    kits: SimpleQueue[dict[str, Any]] = SimpleQueue()
    for kit in _kits(evaluation, count):
        kits.put(kit)

    def play(job: Job) -> Metrics:
        kit = kits.get()
        try:
            _, _, metrics = run_one(
                job.group,
                job.task_id,
                job.env,
                n_episodes=evaluation.n_episodes,
                max_episodes_rendered=evaluation.max_episodes_rendered,
                videos_dir=evaluation.videos_dir,
                return_episode_data=False,
                start_seed=evaluation.start_seed,
                **kit,
                **recording,
            )
        finally:
            kits.put(kit)
            if is_ours(job.env):  # others may not be opened again: who made them closes them
                job.env.close()
        own: Metrics = dict(metrics)
        return own

    if count == 1:
        return {(job.group, job.task_id): play(job) for job in jobs}
    with ThreadPoolExecutor(count) as pool:
        played = {(job.group, job.task_id): pool.submit(play, job) for job in jobs}
        return {name: future.result() for name, future in played.items()}


def _kits(evaluation: Evaluation, count: int) -> list[dict[str, Any]]:
    """A policy and processors for each thread; a single one takes them as they are."""
    parts = {"policy": evaluation.policy, **evaluation.processors}
    if count == 1:
        return [parts]
    # Together: a postprocessor may look into its preprocessor.
    copies = policy_copies(tuple(parts.values()), count)
    return [dict(zip(parts, each, strict=True)) for each in copies]
