"""The scripted expert only reads, and does the same again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from libero_play import SUITE, make

from polyarm.errors import InvalidCall
from polyarm.suites.libero import assets, catalogue

pytestmark = pytest.mark.simulator


def solve(env: Any) -> tuple[list[Any], Any]:
    """The expert's actions until success, and the simulator's state then."""
    env.reset(options={"episode": 0})
    actions = []
    while len(actions) < env.max_steps:
        actions.append(env.expert_action())
        _, _, solved, _, _ = env.step(actions[-1])
        if solved:
            return actions, env.sim_state()
    pytest.fail("not solved")


def test_the_expert_solves_without_a_trace_of_itself() -> None:
    env = make("libero_object/0")
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    actions, state = solve(env)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    again, same_state = solve(env)
    np.testing.assert_array_equal(again, actions)
    np.testing.assert_array_equal(same_state, state)
    env.reset(options={"episode": 0})
    for action in actions:
        _, reward, solved, _, _ = env.step(action)
    assert (reward, solved) == (1.0, True)
    np.testing.assert_array_equal(env.sim_state(), state)


@pytest.mark.parametrize("options", [{"control": "absolute"}, {"gripper": "oft"}])
def test_an_expert_that_would_be_misunderstood_is_refused(options: dict[str, Any]) -> None:
    env = make("libero_object/0", **options)
    env.reset(options={"episode": 0})
    with pytest.raises(InvalidCall, match="control='relative'"):
        env.expert_action()


def test_tasks_that_are_not_pick_and_place_have_no_expert() -> None:
    env = make("libero_goal/0")
    env.reset(options={"episode": 0})
    with pytest.raises(InvalidCall, match="no expert for the goal"):
        env.expert_action()


def test_as_many_tasks_have_an_expert_as_the_documents_say() -> None:
    from libero.libero.envs import bddl_utils

    from polyarm.suites.libero.expert import can_solve

    folder = assets.package_folder() / "bddl_files"
    counts = dict.fromkeys(SUITE.sets(), 0)
    for task in catalogue.tasks().values():
        problem = bddl_utils.robosuite_parse_problem(str(folder / task.bddl_file))
        counts[task.suite] += can_solve(problem)
    assert counts["libero_spatial"] == counts["libero_object"] == 10
    assert (counts["libero_goal"], counts["libero_10"], counts["libero_90"]) == (6, 6, 61)
