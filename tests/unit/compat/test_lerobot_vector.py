"""Our vector env as LeRobot's own rollouts drive it, and our evaluation beside LeRobot's."""

import inspect
import math
import os
import signal
from dataclasses import dataclass

import gymnasium
import lerobot_toys
import numpy as np
import pytest
import torch
from lerobot.envs.configs import EnvConfig
from lerobot.envs.utils import close_envs
from lerobot.scripts import lerobot_eval
from lerobot_reacher import Reacher, no_processors

from polyarm.compat.lerobot import eval_policy_all, make_env, threads
from polyarm.compat.lerobot.batched import Evaluation
from polyarm.compat.lerobot.metrics import summarise
from polyarm.errors import InvalidAction, InvalidCall, WorkerDied, WorkerError
from polyarm.policies import lerobot_policy

EPISODES = 6
SEED = 1000


@EnvConfig.register_subclass("polyarm_test_reach")
@dataclass
class ReachConfig(EnvConfig):
    task: str = "Reach-v0"
    obs_type: str = "state"
    fails_at: int | None = None

    @property
    def package_name(self):
        return "lerobot_toys"

    @property
    def gym_kwargs(self):
        return {"obs_type": self.obs_type, "fails_at": self.fails_at}


def reach_env(n_envs=1, **fields):
    return make_env(ReachConfig(**fields), n_envs=n_envs)["polyarm_test_reach"][0]


def evaluate(envs, evaluation=eval_policy_all, policy=None, **options):
    arguments = {"n_episodes": EPISODES, "start_seed": SEED, **no_processors(), **options}
    return evaluation(envs, policy or Reacher(), **arguments)


def outcomes(result):
    """Per task: successes, returns and best rewards; the last bits of a sum hang on its order."""
    return {
        (task["task_group"], task["task_id"]): [
            (success, round(total, 9), round(best, 9))
            for success, total, best in zip(
                *(task["metrics"][name] for name in ("successes", "sum_rewards", "max_rewards")),
                strict=True,
            )
        ]
        for task in result["per_task"]
    }


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """LeRobot draws no progress bars on clusters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lerobot_eval, "inside_slurm", lambda: True)
        yield


@pytest.fixture(scope="module")
def alone():
    """What LeRobot's own loop gets, one episode after the other in one env."""
    return evaluate({"toy": {0: reach_env()}}, lerobot_eval.eval_policy_all)


def test_the_policy_reaches_some_goals_and_misses_others(alone):
    assert 0 < alone["overall"]["pc_success"] < 100


@pytest.mark.parametrize("n_envs", [1, 2, 4])
def test_our_evaluation_gives_the_outcomes_of_lerobots(alone, n_envs):
    result = evaluate({"toy": {0: reach_env(n_envs)}})
    assert outcomes(result) == outcomes(alone)


def test_an_env_with_cameras_of_its_own_is_evaluated_as_it_is(alone):
    env = reach_env(2, obs_type="pixels_agent_pos")
    assert env.observation_space["pixels"]["top"].shape == (2, 8, 8, 3)
    obs, _ = env.reset(seed=SEED)
    assert obs["pixels"]["top"].shape == (2, 8, 8, 3)
    assert outcomes(evaluate({"toy": {0: env}})) == outcomes(alone)


@pytest.mark.parametrize("n_envs", [2, 4])
def test_lerobots_loop_gives_the_same_outcomes_however_many_envs_there_are(alone, n_envs):
    env = reach_env(n_envs)
    result = evaluate({"toy": {0: env}}, lerobot_eval.eval_policy_all)
    close_envs({"toy": {0: env}})
    assert outcomes(result) == outcomes(alone)


def test_the_result_has_lerobots_keys_and_types(alone):
    ours = evaluate({"toy": {0: reach_env()}})
    assert shape_of(ours) == shape_of(alone)
    same = ("avg_sum_reward", "avg_max_reward", "pc_success", "n_episodes")
    for name in same:
        assert ours["overall"][name] == pytest.approx(alone["overall"][name], rel=1e-12)
        assert ours["per_group"]["toy"][name] == pytest.approx(alone["per_group"]["toy"][name])


def shape_of(tree):
    if isinstance(tree, dict):
        return {key: shape_of(value) for key, value in sorted(tree.items())}
    if isinstance(tree, list):
        return [shape_of(value) for value in tree]
    return type(tree)


# Threads.


def foreign_envs(tasks=4):
    """Vector envs as LeRobot itself makes them."""

    def make():
        return gymnasium.make(lerobot_toys.ENV_ID)

    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return {
        "foreign": {
            task: gymnasium.vector.SyncVectorEnv([make] * 2, autoreset_mode=mode)
            for task in range(tasks)
        }
    }


def test_threads_change_no_outcome_of_other_peoples_envs(alone):
    results = []
    for parallel in (1, 4):
        envs = foreign_envs()
        results.append(evaluate(envs, max_parallel_tasks=parallel))
        close_envs(envs)
    assert outcomes(results[0]) == outcomes(results[1])
    # LeRobot counts one reward too many of an env that begins anew by itself; not so successes.
    expected = alone["per_task"][0]["metrics"]["successes"]
    assert [task["metrics"]["successes"] for task in results[1]["per_task"]] == [expected] * 4


def test_tasks_of_ours_and_of_others_are_evaluated_together(alone):
    envs = {"toy": {0: reach_env(2)}, **foreign_envs(2)}
    result = evaluate(envs, max_parallel_tasks=2)
    close_envs(envs)
    assert list(outcomes(result)) == [("toy", 0), ("foreign", 0), ("foreign", 1)]
    expected = alone["per_task"][0]["metrics"]["successes"]
    assert [task["metrics"]["successes"] for task in result["per_task"]] == [expected] * 3
    assert result["overall"]["n_episodes"] == 3 * EPISODES


def test_a_policy_that_cannot_be_asked_by_the_episode_is_driven_by_lerobots_loop(
    alone, monkeypatch, caplog
):
    monkeypatch.setitem(lerobot_policy._OWN_MEMORY, "polyarm_test_reacher", "it remembers")
    with caplog.at_level("WARNING"):
        envs = {"toy": {0: reach_env(2), 1: reach_env(1), 2: reach_env(2)}}
        result = evaluate(envs, max_parallel_tasks=2)
    expected = outcomes(alone)["toy", 0]
    assert outcomes(result) == {("toy", task): expected for task in range(3)}
    assert "LeRobot's own loop" in caplog.text


# What is refused.


def test_more_envs_than_episodes_are_refused():
    with pytest.raises(InvalidCall, match="7 envs of toy 0 for 6 episodes"):
        evaluate({"toy": {0: reach_env(7)}})


@pytest.mark.skipif(
    "recording_dir" in inspect.signature(lerobot_eval.eval_policy_all).parameters,
    reason="this version of LeRobot can record",
)
def test_a_recording_that_this_version_of_lerobot_cannot_make_is_refused(tmp_path):
    with pytest.raises(InvalidCall, match=r"does not know \['env_features', 'recording_dir'\]"):
        evaluate({"toy": {0: reach_env()}}, recording_dir=tmp_path, env_features={})


def test_videos_need_a_folder():
    with pytest.raises(InvalidCall, match="needs videos_dir"):
        evaluate({"toy": {0: reach_env()}}, max_episodes_rendered=1)


def test_an_episode_without_an_outcome_is_no_failure():
    with pytest.raises(WorkerError, match=r"1 of 6 episodes have no outcome.*#1002"):
        evaluate({"toy": {0: reach_env(2, fails_at=SEED + 2)}})


def test_an_episode_that_lerobots_loop_cannot_bring_to_its_end_has_no_outcome():
    env = reach_env(2, fails_at=SEED + 3)
    with pytest.raises(WorkerDied, match="episode 1003 was cut short at step 2"):
        evaluate({"toy": {0: env}}, lerobot_eval.eval_policy_all)
    env.close()


def test_something_that_is_no_policy_is_refused():
    with pytest.raises(InvalidCall, match="found function"):
        evaluate({"toy": {0: reach_env()}}, policy=evaluate)


def test_the_policy_goes_on_training_afterwards():
    policy = Reacher().train()
    evaluate({"toy": {0: reach_env()}}, policy=policy, n_episodes=1)
    assert policy.training


def test_an_env_that_lerobot_films_is_filmed_at_lerobots_paths(tmp_path):
    result = evaluate(
        {"toy": {0: reach_env(2)}}, n_episodes=2, max_episodes_rendered=1, videos_dir=tmp_path
    )
    assert result["overall"]["video_paths"] == [str(tmp_path / "toy_0" / "eval_episode_0.mp4")]
    assert (tmp_path / "toy_0" / "eval_episode_0.mp4").stat().st_size > 0


# The vector env itself.


def test_a_finished_env_repeats_its_end_without_simulating():
    env = reach_env(2)
    env.reset(seed=[SEED, SEED + 1], options={"lerobot_new_rollout": True})
    actions = np.zeros((2, 4), np.float32)
    for _ in range(60):
        obs, rewards, terminated, truncated, info = env.step(actions)
    assert truncated.all()
    assert not terminated.any()
    last = obs["agent_pos"].copy()
    nonsense = np.full((2, 4), np.nan, np.float32)  # no simulator would be given this
    obs, rewards, terminated, truncated, info = env.step(nonsense)
    assert np.array_equal(obs["agent_pos"], last)
    assert rewards.tolist() == [0.0, 0.0]
    assert truncated.all()
    assert info["final_info"]["is_success"].tolist() == [False, False]
    env.reset(seed=[SEED, SEED + 1])  # older versions of LeRobot pass no option
    *_, truncated, info = env.step(actions)
    assert not truncated.any()
    assert "final_info" not in info
    env.close()


def test_success_is_told_in_both_places():
    env = reach_env(2)
    policy = Reacher()
    obs, _ = env.reset(seed=[SEED + 0, SEED + 1])
    for _ in range(60):
        state = torch.from_numpy(obs["agent_pos"])
        action = policy.predict_action_chunk({"observation.state": state})[:, 0]
        obs, _, terminated, truncated, info = env.step(action.detach().numpy())
        over = terminated | truncated
        assert np.array_equal(info["is_success"], terminated)
        if over.any():
            assert np.array_equal(info["final_info"]["is_success"], terminated & over)
    assert over.all()
    env.close()


def test_actions_for_another_number_of_envs_are_refused():
    env = reach_env(2)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=r"2 envs need actions \(2, 4\), found \(3, 4\)"):
        env.step(np.zeros((3, 4), np.float32))
    with pytest.raises(InvalidAction, match="nan"):
        env.step(np.full((2, 4), np.nan, np.float32))
    env.close()


def test_a_killed_worker_is_no_difference_to_a_seeded_env():
    def play(kill):
        env = reach_env(2)
        env.reset(seed=SEED)
        seen = []
        for step in range(10):
            if step == kill:
                os.kill(env._vec.worker_pids[0], signal.SIGKILL)
            obs, rewards, *_ = env.step(np.full((2, 4), 0.5, np.float32))
            seen.append((obs["agent_pos"].tolist(), rewards.tolist()))
        env.close()
        return seen

    assert play(kill=6) == play(kill=None)


def test_an_env_can_be_closed_and_opened_again():
    env = reach_env(2)
    first, _ = env.reset(seed=[3, 4])
    env.close()
    assert env.closed
    with pytest.raises(InvalidCall, match="reset"):
        env.step(np.zeros((2, 4), np.float32))
    again, _ = env.reset(seed=[3, 4])
    assert np.array_equal(first["agent_pos"], again["agent_pos"])
    env.close()
    env.close()


def test_observations_are_arrays_of_their_own():
    env = reach_env(1)
    first, _ = env.reset(seed=[3])
    before = first["agent_pos"].copy()
    for _ in range(4):
        env.step(np.ones((1, 4), np.float32))
    assert np.array_equal(first["agent_pos"], before)
    env.close()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_what_an_env_does_not_have_is_an_attribute_error(n_envs):
    env = reach_env(n_envs)
    assert env.get_attr("task_description") == ("reach the goal",) * n_envs
    assert env.envs[-1].task == "reach"
    assert not hasattr(env.envs[0], "nonsense")
    with pytest.raises(AttributeError, match="nonsense"):
        env.call("nonsense")
    env.reset(seed=0)
    assert [frame.shape for frame in env.call("render")] == [(16, 16, 3)] * n_envs
    with pytest.raises(InvalidCall, match="lerobot_new_rollout"):
        env.reset(options={"mask": 1})
    env.close()


def test_means_of_nothing_are_not_numbers():
    empty = summarise([], ("sum_rewards", "max_rewards", "successes", "video_paths"), 1.0)
    assert math.isnan(empty["overall"]["pc_success"])
    assert empty["overall"]["n_episodes"] == 0


def test_a_threads_processors_belong_together():
    class Before:
        pass

    class After:
        def __init__(self, before):
            self.before = before

    before = Before()
    parts = {"preprocessor": before, "postprocessor": After(before)}
    kits = threads._kits(Evaluation(Reacher(), parts, n_episodes=1), 2)
    assert all(kit["postprocessor"].before is kit["preprocessor"] for kit in kits)
    assert kits[0]["preprocessor"] is not kits[1]["preprocessor"]
