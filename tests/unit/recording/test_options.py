"""Options are read and refused before anything is recorded."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from polyarm.errors import UnknownName
from polyarm.recording.video import Record, VideoOptions, parse_record


def test_choices_of_episodes_are_read():
    assert parse_record("all") == Record("all")
    assert parse_record("failures") == Record("failures")
    assert parse_record("first:12") == Record("first", 12)
    assert parse_record("none") == Record("none")


@pytest.mark.parametrize(
    "text", ["", "some", "first", "first:", "first:0", "first:-1", "first:x", "first:²", "all:3"]
)
def test_an_unknown_choice_of_episodes_is_answered_with_the_valid_ones(text: str):
    with pytest.raises(UnknownName, match=r"first:3") as caught:
        parse_record(text)
    for valid in ("all", "failures", "first:N", "none"):
        assert valid in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 0},
        {"fps": 0.0},
        {"fps": float("nan")},
        {"env_fps": -1.0},
        {"env_fps": float("inf")},
        {"cameras": ()},
        {"layout": "below"},
        {"record": "some"},
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(options)).rstrip("s")):
        VideoOptions(**{"folder": "videos", "cameras": ("corner",), **options})


def test_even_a_very_slow_rate_is_positive():
    assert VideoOptions(folder="videos", cameras=("a",), fps=1e-5).rate > 0
    assert VideoOptions(folder="videos", cameras=("a",), fps=50).rate == Fraction(50)
