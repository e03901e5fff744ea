from __future__ import annotations

import itertools

import numpy as np
import pytest

from polyarm import InvalidCall, PolicyError, PolicyOutput, collect, is_informative, make_vec
from polyarm.contracts import EpisodeKey
from polyarm.testing import CountingEnv, CountingPolicy


class Sometimes(CountingEnv):
    """Succeeds if the sum of its first actions is positive, so repeats differ by their noise."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        ended = terminated or truncated
        return (
            obs,
            reward,
            ended,
            False,
            {**info, "is_success": bool(ended and obs["state"][2] > 0)},
        )


class Noisy(CountingPolicy):
    def act(self, batch):
        super().act(batch)
        noise = np.tanh(batch.noise(4, 2))
        return PolicyOutput(noise, {"log_prob": -(noise**2).sum((1, 2))})


def keys(number):
    source = itertools.count() if number is None else range(number)
    return (EpisodeKey("callable", "Sometimes", index) for index in source)


@pytest.fixture(params=[0, 2])
def make(request):
    def make():
        return make_vec(Sometimes, num_envs=6, num_workers=request.param, autoreset="disabled")

    return make


def test_groups_are_complete_and_hold_repeats_of_one_initial_state(make):
    with make() as env:
        groups = list(collect(Noisy(), keys(5), group_size=4, env=env))
    assert sorted(group.key.index for group in groups) == [0, 1, 2, 3, 4]
    for group in groups:
        assert [rollout.result.key.repeat for rollout in group.rollouts] == [0, 1, 2, 3]
        starts = {tuple(r.trajectory["obs"]["state"][0].tolist()) for r in group.rollouts}
        assert len(starts) == 1
        assert len({r.result.action_hash for r in group.rollouts}) == 4
        for rollout in group.rollouts:
            assert rollout.trajectory["actions"].shape == (10, 2)
            assert rollout.trajectory["extras"]["log_prob"].shape == (3,)
            assert rollout.success == bool(rollout.trajectory["success"])


def test_rejected_groups_are_replaced_until_there_are_enough(make):
    seen = []

    def accept(group):
        seen.append(group.successes)
        return is_informative(group)

    with make() as env:
        found = collect(Noisy(), keys(None), group_size=2, num_groups=4, accept=accept, env=env)
        groups = list(found)
    assert len(groups) == 4
    assert all(group.successes == 1 for group in groups)
    assert len(seen) > 4


def test_the_env_can_be_used_again_after_enough_groups(make):
    with make() as env:
        for _ in range(3):
            found = collect(Noisy(), keys(None), group_size=3, num_groups=2, env=env)
            assert len(list(found)) == 2


def test_groups_are_the_same_however_many_envs_play_them():
    def facts(num_envs):
        groups = collect(
            Noisy(), [EpisodeKey("toy", "count-10", i) for i in range(4)], group_size=3,
            num_envs=num_envs, num_workers=0,
        )  # fmt: skip
        return {g.key: [r.result.action_hash for r in g.rollouts] for g in groups}

    assert facts(1) == facts(5)


def test_no_keys_give_no_groups_and_a_group_has_a_member():
    assert list(collect(Noisy(), [])) == []
    with pytest.raises(InvalidCall, match="at least one member"):
        list(collect(Noisy(), keys(1), group_size=0))


def test_a_policy_says_how_many_actions_are_executed_and_which_envs_it_was_made_for():
    class Particular(Noisy):
        execute = 1

        def check_spec(self, spec):
            if spec.suite != "callable":
                raise PolicyError(f"not {spec.name}")

    with make_vec(Sometimes, num_envs=2, num_workers=0, autoreset="disabled") as env:
        (group,) = collect(Particular(), keys(1), group_size=2, env=env)
    trajectory = group.rollouts[0].trajectory
    assert len(trajectory["decision_steps"]) == len(trajectory["actions"])
    with pytest.raises(PolicyError, match="not toy/count-3"):
        next(collect(Particular(), [EpisodeKey("toy", "count-3", 0)], num_workers=0))


class SlowStart(Sometimes):
    """The lower its index, the longer an episode takes, so that groups end in the wrong order."""

    def reset(self, **arguments):
        self.length = 40 - 6 * (arguments["seed"] % 6)
        return super().reset(**arguments)


class SometimesBroken(Sometimes):
    def step(self, action):
        obs, *rest = super().step(action)
        if obs["state"][0] == 0 and obs["state"][1] > 8:
            raise RuntimeError("episode 0 never comes to its end")
        return obs, *rest


def slow_start(num_envs, **options):
    with make_vec(SlowStart, num_envs=num_envs, num_workers=0, autoreset="disabled") as env:
        source = (EpisodeKey("callable", "SlowStart", index) for index in itertools.count())
        return list(collect(Noisy(), source, group_size=2, env=env, **options))


def test_ordered_groups_come_in_the_order_of_the_keys_whoever_is_faster():
    found = [[g.key.index for g in slow_start(12, num_groups=6, ordered=o)] for o in (True, False)]
    assert found[0] == [0, 1, 2, 3, 4, 5]
    assert found[1] != found[0]


def test_which_ordered_groups_are_accepted_depends_on_the_keys_alone():
    def facts(num_envs):
        judged = []

        def accept(group):
            judged.append(group.key.index)
            return is_informative(group)

        groups = slow_start(num_envs, num_groups=4, accept=accept, ordered=True)
        return judged, [(g.key, [r.result.action_hash for r in g.rollouts]) for g in groups]

    judged, _ = one = facts(1)
    assert judged == list(range(len(judged)))
    assert len(judged) > 4
    assert facts(5) == facts(12) == one


def test_an_ordered_group_that_is_dropped_does_not_hold_up_those_behind_it(caplog):
    with make_vec(SometimesBroken, num_envs=6, num_workers=0, autoreset="disabled") as env:
        source = [EpisodeKey("callable", "SometimesBroken", index) for index in range(4)]
        groups = list(collect(Noisy(), source, group_size=2, env=env, ordered=True))
    assert [group.key.index for group in groups] == [1, 2, 3]
    assert "dropping the group of callable/SometimesBroken#0" in caplog.text


@pytest.mark.parametrize("call", ["send", "send_reset", "recv"])
@pytest.mark.parametrize("done", [False, True])
def test_an_interrupt_around_any_call_leaves_the_env_usable(make, monkeypatch, call, done):
    with make() as env:
        real, calls = getattr(env, call), itertools.count()

        def interrupted(*args, **kwargs):
            last = next(calls) == 2
            result = real(*args, **kwargs) if done or not last else None
            if last:
                raise KeyboardInterrupt
            return result

        with monkeypatch.context() as patch:
            patch.setattr(env, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(collect(Noisy(), keys(None), group_size=3, env=env))
        assert len(list(collect(Noisy(), keys(4), group_size=3, env=env))) == 4


@pytest.mark.parametrize("number", [0, -1])
def test_no_groups_are_not_all_of_them(number):
    keys = [EpisodeKey("toy", "count-3", index) for index in range(3)]
    with pytest.raises(InvalidCall, match="num_groups is at least 1"):
        next(collect("zero", keys, group_size=1, num_groups=number, num_envs=1, num_workers=0))
