"""Which episode an initial state stands for, and whose noise it meets."""

from __future__ import annotations

import numpy as np
import pytest

from polyarm.compat.ript.keys import KeyMaker, checked_states
from polyarm.contracts import STREAM
from polyarm.errors import InvalidCall

TABLE = np.random.default_rng(0).normal(size=(6, 5))
TASK = "libero_goal/0"


def test_a_state_of_the_table_is_the_episode_with_its_number():
    planned = KeyMaker(0, 0).of_states(TASK, TABLE[[4, 1]], TABLE, 2)
    assert [(key.task, key.index, key.repeat) for key in planned.keys] == [
        (TASK, 4, 0),
        (TASK, 1, 0),
    ]
    assert not planned.reset_options


def test_states_are_played_in_turn_and_equal_ones_are_repeats():
    planned = KeyMaker(0, 0).of_states(TASK, TABLE[[3, 3, 5]], TABLE, 7)
    found = [(key.index, key.repeat) for key in planned.keys]
    assert found == [(3, 0), (3, 1), (5, 0), (3, 2), (3, 3), (5, 1), (3, 4)]


def test_a_foreign_state_is_played_as_it_is_in_one_scene_for_all_its_rollouts():
    foreign = TABLE[2].astype(np.float32).astype(np.float64)
    planned = KeyMaker(0, 0).of_states(TASK, np.tile(foreign, (3, 1)), TABLE, 3)
    assert len({key.index for key in planned.keys}) == 1
    assert [key.repeat for key in planned.keys] == [0, 1, 2]
    for key in planned.keys:
        np.testing.assert_array_equal(planned.reset_options[key]["init_state"], foreign)
    (again,) = KeyMaker(0, 3).of_states(TASK, foreign[np.newaxis], TABLE, 1).keys
    assert again.index == planned.keys[0].index


def test_foreign_states_have_scenes_of_their_own():
    foreign = TABLE + 0.5
    keys = KeyMaker(0, 0).of_states(TASK, foreign, TABLE, len(foreign)).keys
    assert len({key.index for key in keys}) > 1


def test_foreign_and_known_states_of_one_number_are_not_mixed_up():
    maker = KeyMaker(0, 0)
    foreign = np.zeros((1, 5))
    planned = maker.of_states(TASK, np.concatenate([TABLE, foreign]), TABLE, 7)
    assert len({*planned.keys}) == 7
    assert list(planned.reset_options) == [planned.keys[-1]]


def test_every_call_has_new_noise_for_training_and_the_same_for_scores():
    maker = KeyMaker(0, 0)
    calls = [maker.fresh(TASK, range(3)).keys for _ in range(3)]
    assert len({key for keys in calls for key in keys}) == 9
    assert [key.index for key in calls[2]] == [0, 1, 2]
    assert maker.scored(TASK, 3) == list(calls[0]) == maker.scored(TASK, 3)


def test_no_two_ranks_ever_share_an_episode():
    played = [KeyMaker(0, rank) for rank in range(4)]
    keys = [
        key
        for maker in played
        for _ in range(5)
        for key in (*maker.fresh(TASK, range(4)).keys, *maker.scored("libero_goal/1", 2))
    ]
    training = [key for key in keys if key.task == TASK]
    assert len({*training}) == len(training) == 80
    assert len({key for key in keys if key.task != TASK}) == 4 * 2
    noises = {key.generator().random() for key in training if key.index == 0}
    assert len(noises) == 20


def test_another_seed_is_another_stream_of_episodes():
    assert [key.index for key in KeyMaker(3, 0).scored(TASK, 2)] == [3 * STREAM, 3 * STREAM + 1]


def test_states_may_come_as_a_tensor_or_alone():
    torch = pytest.importorskip("torch")
    states = checked_states(torch.tensor(TABLE), TABLE, "task")
    np.testing.assert_array_equal(states, TABLE)
    assert checked_states(TABLE[0], TABLE, "task").shape == (1, 5)


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (np.zeros((2, 8)), r"shape \(n, 5\).*found \(2, 8\)"),
        (np.zeros((0, 5)), r"found \(0, 5\)"),
        (np.zeros((1, 2, 5)), r"found \(1, 2, 5\)"),
        (np.array([[0.0] * 5, [np.nan] * 5]), "initial state 1 of put_it_there is not finite"),
    ],
)
def test_states_of_another_kind_are_refused(states, told):
    with pytest.raises(InvalidCall, match=told):
        checked_states(states, TABLE, "put_it_there")
