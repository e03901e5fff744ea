"""LeRobot's seeds and our episodes, there and back."""

from dataclasses import replace

import numpy as np
import pytest

from polyarm.compat.lerobot.seeds import Rollouts, episode_indices
from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import InvalidCall
from polyarm.suites.libero.protocols import PROTOCOLS
from polyarm.suites.libero.suite import Libero


def libero_seed(index, options):
    """What LIBERO's simulator is seeded with in an episode."""
    protocol = PROTOCOLS["lerobot"]
    return replace(protocol, seed=options.get("first_seed", protocol.seed)).seeding("any", index)[0]


@pytest.mark.parametrize("start", [1000, 1234, 999, 7, 0])
def test_a_libero_episode_has_the_number_and_the_seed_that_lerobot_gives_it(start):
    rollouts = Rollouts("libero", 3)
    for rollout in range(4):
        first = start + 3 * rollout
        indices, options = rollouts.begin([first, first + 1, first + 2])
        assert [index % STREAM for index in indices] == [3 * rollout + place for place in range(3)]
        assert [libero_seed(index, options) for index in indices] == [first, first + 1, first + 2]


def test_lerobots_default_seeds_are_the_episodes_of_the_protocol():
    assert Rollouts("libero", 4).begin([1000, 1001, 1002, 1003]) == ([0, 1, 2, 3], {})
    assert episode_indices("libero", 0, 3, None) == ([0, 1, 2], {})


def test_the_first_seed_is_an_option_of_the_suite_where_the_protocol_has_seeds():
    task = EnvSpec("libero", "libero_goal/0")
    checked = Libero().check(task.with_options(protocol="lerobot", first_seed=0))
    assert checked.options["first_seed"] == 0
    assert Libero().check(task.with_options(protocol="lerobot")).options["first_seed"] == 1000
    with pytest.raises(InvalidCall, match="would change nothing"):
        Libero().check(task.with_options(first_seed=3))


def test_elsewhere_the_seed_is_the_index():
    assert Rollouts("metaworld", 2).begin(1000) == ([1000, 1001], {})
    assert Rollouts("callable", 2).begin(np.array([5, 3])) == ([5, 3], {})


def test_without_seeds_episodes_count_up_from_zero():
    rollouts = Rollouts("metaworld", 2)
    assert [rollouts.begin(None).indices for _ in range(2)] == [[0, 1], [2, 3]]


def test_a_second_evaluation_with_the_same_seeds_plays_the_same_episodes():
    rollouts = Rollouts("libero", 2)
    first = [rollouts.begin([1000, 1001]), rollouts.begin([1002, 1003])]
    again = [rollouts.begin([1000, 1001]), rollouts.begin([1002, 1003])]
    assert first == again


@pytest.mark.parametrize("seed", [[1, 2], [1.5, 2.5, 3.5], ["a", "b", "c"], [1, None, 2], -4])
def test_seeds_that_no_episode_stands_for_are_refused(seed):
    with pytest.raises(InvalidCall, match="seed"):
        Rollouts("metaworld", 3).begin(seed)


def test_a_libero_seed_below_the_episodes_number_is_refused():
    with pytest.raises(InvalidCall, match="number n needs a seed from n"):
        Rollouts("libero", 3).begin([0, 0, 0])
