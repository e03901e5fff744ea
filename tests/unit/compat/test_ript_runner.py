"""The runner's surface is RIPT-VLA's, and its results do not depend on who ends first."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from polyarm.compat.ript import LiberoRunner, PI0LiberoRunner
from polyarm.compat.ript.keys import Planned
from polyarm.errors import InvalidCall, PolicyError, SlotError, UnknownName, WorkerError
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode

TASK = "put_the_bowl_on_the_stove"


def names(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_the_words_of_the_originals_are_understood_in_their_order():
    assert names(LiberoRunner.__init__)[:7] == [
        *("benchmark_name", "rollouts_per_env", "num_parallel_envs", "max_episode_length"),
        *("task_names_to_use", "use_laplace_sampling", "scale_factor"),
    ]
    assert names(PI0LiberoRunner.__init__)[:7] == [
        *("policy", "benchmark_name", "rollouts_per_env", "num_parallel_envs"),
        *("max_episode_length", "task_names_to_use", "rank"),
    ]
    assert names(LiberoRunner.run_policy_in_env) == [
        *("env_name", "policy", "all_init_states", "render", "created_env", "random_init"),
    ]
    assert names(LiberoRunner.run) == [
        *("policy", "n_video", "do_tqdm", "save_video_fn", "run_env_names", "created_envs"),
    ]


def test_names_and_lengths_are_liberos():
    runner = LiberoRunner("LIBERO_GOAL", 2, 4, task_names_to_use=[TASK])
    assert runner.benchmark_name == "libero_goal"
    assert len(runner.env_names) == runner.benchmark.n_tasks == 10
    assert runner.env_names_to_run == [TASK]
    task = runner.benchmark.get_task(runner.env_names.index(TASK))
    assert (task.name, task.language) == (TASK, TASK.replace("_", " "))
    assert runner.max_episode_length == 300
    assert LiberoRunner("libero_10", 2, 4).max_episode_length == 520
    assert LiberoRunner("libero_10", 2, 4, protocol="ript-quest").max_episode_length == 600
    assert len(LiberoRunner("libero_90", 1, 1, task_names_to_use=None).env_names_to_run) == 90


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"benchmark_name": "libero_goals"}, UnknownName, "did you mean 'libero_goal'"),
        ({"task_names_to_use": [TASK + "s"]}, UnknownName, f"did you mean '{TASK}'"),
        ({"protocol": "ript"}, UnknownName, "protocol of libero"),
        ({"suite_options": {"setle_steps": 2}}, UnknownName, "settle_steps"),
        ({"num_parallel_envs": 0}, InvalidCall, "num_parallel_envs must be a whole number"),
        ({"rollouts_per_env": 1.5}, InvalidCall, "rollouts_per_env must be a whole number"),
        ({"max_episode_length": 0}, InvalidCall, "max_episode_length must be a whole number"),
        ({"rank": 2, "world_size": 2}, InvalidCall, "below world_size=2, found 2"),
        ({"rank": -1}, InvalidCall, "rank is at least 0"),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(arguments, error, told):
    usual = {"benchmark_name": "libero_goal", "rollouts_per_env": 2, "num_parallel_envs": 2}
    with pytest.raises(error, match=told):
        LiberoRunner(**{**usual, **arguments})


def test_wrong_calls_are_told_at_once_and_not_when_the_generator_is_read():
    runner = LiberoRunner("libero_goal", 2, 2)
    with pytest.raises(UnknownName, match=TASK):
        runner.run_policy_in_env("put_the_bowl_on_the_stov", "random")
    with pytest.raises(UnknownName, match="task of libero_goal"):
        runner.create_env(10)
    with pytest.raises(InvalidCall, match="no policy"):
        runner.run_policy_in_env(TASK)
    with pytest.raises(InvalidCall, match="no task to run"):
        runner.run("random", run_env_names=[])
    with pytest.raises(InvalidCall, match="create_env gives one for each task"):
        runner.run_policy_in_env(TASK, "random", created_env=(_Env(), 0, 1))
    with pytest.raises(PolicyError, match="is no policy"):
        runner.run(object())


class _Env:
    name = "another"


def ended(key, success=True, reward=1.0, error=None):
    """An episode of one step that has come to its end."""
    episode = RunningEpisode(key, "do it", 1, EpisodeOptions(keep=True))
    action = np.full((1, 7), key.index, np.float32)
    frames = np.zeros((4, 4, 3), np.uint8)
    obs = {"state": np.zeros(8, np.float32), "pixels/agentview": frames}
    episode.decided(action, {}, obs)
    episode.stepped(action, np.array([reward]))
    if error:
        episode.fail(SlotError("died", 0, key.name, "step", 0, error))
    else:
        episode.finish("success" if success else "failure")
    return episode


@pytest.fixture
def played(monkeypatch):
    """A runner whose pool ends episodes backwards; the outcome is given by index."""

    def make(outcome, rollouts=4, tasks=None):
        runner = LiberoRunner("libero_goal", rollouts, 2, task_names_to_use=tasks)
        seen: list[Planned] = []

        def play(acting, planned, *, keep):
            seen.append(planned)
            for key in reversed(planned.keys):
                yield ended(key, **outcome(key))

        monkeypatch.setattr(runner._pool, "play", play)
        return runner, seen

    return make


def test_rollouts_come_in_the_order_in_which_they_were_asked_for(played):
    runner, seen = played(lambda key: {"success": key.index == 2, "reward": float(key.index)})
    found = list(runner.run_policy_in_env(TASK, "random"))
    assert [key.index for key in seen[0].keys] == [0, 1, 2, 3]
    assert [(success, reward) for success, reward, _ in found] == [
        (False, 0.0), (False, 1.0), (True, 2.0), (False, 3.0),
    ]  # fmt: skip
    assert [episode["actions"][0][0] for _, _, episode in found] == [0, 1, 2, 3]


def test_an_episode_that_cannot_be_played_is_left_out_and_told(played, caplog):
    runner, _ = played(lambda key: {"error": "fell over"} if key.index == 1 else {})
    found = list(runner.run_policy_in_env(TASK, "random"))
    assert [episode["actions"][0][0] for _, _, episode in found] == [0, 2, 3]
    assert "fell over" in caplog.text
    runner, _ = played(lambda key: {"error": "fell over"})
    with pytest.raises(WorkerError, match="came to its end: fell over"):
        list(runner.run_policy_in_env(TASK, "random"))


def test_scores_hold_rewards_and_count_errors_apart(played):
    def outcome(key):
        if key.task == "libero_goal/0":
            return {"success": key.index < 2, "reward": float(key.index < 2)}
        return {"error": "fell over"} if key.index == 0 else {"success": False, "reward": 0.0}

    runner, _ = played(outcome)
    names = runner.env_names[:2]
    output = runner.run("random", run_env_names=names)
    assert output == {
        "rollout": {
            "overall_success_rate": pytest.approx(2 / 7),
            "overall_average_reward": pytest.approx(2 / 7),
            "environments_solved": 1,
            "rollout_count": 7,
            "rollout_errors": 1,
        },
        "rollout_success_rate": {names[0]: 0.5, names[1]: 0.0},
    }
    runner, _ = played(lambda key: {"error": "fell over"})
    with pytest.raises(WorkerError, match=f"no episode of {names[0]} came to its end: fell over"):
        runner.run("random", run_env_names=names)


def test_scores_are_of_the_same_episodes_at_every_call(played):
    runner, seen = played(lambda key: {})
    for _ in range(2):
        runner.run("random", run_env_names=[TASK])
    list(runner.run_policy_in_env(TASK, "random"))
    list(runner.run_policy_in_env(TASK, "random"))
    assert seen[0].keys == seen[1].keys == seen[2].keys
    assert not {*seen[2].keys} & {*seen[3].keys}


def test_films_are_handed_over_or_returned(played):
    runner, _ = played(lambda key: {})
    films = []
    runner.run("random", 2, save_video_fn=lambda *film: films.append(film), run_env_names=[TASK])
    assert sorted((name, number) for _, name, number in films) == [(TASK, 0), (TASK, 1)]
    assert all(film.shape == (1, 3, 4, 4) for film, _, _ in films)
    output = runner.run("random", 2, run_env_names=[TASK])
    assert output["rollout_videos"][TASK].shape == (2, 3, 4, 4)


def test_random_starts_are_drawn_by_seed_and_rank():
    pytest.importorskip("libero")

    def drawn(**arguments):
        runner = LiberoRunner("libero_goal", 20, 2, **arguments)
        return [key.index for key in runner._planned(0, None, random_init=True).keys]

    assert drawn() == drawn()
    assert drawn() != drawn(rank=1)
    assert drawn() != sorted(drawn())
    assert {*drawn()} <= {*range(50)}
