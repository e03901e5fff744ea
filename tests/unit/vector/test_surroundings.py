"""Variables that several set and give up, in any order."""

from __future__ import annotations

import pytest

from polyarm.vector.surroundings import Surroundings


@pytest.mark.parametrize("before", [{}, {"GL": "glfw", "OTHER": "1"}])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_last_to_leave_finds_everything_as_the_first_did(before, order):
    environment = dict(before)
    surroundings = Surroundings(environment)
    surroundings.enter("a", {"GL": "egl"})
    surroundings.enter("b", {"GL": "osmesa", "MORE": "2"})
    assert environment == {**before, "GL": "osmesa", "MORE": "2"}
    surroundings.leave(order[0])
    assert environment["GL"] == {"a": "osmesa", "b": "egl"}[order[0]]
    surroundings.leave(order[0])
    surroundings.leave(order[1])
    assert environment == before


def test_what_somebody_else_has_changed_since_stays():
    environment = {"GL": "glfw"}
    surroundings = Surroundings(environment)
    surroundings.enter("a", {"GL": "egl"})
    environment["GL"] = "mine"
    surroundings.leave("a")
    assert environment == {"GL": "mine"}
