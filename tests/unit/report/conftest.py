"""Makes episodes and results in a line."""

import pytest

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.report.results import Results

OUTCOMES = {"s": "success", "f": "failure", "e": "error"}


def make_episode(task="toy/count-3", index=0, outcome="success", **values):
    suite, _, name = task.partition("/")
    key = EpisodeKey(suite, name, index, values.pop("repeat", 0))
    fields = {"steps": 10, "total_reward": 1.5, "seconds": 0.5} | values
    return EpisodeResult(key, outcome, **fields)


def make_results(outcomes=None, policy="", **fields):
    """Results from ``{"toy/count-3": "ssfe"}``: a letter per episode."""
    episodes = tuple(
        make_episode(task, index, OUTCOMES[letter], policy=policy)
        for task, letters in (outcomes or {"toy/count-3": "ssf"}).items()
        for index, letter in enumerate(letters)
    )
    return Results(episodes, fields.pop("planned", len(episodes)), **fields)


@pytest.fixture(scope="session")
def episode():
    return make_episode


@pytest.fixture(scope="session")
def results():
    return make_results
