from __future__ import annotations

import os
import signal
from functools import partial

import numpy as np
import pytest

from polyarm import EnvCallError, InvalidCall
from polyarm.contracts import STREAM
from polyarm.testing import CrashingEnv, NoisyEnv
from polyarm.vector.board import EPISODIC, SEEDED, Board, Command, board_segment
from polyarm.vector.episodes import Episodes

SLOTS = np.arange(4)


def zeros(num_envs=4):
    return np.zeros((num_envs, 2), np.float32)


def play(env, episodes):
    """Origins of each slot's episodes, in order: the index modulo 1000."""
    origins = [env.reset()[0]["state"][:, 0].copy()]
    while len(origins) < episodes:
        obs, _, _, _, info = env.step(zeros(env.num_envs))
        if (info["steps"] == 0).all():
            origins.append(obs["state"][:, 0].copy())
    return np.array(origins)


@pytest.mark.parametrize(
    ("num_envs", "num_workers"), [(1, 0), (3, 0), (5, 0), (1, 1), (4, 4), (5, 2), (4, 1)]
)
def test_the_index_follows_from_slot_and_turn_at_any_worker_count(make_any, num_envs, num_workers):
    env = make_any("toy/count-3", num_envs=num_envs, num_workers=num_workers)
    found = play(env, 4)
    turn, slot = np.mgrid[:4, :num_envs]
    np.testing.assert_array_equal(found, turn * num_envs + slot)
    assert env.episodes.tolist() == (3 * num_envs + np.arange(num_envs)).tolist()


def test_same_step_episodes_have_the_same_indices(make):
    env = make("toy/count-3", autoreset="same_step")
    env.reset()
    for turn in range(1, 4):
        for _ in range(3):
            obs, *_ = env.step(zeros())
        assert obs["state"][:, 0].tolist() == [turn * 4 + slot for slot in range(4)]
        assert env.episodes.tolist() == [turn * 4 + slot for slot in range(4)]


def test_a_seed_selects_a_stream(make):
    env = make("toy/count-3")
    for seed in (2, 0):
        env.reset(seed=seed)
        assert env.episodes.tolist() == [seed * STREAM + slot for slot in range(4)]
    obs, _ = env.reset(seed=2)
    origins = [(2 * STREAM + slot) % 1000 for slot in range(4)]
    assert obs["state"][:, 0].tolist() == origins
    env.reset()
    assert env.episodes.tolist() == [2 * STREAM + 4 + slot for slot in range(4)]
    env.reset(seed=[3, None, 1, None])
    assert env.episodes.tolist() == [3 * STREAM, 2 * STREAM + 9, STREAM + 2, 2 * STREAM + 11]


def test_the_start_and_the_very_episodes_can_be_chosen(make):
    env = make("toy/count-3")
    obs, _ = env.reset(options={"start": 100})
    assert obs["state"][:, 0].tolist() == [100, 101, 102, 103]
    env.reset(seed=1, options={"start": 5})
    assert env.episodes.tolist() == [STREAM + 5 + slot for slot in range(4)]
    obs, _ = env.reset(options={"episodes": [7, 7, 3, 900]})
    assert obs["state"][:, 0].tolist() == [7, 7, 3, 900]
    mask = np.array([False, True, False, True])
    obs, _ = env.reset(options={"episodes": [50, 60], "reset_mask": mask})
    assert obs["state"][:, 0].tolist() == [7, 50, 3, 60]
    env.send_reset([2], options={"episodes": 42})
    assert env.recv().obs["state"][0, 0] == 42
    assert env.episodes.tolist() == [7, 50, 42, 60]


@pytest.mark.parametrize(
    "options", [{"episodes": [-1, 0, 0, 0]}, {"episodes": [1, 2]}, {"episodes": np.zeros((4, 2))}]
)
def test_episodes_that_cannot_be_are_refused(make_any, options):
    env = make_any("toy/count-3")
    env.reset()
    with pytest.raises(InvalidCall, match="episode"):
        env.reset(options=options)
    env.step(zeros())


LAST_SEED = 2**31 - 1
"""The last stream whose indices are int64."""


def test_the_last_seed_of_a_suite_has_a_whole_stream(make_any):
    env = make_any("toy/count-3", seed=LAST_SEED)
    env.reset()
    assert env.episodes.tolist() == [LAST_SEED * STREAM + slot for slot in range(4)]
    env.reset(seed=LAST_SEED, options={"start": STREAM - 4})
    assert env.episodes.tolist() == [2**63 - 4 + slot for slot in range(4)]


@pytest.mark.parametrize(
    ("seed", "options", "told"),
    [
        (LAST_SEED + 1, {}, f"seed of a suite must be from 0 to {LAST_SEED}, found {2**31}"),
        (4_000_000_000, {}, f"to {LAST_SEED}, found 4000000000"),
        (-1, {}, "found -1"),
        (1.7, {}, "seed of a suite must be a whole number, found 1.7"),
        ("1", {}, "whole number|needs one per slot"),
        ([3, -1, 0, 0], {}, "found -1"),
        ([3, 1, 2**31, 0], {}, f"found {2**31}"),
        (np.array([3, 1.5, 2, 0]), {}, "whole number, found"),
        (None, {"start": -3}, r"options\['start'\] must be from 0 .*found -3"),
        (None, {"start": 2.7}, r"options\['start'\] must be a whole number, found 2.7"),
        (LAST_SEED, {"start": STREAM - 3}, f"index must be from 0 .*found {2**63}"),
        (None, {"episodes": 2**63}, f"index must be from 0 .*found {2**63}"),
        (None, {"episodes": [1, 2, 3, -4]}, "found -4"),
    ],
    ids=str,
)
def test_seeds_and_indices_that_cannot_be_are_refused_before_anything_changes(
    make_any, seed, options, told
):
    env = make_any("toy/count-3")
    env.reset(seed=5)
    with pytest.raises(InvalidCall, match=told):
        env.reset(seed=seed, options=options)
    env.reset()
    assert env.episodes.tolist() == [5 * STREAM + 4 + slot for slot in range(4)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_default_seed_that_cannot_be_is_refused_and_nothing_is_left_running(
    make_any, num_workers
):
    with pytest.raises(InvalidCall, match=f"from 0 to {LAST_SEED}, found {2**31}"):
        make_any("toy/count-3", num_workers=num_workers, seed=2**31)


@pytest.mark.parametrize("seed", [2**62, -1, 1.5, [1, 2, 3, 0.5]])
def test_seeds_of_gymnasium_envs_are_whole_numbers_too(make_any, seed):
    env = make_any(NoisyEnv, seed=2**32 - 1)
    env.reset()
    with pytest.raises(InvalidCall, match="a seed must be"):
        env.reset(seed=seed)


def test_gymnasium_envs_know_no_episode_indices(make_any):
    env = make_any(NoisyEnv)
    for options in ({"start": 3}, {"episodes": [1, 2, 3, 4]}):
        with pytest.raises(InvalidCall, match="only suites know episode indices"):
            env.reset(options=options)
    env.reset(seed=0)


def test_the_default_seed_is_every_slots_first(make_any):
    env = make_any("toy/count-3", seed=6)
    env.send_reset([0])
    env.recv()
    env.send_reset([1, 2, 3])
    env.recv(3)
    assert env.episodes.tolist() == [6 * STREAM + slot for slot in range(4)]


def test_seeds_may_come_in_an_array(make_any):
    env = make_any("toy/count-3")
    env.reset(seed=np.array([3, 1, 2, 0]))
    assert env.episodes.tolist() == [3 * STREAM, STREAM + 1, 2 * STREAM + 2, 3]


def test_envs_forked_from_one_builder_do_not_share_their_draws(make_any):
    class EagerEnv(NoisyEnv):
        def __init__(self):
            super().__init__()
            self.np_random.random()  # the generator exists before the fork

    env = make_any(EagerEnv, num_workers=4, start="built")
    obs, _ = env.reset()
    assert len(np.unique(obs[:, 0])) == 4
    one_by_one = make_any(EagerEnv, num_workers=4, start="built")
    first = []
    for slot in range(4):
        one_by_one.send_reset([slot])
        first.append(float(one_by_one.recv().obs[0, 0]))
    assert len(set(first)) == 4


# What a failed env draws next.


def test_an_episode_that_fails_uses_up_its_index():
    episodes = Episodes(4, episodic=True, seed=None, scatter=False)
    episodes.begin(SLOTS, None, {})
    episodes.consumed(SLOTS)
    episodes.failed(2, resetting=False)  # in a step: the next index is untouched
    assert episodes.next.tolist() == [4, 5, 6, 7]
    episodes.failed(1, resetting=True)  # in its reset: that index is gone
    assert episodes.next.tolist() == [4, 9, 6, 7]


def test_a_restarted_gymnasium_env_is_reseeded_from_its_seed_and_its_restarts():
    segment = board_segment(4, 1)
    board = Board(bytearray(segment.nbytes), 4, 1)

    def reseeds(seed, failures):
        episodes = Episodes(4, episodic=False, seed=None, scatter=False)
        episodes.begin(SLOTS, seed, {})
        episodes.write(board, slice(None), 0)
        given = board.commands[:, Command.SEED].tolist()
        assert given == [seed + slot for slot in range(4)]
        assert (board.commands[:, Command.FLAGS] == SEEDED).all()
        episodes.consumed(SLOTS)
        found = []
        for _ in range(failures):
            episodes.failed(1, resetting=False)
            episodes.write(board, slice(None), 0)
            assert board.commands[:, Command.FLAGS].tolist() == [0, SEEDED, 0, 0]
            found.append(int(board.commands[1, Command.SEED]))
            episodes.consumed(SLOTS)
        return found

    assert reseeds(5, 3) == reseeds(5, 3)
    assert len({*reseeds(5, 3), *reseeds(6, 3), 5, 6}) == 8
    assert EPISODIC != SEEDED


def noise_after(env, fail):
    env.reset(seed=5)
    fail(env)
    return [np.array(env.step(zeros())[0]) for _ in range(4)]


def test_what_a_restarted_env_draws_is_the_same_in_every_run(make, make_any, tmp_path):
    class CrashingNoisyEnv(NoisyEnv):
        def step(self, action):
            if action[0] > 0.9:
                raise RuntimeError("as asked")
            return super().step(action)

    def fail(env):
        actions = zeros()
        actions[1] = 1
        *_, truncated, info = env.step(actions)
        assert truncated[1]
        assert info["error"][1].message == "raised RuntimeError: as asked"

    factory = partial(CrashingNoisyEnv, end_probability=0.0)
    first, second = noise_after(make(factory), fail), noise_after(make_any(factory), fail)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("then", ["reset", "step"])
def test_an_env_lost_while_idle_is_reseeded_too(make_any, then):
    def run():
        env = make_any(partial(NoisyEnv, end_probability=1.0), num_envs=2, num_workers=2)
        env.reset(seed=5)
        env.step(zeros(2))  # ends every episode: the next step resets
        os.kill(env.worker_pids[1], signal.SIGKILL)
        with pytest.raises(EnvCallError, match="SIGKILL"):
            env.get_attr("end_probability")
        return np.array(env.reset()[0] if then == "reset" else env.step(zeros(2))[0])

    np.testing.assert_array_equal(run(), run())


def test_a_failed_episode_is_not_played_again_by_the_next_step(make):
    env = make(partial(CrashingEnv, at=2, length=3))
    env.reset(seed=10)
    env.step(zeros())
    _, _, _, truncated, info = env.step(zeros())
    assert truncated.all()
    assert {error.phase for error in info["error"]} == {"step"}
    obs, _, _, truncated, info = env.step(zeros())
    assert not truncated.any()
    assert info["steps"].tolist() == [0] * 4
    assert "error" not in info
    assert obs["state"][:, 1].tolist() == [0] * 4
    assert not set(obs["state"][:, 0]) & {10, 11, 12, 13}


@pytest.mark.parametrize(("num_workers", "start"), [(0, "auto"), (2, "imports"), (None, "built")])
def test_a_switched_env_is_seeded_anew_from_its_slots_seed(make_any, num_workers, start):
    """Forked from one built env, all had played the same; others something new each time."""

    class Level(NoisyEnv):
        def __init__(self):
            super().__init__()
            self.np_random.random()

    class Other(Level):
        pass

    def play():
        env = make_any(Level, num_envs=3, num_workers=num_workers, start=start, seed=0)
        env.reset()
        env.switch_task([0, 1, 2], Other)
        return env.reset()[0].copy()

    first = play()
    assert len({row.tobytes() for row in first}) == 3
    np.testing.assert_array_equal(first, play())
