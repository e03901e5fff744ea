"""The ring is the rollout buffer: what it says of resets, ends, failures and chunks."""

import numpy as np
import pytest

from polyarm.distributed.ranks import Rank, Share
from polyarm.errors import PolicyError
from polyarm.testing import CountingEnv
from polyarm.training.options import TrainOptions
from polyarm.training.play import Play, training_settings

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")


def play(task="toy/count-3", rank=0, world=1, num_envs=2, num_workers=0, **options):
    given = {"horizon": 6, "eval_every": 0, **options}
    wanted = TrainOptions(task=task, num_envs=num_envs, num_workers=num_workers, **given)
    return Play(wanted, Share(Rank(rank, world), (num_envs,) * world))


def rollout(envs, horizon=6, chunk=1):
    ring = envs.begin_rollout()
    for _ in range(horizon):
        envs.step(np.zeros((envs.envs.num_envs, chunk, 2), np.float32))
    return envs.end_rollout(ring)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("truncate", [True, False])
def test_episodes_end_are_reset_and_go_on_in_the_next_rollout(num_workers, truncate):
    settings = (f"truncate={truncate}",)
    with play(num_workers=num_workers, suite_options=settings) as envs:
        envs.begin()
        steps = rollout(envs)
        # Three steps, a reset, two steps …
        assert steps.steps[:, 0].tolist() == [1, 1, 1, 0, 1, 1]
        assert steps.usable[:, 0].tolist() == [True, True, True, False, True, True]
        assert steps.leaves["state"][:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1, 2]
        ends = steps.truncated if truncate else steps.terminated
        others = steps.terminated if truncate else steps.truncated
        assert ends[:, 0].tolist() == [False, False, True, False, False, False]
        assert not others.any()
        assert steps.rewards[:, 0, 0].tolist() == [1, 2, 3, 0, 1, 2]
        tally = envs.tally
        assert (tally.episodes, tally.returns, tally.lengths) == (2, 12.0, 6)
        assert (tally.judged, tally.successes) == (2, 0 if truncate else 2)
        # … and the third in the next rollout, whose first row is the last one of this.
        steps = rollout(envs)
        assert steps.leaves["state"][:, 0, 1].tolist() == [2, 3, 0, 1, 2, 3, 0]
        assert envs.tally.episodes == 4


def test_a_chunk_that_is_cut_short_counts_its_real_steps():
    with play("toy/count-10", horizon=4, action_chunk=4) as envs:
        envs.begin()
        steps = rollout(envs, horizon=4, chunk=4)
    assert steps.steps[:, 0].tolist() == [4, 4, 2, 0]
    assert steps.rewards[2, 0].tolist() == [9, 10, 0, 0]
    assert steps.terminated[:, 0].tolist() == [False, False, True, False]


@pytest.mark.usefixtures("failing")
def test_an_env_that_fails_gives_no_data_and_its_episode_does_not_count():
    with play("failing:once", num_envs=3, num_workers=3) as envs:
        envs.begin()
        steps = rollout(envs)
    failed = np.flatnonzero(steps.steps[0] == 0)
    assert len(failed) == 1
    slot = int(failed[0])
    assert steps.usable[:, slot].tolist() == [False, False, True, True, True, True]
    assert steps.truncated[0, slot]
    assert not steps.terminated[0, slot]
    assert envs.tally.errors == 1
    assert "as it was asked to" in envs.last_error


def test_a_value_is_not_taken_from_a_frame_that_was_not_drawn(monkeypatch):
    from polyarm.testing.counting import CountingEnv

    monkeypatch.setattr(CountingEnv, "terminal_frame", lambda self: None)
    settings = {"cameras": ("front",), "image_size": (8, 8), "action_chunk": 4, "horizon": 3}
    for truncate, usable in ((True, [False, False, False]), (False, [True, False, True])):
        with play(suite_options=(f"truncate={truncate}",), **settings) as envs:
            envs.begin()
            steps = rollout(envs, horizon=3, chunk=4)
        assert steps.usable[:, 0].tolist() == usable


def test_ranks_and_seeds_play_other_episodes():
    seen = set()
    for rank, seed in ((0, 0), (1, 0), (0, 1)):
        with play(rank=rank, world=2, seed=seed) as envs:
            envs.begin()
            seen |= set(envs.envs.episodes.tolist())
            rollout(envs)
            seen |= set(envs.envs.episodes.tolist())
    assert len(seen) == 3 * 2 * 2


def test_a_reward_or_state_that_is_no_number_stops_it(monkeypatch):
    from polyarm.testing.counting import CountingEnv

    usual = CountingEnv.step

    def spoiled(self, action):
        obs, _, *rest = usual(self, action)
        return obs, float("nan"), *rest

    monkeypatch.setattr(CountingEnv, "step", spoiled)
    with play() as envs:
        envs.begin()
        with pytest.raises(PolicyError, match=r"env 0 \(toy/count-3\) gave a reward that is no"):
            rollout(envs)


def test_a_first_observation_that_is_no_number_stops_it(monkeypatch):
    from polyarm.testing.counting import CountingEnv

    usual = CountingEnv.reset

    def spoiled(self, **options):
        obs, info = usual(self, **options)
        return {**obs, "state": np.full_like(obs["state"], np.nan)}, info

    monkeypatch.setattr(CountingEnv, "reset", spoiled)
    with play("toy/count-10") as envs:
        envs.begin()
        with pytest.raises(PolicyError, match=r"env 0 \(toy/count-10\) gave a state that is no"):
            rollout(envs)


def test_envs_without_episode_indices_have_a_seed_for_every_time_they_go_on():
    def first(**options):
        with play("gym/Pendulum-v1") as envs:
            envs.begin(**options)
            return envs.state_dict()

    seen = [first(), first()]
    for update in (2, 4):  # the same number of episodes was played before both
        seen.append(first(after=seen[0], update=update))
    states = [one["newest"]["state"].tolist() for one in seen]
    assert states[0] == states[1]
    assert states[0] != states[2] != states[3] != states[0]


def settings_of(**options):
    settings, poses = training_settings(TrainOptions(task="rlbench/open_drawer", **options))
    return settings.get("control"), poses


def test_only_poses_keep_their_turn():
    """Joints 4 to 7 are no quaternion, displaced or not."""
    assert settings_of() == settings_of(arm_mode="planning") == ("delta", True)
    assert settings_of(suite_options=("control=delta",)) == ("delta", True)
    assert settings_of(arm_mode="joint_velocity") == (None, False)
    assert settings_of(arm_mode="joint_position") == (None, False)
    displaced = settings_of(arm_mode="joint_position", suite_options=("control=delta",))
    assert displaced == ("delta", False)


def test_training_goes_on_after_a_success_unless_it_is_told_not_to():
    reach = TrainOptions(task="metaworld/reach-v3")
    assert training_settings(reach)[0] == {"terminate_on_success": False}
    told = TrainOptions(task="metaworld/reach-v3", suite_options=("terminate_on_success=true",))
    assert training_settings(told)[0] == {"terminate_on_success": True}
    assert "terminate_on_success" not in training_settings(TrainOptions(task="toy/count-3"))[0]


def test_frames_that_gymnasium_envs_bring_are_seen():
    def env():
        return CountingEnv(length=5)

    options = TrainOptions(task="toy/count-10", num_envs=2, num_workers=0, horizon=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyarm.training.play.all_tasks", lambda *_: [env])
        with Play(options, Share(Rank(0, 1), (2,))) as play:
            assert play.sight.pictures == ("pixels/front",)
