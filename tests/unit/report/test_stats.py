"""Intervals and tests against tables, brute force and what must hold for all counts."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarm.errors import InvalidCall, MissingExtra
from polyarm.report.stats import (
    Rate,
    exact_binomial,
    exact_mcnemar,
    holm,
    macro_rate,
    paired_difference,
    pairs_needed,
    success_rate,
)

counts = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_the_wilson_interval_is_that_of_the_literature():
    rate = success_rate(81, 263)  # Newcombe 1998, table I
    assert (rate.low, rate.high) == (
        pytest.approx(0.2553, abs=5e-5),
        pytest.approx(0.3662, abs=5e-5),
    )
    none_of_twenty = success_rate(0, 20)
    assert (none_of_twenty.low, none_of_twenty.high) == (0.0, pytest.approx(0.1611, abs=5e-5))


def test_without_episodes_there_is_no_rate():
    assert success_rate(0, 0) == Rate(0, 0, None, None, None)
    assert macro_rate([]).rate is None
    assert macro_rate([success_rate(0, 0)]).rate is None


@pytest.mark.parametrize(("successes", "episodes"), [(3, 2), (-1, 2)])
def test_counts_that_cannot_be_are_refused(successes, episodes):
    with pytest.raises(InvalidCall, match=f"{successes} successes in {episodes} episodes"):
        success_rate(successes, episodes)


@given(counts)
def test_a_rate_lies_inside_its_interval_and_the_interval_inside_0_and_1(count):
    rate = success_rate(*count)
    assert 0 <= rate.low <= rate.rate <= rate.high <= 1
    assert rate.high > rate.low


@given(counts)
def test_failures_mirror_successes(count):
    successes, episodes = count
    rate, mirrored = success_rate(successes, episodes), success_rate(episodes - successes, episodes)
    assert rate.low == pytest.approx(1 - mirrored.high, abs=1e-12)


@given(st.lists(counts, min_size=1, max_size=12))
def test_the_mean_of_tasks_lies_inside_an_interval_between_0_and_1(tasks):
    rates = [success_rate(*task) for task in tasks]
    macro = macro_rate(rates)
    assert macro.rate == pytest.approx(sum(rate.rate for rate in rates) / len(rates))
    assert 0 <= macro.low <= macro.rate <= macro.high <= 1
    assert macro.episodes == sum(rate.episodes for rate in rates)


@given(counts)
def test_the_mean_of_one_task_is_its_rate_with_its_wilson_interval(count):
    rate, macro = success_rate(*count), macro_rate([success_rate(*count)])
    assert macro.low == pytest.approx(rate.low, abs=1e-12)
    assert macro.high == pytest.approx(rate.high, abs=1e-12)


def test_the_mean_of_tasks_counts_every_task_the_same():
    macro = macro_rate([success_rate(0, 10), success_rate(90, 90), success_rate(0, 0)])
    assert macro.rate == 0.5


def test_the_interval_of_the_mean_of_tasks_covers_as_often_as_it_says():
    truths, episodes = (0.95, 0.5, 0.1), 12
    mean = sum(truths) / len(truths)
    covered = 0.0
    rates = [success_rate(k, episodes) for k in range(episodes + 1)]
    chances = [
        [math.comb(episodes, k) * p**k * (1 - p) ** (episodes - k) for k in range(episodes + 1)]
        for p in truths
    ]
    for i, a in enumerate(rates):
        for j, b in enumerate(rates):
            for k, c in enumerate(rates):
                macro = macro_rate([a, b, c])
                if macro.low <= mean <= macro.high:
                    covered += chances[0][i] * chances[1][j] * chances[2][k]
    assert 0.94 < covered < 0.98


def test_mcnemar_is_a_fair_coin_over_the_pairs_that_differ():
    assert exact_mcnemar(0, 0) == 1.0
    assert exact_mcnemar(0, 6) == pytest.approx(2 / 2**6)
    assert exact_mcnemar(5, 5) == 1.0
    assert exact_mcnemar(3, 12) == pytest.approx(exact_mcnemar(12, 3))


def test_the_exact_binomial_test_asks_for_any_rate():
    assert exact_binomial(0, 0, 0.3) == 1.0
    assert exact_binomial(0, 5, 0.5) == pytest.approx(2 / 2**5)


def pairs():
    tables = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 100))
    return tables.filter(lambda table: sum(table) > 0)


@given(pairs())
def test_a_paired_difference_lies_inside_its_interval(table):
    only_a, only_b, alike = table
    found = paired_difference(only_a, only_b, only_a + only_b + alike)
    assert -1 <= found.low <= found.estimate <= found.high <= 1


@given(pairs())
def test_swapping_the_runs_swaps_the_sign(table):
    only_a, only_b, alike = table
    n = only_a + only_b + alike
    there, back = paired_difference(only_a, only_b, n), paired_difference(only_b, only_a, n)
    assert there.estimate == -back.estimate
    assert there.low == pytest.approx(-back.high, abs=1e-12)


def test_the_paired_interval_follows_bonett_and_price():
    n, only_a, only_b = 50, 4, 13
    a, b = 5 / 52, 14 / 52
    half = 1.959963984540054 * math.sqrt((a + b - (b - a) ** 2) / 52)
    found = paired_difference(only_a, only_b, n)
    assert found.estimate == pytest.approx(9 / 50)
    assert (found.low, found.high) == (pytest.approx(b - a - half), pytest.approx(b - a + half))


@pytest.mark.parametrize("table", [(0, 0, 0), (2, 2, 3), (-1, 0, 3)])
def test_pairs_that_cannot_be_are_refused(table):
    with pytest.raises(InvalidCall, match="cannot be"):
        paired_difference(*table)


def test_more_pairs_are_needed_for_smaller_differences_and_noisier_outcomes():
    assert pairs_needed(0.2, 0.05) > pairs_needed(0.2, 0.1)
    assert pairs_needed(0.4, 0.05) > pairs_needed(0.2, 0.05)
    # (1.96 √0.2 + 0.8416 √(0.2 − 0.01))² / 0.01, by hand
    assert pairs_needed(0.2, 0.1) == 155


def test_the_needed_pairs_give_the_promised_power():
    share, difference = 0.2, 0.1
    n = pairs_needed(share, difference)
    up = (share + difference) / 2
    power = 0.0
    for differing in range(n + 1):
        chance = math.comb(n, differing) * share**differing * (1 - share) ** (n - differing)
        for wins in range(differing + 1 if chance > 1e-4 else 0):
            if exact_mcnemar(differing - wins, wins) < 0.05:
                inner = math.comb(differing, wins) * (up / share) ** wins
                power += chance * inner * (1 - up / share) ** (differing - wins)
    assert 0.72 < power < 0.85  # the exact test is a little below the formula


def test_holm_adjusts_each_p_by_how_many_are_left():
    assert holm([0.01, 0.04, 0.03]) == [
        pytest.approx(0.03),
        pytest.approx(0.06),
        pytest.approx(0.06),
    ]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1)))
def test_adjusted_p_values_keep_their_order_and_never_fall(p_values):
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))


def test_without_scipy_the_message_holds_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtra, match=r"pip install 'polyarm\[report\]'"):
        success_rate(1, 2)
