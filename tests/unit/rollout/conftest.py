"""Episodes of the toy suite, run by the real runner in process and in workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polyarm import make_vec
from polyarm.contracts import EpisodeKey
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule

TASKS = ("toy/count-3", "toy/count-10", "toy/count-50")


@pytest.fixture
def toy_keys() -> list[EpisodeKey]:
    return [EpisodeKey("toy", task.partition("/")[2], i) for task in TASKS for i in range(4)]


@pytest.fixture
def play() -> Callable[..., dict[EpisodeKey, Any]]:
    """Run keys with a policy; returns results by key."""

    def play(policy, keys, *, num_envs=4, num_workers=0, tasks=TASKS, options=None, **env_options):
        with make_vec(
            list(tasks)[:num_envs], num_envs=num_envs, num_workers=num_workers,
            autoreset="disabled", max_restarts=1000, **env_options,
        ) as env:  # fmt: skip
            acting = policy(env.single_action_space) if isinstance(policy, type) else policy
            runner = Runner(env, acting, Schedule(keys), options or RunnerOptions())
            episodes = [episode for episode in runner.episodes() if episode is not None]
        assert len({episode.key for episode in episodes}) == len(episodes)
        return {episode.key: episode for episode in episodes}

    return play
