"""What a learner sees and does fits the spaces of its envs."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from polyarm.errors import InvalidCall
from polyarm.training.spaces import Acts, Sight

IMAGE = Box(0, 255, (6, 8, 3), np.uint8)


def test_actions_are_within_their_bounds_where_there_are_any():
    low = np.array([-2, -np.inf, 0], np.float32)
    acts = Acts.of(Box(low, np.array([2, np.inf, 1], np.float32)))
    actions = acts.to_env(np.array([[100.0, 100.0, -100.0], [0.0, 0.0, 0.0], [0.5, -3.0, 1.0]]))
    assert actions.dtype == np.float32
    assert actions.tolist() == [[2, 100, 0], [0, 0, 0.5], [1, -3, 1]]


def test_actions_at_a_bound_do_not_leave_it_by_rounding():
    bounds = np.array([0.1, 0.7, 1 / 3], np.float32)
    acts = Acts.of(Box(-bounds, 3 * bounds))
    random = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32) * 2
    actions = acts.to_env(random)
    assert (actions >= -bounds).all()
    assert (actions <= 3 * bounds).all()


def test_displacements_of_a_hand_do_not_turn_it():
    acts = Acts.of(Box(-1, 1, (8,), np.float32), poses=True)
    assert acts.outputs == 4  # nothing is learnt about the turn
    actions = acts.to_env(np.full((2, 3, 4), 0.5))
    assert actions.shape == (2, 3, 8)
    assert actions[0, 0].tolist() == [0.5, 0.5, 0.5, 0, 0, 0, 1, 0.5]


def test_choices_are_counted_from_the_first():
    acts = Acts.of(Discrete(3, start=5))
    assert (acts.discrete, acts.outputs) == (True, 3)
    assert acts.to_env(np.array([[0], [2]])).tolist() == [[5], [7]]


def test_without_bounds_numbers_are_what_they_are():
    most = np.finfo(np.float32).max
    low, high = np.array([-np.inf, -most, 0], "f"), np.array([np.inf, most, np.inf], "f")
    acts = Acts.of(Box(low, high))
    assert acts.to_env(np.array([7, -7, -7], "f")).tolist() == [7, -7, 0]


@pytest.mark.parametrize(
    "space", [Box(0, 5, (2,), np.int64), gymnasium.spaces.MultiBinary(3), Dict(a=Discrete(2))]
)
def test_other_actions_are_refused(space):
    with pytest.raises(InvalidCall, match="a Box of real numbers or Discrete, found"):
        Acts.of(space)


def test_state_and_frames_are_seen_and_other_keys_are_not():
    state = Box(-1, 1, (2, 3), np.float64)
    sight = Sight.of(Dict({"state": state, "pixels/front": IMAGE, "goal": Box(0, 1, (1,))}))
    assert (sight.state_size, sight.pictures, sight.shapes) == (6, ("pixels/front",), ((6, 8, 3),))
    obs = {"state": np.zeros((4, 2, 3)), "pixels/front": np.zeros((4, 6, 8, 3)), "goal": None}
    leaves = sight.leaves(obs)
    assert leaves["state"].shape == (4, 6)
    assert leaves["pixels/front"].shape == (4, 6, 8, 3)
    ring = sight.leaves({"state": np.zeros((9, 4, 2, 3)), "pixels/front": 0}, leading=2)
    assert ring["state"].shape == (9, 4, 6)


def test_an_array_is_a_state_or_a_frame():
    assert Sight.of(Box(-1, 1, (5,))).state_size == 5
    frame = Sight.of(IMAGE)
    assert (frame.state_size, len(frame.pictures)) == (0, 1)
    assert next(iter(frame.leaves(np.zeros((2, 6, 8, 3))).values())).shape == (2, 6, 8, 3)


@pytest.mark.parametrize("space", [Discrete(4), Dict(goal=Box(0, 1, (1,)))])
def test_nothing_to_see_is_refused(space):
    with pytest.raises(InvalidCall, match="to look at, found"):
        Sight.of(space)


@pytest.mark.parametrize(
    "acts",
    [Acts.of(Box(-2, np.inf, (3,), np.float64)), Acts.of(Discrete(3, start=-1)),
     Acts.of(Box(-1, 1, (8,), np.float32), poses=True)],
)  # fmt: skip
def test_they_are_the_same_after_a_file(acts):
    assert Acts.from_dict(acts.as_dict()) == acts


def test_sight_is_the_same_after_a_file():
    sight = Sight.of(Dict({"state": Box(-1, 1, (2,)), "pixels/front": IMAGE}))
    assert Sight.from_dict(sight.as_dict()) == sight


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 255, (3, 40, 30), np.uint8),
        Dict({"pixels/a": Box(0, 255, (3, 40, 30), np.uint8)}),
        Dict({"state": Box(-1, 1, (2,)), "pixels/a": Box(0, 1, (40, 30, 3))}),
    ],
)
def test_frames_that_are_laid_out_otherwise_are_refused(space):
    with pytest.raises(InvalidCall, match=r"uint8 \(H, W, C\) with 1, 3 or 4 channels"):
        Sight.of(space)
