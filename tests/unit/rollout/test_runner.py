from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import torch

from polyarm import Batch, PolicyError, PolicyOutput, make_vec
from polyarm.contracts import EpisodeKey
from polyarm.policies import ExpertPolicy, History, RandomPolicy, TorchPolicy, ZeroPolicy
from polyarm.rollout.decisions import CostModel
from polyarm.rollout.episode import EpisodeOptions
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule
from polyarm.testing import (
    CountingEnv,
    CountingPolicy,
    HangingPolicy,
    NanPolicy,
    RaisingPolicy,
    SleepyPolicy,
    WrongShapePolicy,
)


def outcomes(episodes):
    return {
        key: (e.result.outcome, e.result.steps, e.result.action_hash, e.result.total_reward)
        for key, e in episodes.items()
    }


class StatefulPolicy:
    """Its action is the number of decisions made in this episode, and the noise of the episode."""

    row_independent = True

    def __init__(self):
        self.decisions = {}

    def begin(self, episodes):
        for key in episodes:
            self.decisions[key] = 0

    def act(self, batch: Batch):
        rows = []
        for key, noise in zip(batch.keys, batch.noise(3, 2), strict=True):
            self.decisions[key] += 1
            rows.append(np.tanh(noise) * 0.1 + self.decisions[key] / 100)
        return np.stack(rows).astype(np.float32)

    def end(self, episodes):
        for key in episodes:
            del self.decisions[key]


@pytest.mark.parametrize(
    ("num_envs", "num_workers", "options"),
    [
        (2, 0, RunnerOptions()),
        (8, 3, RunnerOptions(max_batch=3)),
        (16, 4, RunnerOptions(max_wait_s=0.0)),
        (16, 0, RunnerOptions(max_batch=1)),
    ],
)
def test_neither_slots_nor_workers_nor_batches_change_an_episode(
    play, toy_keys, num_envs, num_workers, options
):
    alone = play(StatefulPolicy(), toy_keys, num_envs=1)
    together = play(
        StatefulPolicy(), toy_keys, num_envs=num_envs, num_workers=num_workers, options=options
    )
    assert outcomes(together) == outcomes(alone)
    assert {key.task for key in alone} == {"count-3", "count-10", "count-50"}


def test_episodes_go_to_whoever_is_free_and_every_one_is_played_once(play, toy_keys):
    policy = CountingPolicy()
    episodes = play(policy, toy_keys, num_envs=3)
    assert sorted(episodes) == sorted(toy_keys)
    assert sorted(policy.begun) == sorted(toy_keys)
    assert {key: e.result.steps for key, e in episodes.items()} == {
        key: int(key.task.partition("-")[2]) for key in toy_keys
    }
    assert all(e.result.outcome == "success" for e in episodes.values())


def test_an_episode_that_is_cut_off_is_a_failure_not_an_error(play, toy_keys):
    episodes = play(CountingPolicy(), toy_keys[:2], truncate=True)
    assert [e.result.outcome for e in episodes.values()] == ["failure", "failure"]


def test_k_actions_are_executed_as_one_chunk_and_the_rest_is_dropped(play):
    key = EpisodeKey("toy", "count-10", 3)
    policy = CountingPolicy(chunk=8)
    options = RunnerOptions(episode=EpisodeOptions(execute=4))
    episodes = play(policy, [key], options=options)
    assert episodes[key].result.steps == 10
    assert policy.steps == [(0,), (4,), (8,)]


def test_temporal_ensembling_is_per_episode(play, toy_keys):
    class Ramp(CountingPolicy):
        def act(self, batch):
            super().act(batch)
            value = (batch.steps[:, None] + 10.0 * np.arange(4)) / 100
            return np.repeat(value[:, :, None], 2, 2).astype(np.float32)

    options = RunnerOptions(episode=EpisodeOptions(execute=1, ensemble=0.5, keep=True))
    episodes = play(Ramp(), toy_keys, num_envs=5, options=options)
    for key, episode in episodes.items():
        actions = episode.trajectory()["actions"][:, 0]
        weights = np.exp(-0.5 * np.arange(2))
        oldest_first = np.array([0 + 10.0, 1.0]) / 100  # for step 1: made at steps 0 and 1
        assert actions[0] == 0
        np.testing.assert_allclose(actions[1], np.average(oldest_first, weights=weights), rtol=1e-6)
        assert len(actions) == int(key.task.partition("-")[2])


def test_experts_act_in_the_workers_whatever_the_request_is_long(play, toy_keys):
    short = play(ExpertPolicy(2), toy_keys, num_envs=2)
    long = play(ExpertPolicy(16), toy_keys, num_envs=8, num_workers=2)
    assert outcomes(short) == outcomes(long)
    assert len({e.result.action_hash for e in short.values()}) == len(toy_keys)


def test_history_and_extras_reach_the_policy_and_the_trajectory(play):
    class Reader(CountingPolicy):
        def act(self, batch):
            super().act(batch)
            seen = batch.obs["state"][:, :, 1]
            actions = np.zeros((len(batch), 2, 2), np.float32)
            return PolicyOutput(actions, {"seen": seen.copy(), "value": seen[:, -1] * 2})

    key = EpisodeKey("toy", "count-10", 1)
    options = RunnerOptions(episode=EpisodeOptions(keep=True))
    episodes = play(History(Reader(), n_obs_steps=3), [key], options=options)
    kept = episodes[key].trajectory()
    assert kept["decision_steps"].tolist() == [0, 2, 4, 6, 8]
    assert kept["extras"]["seen"].tolist()[:3] == [[0, 0, 0], [0, 0, 2], [0, 2, 4]]
    assert kept["extras"]["value"].tolist() == [0, 4, 8, 12, 16]
    assert kept["obs"]["state"][:, 1].tolist() == [0, 2, 4, 6, 8]
    assert kept["rewards"].tolist() == list(range(1, 11))
    assert kept["success"]


def test_a_torch_policy_with_one_batch_shape_gives_the_same_episodes(play, toy_keys):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))

    def policy():
        return TorchPolicy(
            net, batch_size=8, batch_invariant=True, to_inputs=lambda batch: batch.obs["state"]
        )

    one = play(policy(), toy_keys, num_envs=1)
    many = play(policy(), toy_keys, num_envs=12)
    assert outcomes(one) == outcomes(many)


def test_gymnasium_envs_are_played_by_seed(play):
    keys = [EpisodeKey("gym", "CartPole-v1", index) for index in range(6)]
    one = play(RandomPolicy, keys, tasks=["gym/CartPole-v1"], num_envs=1)
    many = play(RandomPolicy, keys, tasks=["gym/CartPole-v1"], num_envs=4, num_workers=2)
    assert outcomes(one) == outcomes(many)
    assert len({e.result.action_hash for e in one.values()}) == 6


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (RaisingPolicy(after=3), r"the policy raised .*; episode toy/count-10#0, step 3"),
        (NanPolicy(after=3), r"nan .*not finite; episode toy/count-10#0, step 3"),
        (WrongShapePolicy(after=3), r"shape .*; episode toy/count-10#0, step 3"),
    ],
)
def test_a_bad_policy_is_told_by_task_episode_and_step(play, policy, message):
    with pytest.raises(PolicyError, match=message):
        play(policy, [EpisodeKey("toy", "count-10", 0)])


def test_a_policy_that_hangs_is_interrupted(play):
    began = time.monotonic()
    with pytest.raises(
        PolicyError, match=r"not answered for 0.2 s; episode toy/count-10#0, step 2"
    ):
        play(
            HangingPolicy(after=2),
            [EpisodeKey("toy", "count-10", 0)],
            options=RunnerOptions(policy_timeout_s=0.2),
        )
    assert time.monotonic() - began < 20


def test_out_of_gpu_memory_halves_the_batch_and_says_so(play, toy_keys, caplog):
    class OutOfMemoryError(RuntimeError):
        """As torch names its own."""

    class Greedy(StatefulPolicy):
        largest = 0

        def act(self, batch):
            noise = batch.noise(1)  # drawn before it fails, and must be drawn again
            if len(batch) > 2:
                raise OutOfMemoryError("CUDA out of memory")
            self.largest = max(self.largest, len(batch))
            return super().act(batch) + 0 * noise[:, None]

    greedy = Greedy()
    options = RunnerOptions(max_wait_s=5.0)
    with caplog.at_level(logging.WARNING, logger="polyarm"):
        got = play(greedy, toy_keys, num_envs=8, options=options)
    assert greedy.largest == 2
    assert "ran out of GPU memory" in caplog.text
    small = Greedy()
    assert outcomes(got) == outcomes(play(small, toy_keys, num_envs=1))


def test_out_of_memory_with_one_row_is_an_error(play):
    class OutOfMemoryError(RuntimeError):
        pass

    class Hopeless(CountingPolicy):
        def act(self, batch):
            raise OutOfMemoryError("CUDA out of memory")

    with pytest.raises(PolicyError, match="OutOfMemoryError"):
        play(Hopeless(), [EpisodeKey("toy", "count-10", 0)])


def test_after_a_drain_the_env_can_be_used_again(toy_keys):
    with make_vec("toy/count-50", num_envs=4, num_workers=2, autoreset="disabled") as env:
        keys = [EpisodeKey("toy", "count-50", index) for index in range(20)]
        runner = Runner(env, CountingPolicy(), Schedule(keys), RunnerOptions())
        for episode in runner.episodes():
            if episode is not None:
                break
        runner.drain()
        again = Runner(env, CountingPolicy(), Schedule(keys[:4]), RunnerOptions())
        assert len([episode for episode in again.episodes() if episode is not None]) == 4


def test_stopping_ends_the_iteration_soon(toy_keys):
    with make_vec("toy/count-50", num_envs=4, num_workers=2, autoreset="disabled") as env:
        keys = [EpisodeKey("toy", "count-50", index) for index in range(200)]
        runner = Runner(env, SleepyPolicy(0.01), Schedule(keys), RunnerOptions())
        made = 0
        for episode in runner.episodes():
            made += episode is not None
            if made == 2:
                runner.stopping = True
        assert 2 <= made < 8


def test_the_time_of_an_episode_is_accounted_for(play, toy_keys):
    episodes = play(SleepyPolicy(0.002), toy_keys, num_envs=4)
    for episode in episodes.values():
        timings = episode.result.timings
        assert timings["policy"] >= 0.002
        assert sum(timings.values()) == pytest.approx(episode.result.seconds, rel=0.05)


def test_what_calls_cost_is_learned_from_calls_of_different_sizes():
    by_row, fixed, unknown = CostModel(), CostModel(), CostModel()
    for rows in (1, 4, 8, 2, 8, 4):
        by_row.add(rows, 0.002 * rows)
        fixed.add(rows, 0.02)
        unknown.add(4, 0.02)
    assert by_row.fixed_share(4) == pytest.approx(0, abs=0.01)
    assert fixed.fixed_share(4) == pytest.approx(1, abs=0.01)
    assert unknown.fixed_share(4) is None
    assert by_row.seconds(16) == pytest.approx(0.032, rel=0.01)
    assert fixed.seconds(16) == pytest.approx(0.02, rel=0.01)
    for _ in range(100):  # nothing new, and nothing forgotten
        fixed.add(8, 0.02)
    assert fixed.seconds(2) == pytest.approx(0.02, rel=0.01)


def test_a_policy_whose_calls_all_cost_the_same_is_asked_about_all_envs_at_once():
    sizes = []

    class Slow(CountingPolicy):
        def act(self, batch):
            sizes.append(len(batch))
            time.sleep(0.02)
            return super().act(batch)

    keys = [EpisodeKey("toy", "count-50", index) for index in range(8)]
    with make_vec("toy/count-50", num_envs=8, num_workers=2, autoreset="disabled") as env:
        list(Runner(env, Slow(), Schedule(keys), RunnerOptions()).episodes())
    assert np.mean(sizes) > 5  # it was half of them, at most


def test_the_zero_policy_ends_where_the_env_ends(play, toy_keys):
    episodes = play(ZeroPolicy, toy_keys[:3], num_envs=2)
    assert {e.result.steps for e in episodes.values()} == {3}


class Handicapped(CountingEnv):
    """Ends after as many steps as its reset is told, or after ten; one of length 3 fails once."""

    failures = 0

    def reset(self, *, seed=None, options=None):
        self.length = (options or {}).get("length", 10)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.length == 3 and not Handicapped.failures:
            Handicapped.failures += 1
            raise RuntimeError("fell over")
        return super().step(action)


def test_resets_are_told_what_belongs_to_their_episode_alone_also_when_it_runs_again(monkeypatch):
    monkeypatch.setattr(Handicapped, "failures", 0)
    keys = [EpisodeKey("callable", "Handicapped", index) for index in range(6)]
    told = {keys[1]: {"length": 3}, keys[4]: {"length": 5}}
    with make_vec(Handicapped, num_envs=3, num_workers=0, autoreset="disabled") as env:
        policy = ZeroPolicy(env.single_action_space, 4)
        options = RunnerOptions(reset_options=told)
        episodes = Runner(env, policy, Schedule(keys), options).episodes()
        results = {episode.key.index: episode.result for episode in episodes if episode}
    steps = {index: result.steps for index, result in results.items()}
    assert steps == {0: 10, 1: 3, 2: 10, 3: 10, 4: 5, 5: 10}
    assert results[1].attempts == 2
