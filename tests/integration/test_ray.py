"""Evaluation on a real Ray cluster of several nodes: the same episodes as on one machine."""

from __future__ import annotations

import pytest
from ray_cluster import ray_cluster

import polyarm

pytestmark = [pytest.mark.slow]
TOYS = ["toy/count-3", "toy/count-10", "toy/count-50"]


def facts(results):
    return {e.key: (e.outcome, e.steps, e.action_hash, e.total_reward) for e in results.episodes}


@pytest.fixture(scope="module")
def nodes():
    with ray_cluster() as nodes:
        nodes.add()
        yield nodes


def test_two_nodes_play_what_one_machine_plays(nodes):
    ours = polyarm.evaluate("random", TOYS, episodes=20, num_envs=3, ray="auto")
    assert facts(ours) == facts(polyarm.evaluate("random", TOYS, episodes=20, num_envs=3))
    assert ours.missing == 0
