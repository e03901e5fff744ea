"""Figures stay inside their frames, whatever the numbers."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarm.report.figures import curve, histogram, number, round_up, time_split

values = st.lists(st.floats(0, 1e9), max_size=60)


@given(values, values)
def test_bars_fill_the_frame_and_hold_every_episode(won, lost):
    figure = histogram("Steps", won, lost, "")
    if not won and not lost:
        assert figure is None
        return
    heights = [bar.success + bar.failure for bar in figure.bars]
    assert max(heights) == pytest.approx(100)
    assert all(bar.x >= 0 and bar.x + bar.width <= 100.001 for bar in figure.bars)
    held = sum(heights) / 100 * figure.tallest
    assert held == pytest.approx(len(won) + len(lost))
    assert 0 <= figure.median <= 100


def test_a_histogram_leaves_out_what_is_no_number():
    assert histogram("Time", [math.nan, math.inf], [], " s") is None
    assert histogram("Time", [0.0, 0.0], [], " s").tallest == 2
    assert histogram("Time", [5e-324], [0.0], " s").tallest == 2


@given(st.floats(1e-6, 1e12))
def test_axes_end_at_a_round_number_close_by(value):
    end = round_up(value)
    assert value <= end * (1 + 1e-6)
    assert end <= 2 * value


def test_what_the_parts_do_not_explain_is_shown_as_other():
    parts = time_split({"policy": 2.0, "sim": 5.0, "frames": 0.0, "odd": 1.0}, total=10.0)
    assert [part.name for part in parts] == ["sim", "policy", "other", "odd"]
    assert [part.share for part in parts] == pytest.approx([50, 20, 20, 10])


def test_parts_that_exceed_the_total_still_fill_the_bar():
    assert sum(
        part.share for part in time_split({"sim": 8.0, "policy": 4.0}, 10.0)
    ) == pytest.approx(100)
    assert time_split({}) == ()


def test_the_curve_is_spaced_by_training_steps(results):
    runs = {name: results({"toy/a": "sf"}) for name in ("p-100", "p-200", "p-500")}
    first, second, third = curve(runs).points
    assert second.x - first.x == pytest.approx((third.x - second.x) / 3)
    assert first.step == "100"
    assert first.low < first.y < first.high


def test_policies_without_steps_are_spaced_evenly(results):
    figure = curve({name: results() for name in ("expert", "random", "p-3")})
    assert not figure.has_steps
    assert [point.step for point in figure.points] == ["expert", "random", "p-3"]


def test_labels_of_many_checkpoints_do_not_run_into_one_another(results):
    figure = curve({f"p-{step}": results() for step in range(0, 1001, 10)})
    shown = [point.x for point in figure.points if point.step]
    assert figure.points[0].step == "0"
    assert figure.points[-1].step == "1,000"
    assert min(b - a for a, b in itertools.pairwise(shown)) >= 8


def test_a_curve_needs_two_rates(results):
    assert curve({"p-1": results(), "p-2": results({"toy/a": "e"})}) is None


def test_numbers_are_short():
    assert [number(x) for x in (0, 0.1234, 12.34, 1234.5, 1e-9, math.nan)] == [
        "0", "0.123", "12.3", "1,234", "1.00e-09", "nan"
    ]  # fmt: skip
