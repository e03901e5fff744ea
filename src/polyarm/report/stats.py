"""How sure we can be of a success rate, and of a difference between two.

All intervals are 95% intervals. SciPy is imported when a number is asked for, never before.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from polyarm.errors import InvalidCall, MissingExtra

CONFIDENCE = 0.95
SIGNIFICANCE = 1 - CONFIDENCE
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate with its 95% interval; the floats are None where there are no episodes.

    Attributes:
        successes: Episodes that succeeded.
        episodes: Episodes that count: successes and failures, never errors.
        rate: The estimate, 0 to 1.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    successes: int
    episodes: int
    rate: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of two success rates with its 95% interval, each from -1 to 1.

    Attributes:
        estimate: The plain difference, the second rate minus the first.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    estimate: float
    low: float
    high: float


def success_rate(successes: int, episodes: int) -> Rate:
    """The share of successes with its Wilson score interval.

    Raises:
        InvalidCall: If the counts contradict each other.
        MissingExtra: If SciPy is not installed.
    """
    if not 0 <= successes <= episodes:
        raise InvalidCall(f"{successes} successes in {episodes} episodes: these counts cannot be")
    if episodes == 0:
        return Rate(0, 0, None, None, None)
    test = _scipy_stats().binomtest(successes, episodes)
    interval = test.proportion_ci(CONFIDENCE, method="wilson")
    # Rounding may leave the ends a few 1e-17 inside of the rate itself at 0 and 1.
    rate = successes / episodes
    return Rate(
        successes, episodes, rate, min(float(interval.low), rate), max(float(interval.high), rate)
    )


def macro_rate(rates: Iterable[Rate]) -> Rate:
    """The mean of the tasks' rates, every task counting the same, with an interval.

    The tasks are strata: fixed, not a sample of all possible tasks. Their Wilson intervals are
    combined by MOVER (Zou, Huang & Zhang 2009, "A note on confidence interval estimation for a
    linear function of binomial proportions"): the distances from each rate to its ends add in
    quadrature. Unlike the plain variance of the stratified estimate it does not collapse when
    tasks are at 0 or 1, stays within [0, 1], and for a single task is the Wilson interval.

    Args:
        rates: One per task; tasks without episodes are left out.
    """
    counted = [one for one in rates if one.rate is not None]
    if not counted:
        return Rate(0, 0, None, None, None)
    mean = sum(one.rate or 0.0 for one in counted) / len(counted)
    below = math.hypot(*((one.rate or 0.0) - (one.low or 0.0) for one in counted)) / len(counted)
    above = math.hypot(*((one.high or 0.0) - (one.rate or 0.0) for one in counted)) / len(counted)
    return Rate(
        sum(one.successes for one in counted),
        sum(one.episodes for one in counted),
        mean,
        max(0.0, mean - below),
        min(1.0, mean + above),
    )


def exact_mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p of the exact McNemar test: do A and B succeed equally often?

    Args:
        only_a: Paired episodes in which only A succeeded.
        only_b: Paired episodes in which only B succeeded.
    """
    if only_a + only_b == 0:
        return 1.0
    return float(_scipy_stats().binomtest(only_b, only_a + only_b, 0.5).pvalue)


def exact_binomial(successes: int, episodes: int, expected: float) -> float:
    """Two-sided p of the exact binomial test: is the true rate ``expected``?"""
    if episodes == 0:
        return 1.0
    return float(_scipy_stats().binomtest(successes, episodes, expected).pvalue)


def paired_difference(only_a: int, only_b: int, pairs: int) -> Difference:
    """B's success rate minus A's over paired episodes.

    The interval is the adjusted Wald interval of Bonett & Price (2012, "Adjusted Wald confidence
    interval for a difference of binomial proportions based on paired data"): a pseudo-observation
    in each discordant cell. It keeps its coverage from about ten pairs on, and does not shrink to
    nothing when no pair differs. The estimate itself is not adjusted.

    Args:
        only_a: Pairs in which only A succeeded.
        only_b: Pairs in which only B succeeded.
        pairs: All pairs, at least one.

    Raises:
        InvalidCall: If the counts contradict each other, or there are none.
    """
    if pairs < 1 or min(only_a, only_b) < 0 or only_a + only_b > pairs:
        raise InvalidCall(f"{only_a} and {only_b} discordant of {pairs} pairs: these cannot be")
    a, b = (only_a + 1) / (pairs + 2), (only_b + 1) / (pairs + 2)
    half = _quantile(1 - SIGNIFICANCE / 2) * math.sqrt((a + b - (b - a) ** 2) / (pairs + 2))
    return Difference((only_b - only_a) / pairs, max(-1.0, b - a - half), min(1.0, b - a + half))


def pairs_needed(discordant: float, difference: float) -> int:
    """How many pairs show a true difference with 80% power at the 5% level.

    The formula for McNemar's test of Connor (1987, "Sample size for testing differences in
    proportions for the paired-sample design").

    Args:
        discordant: Share of pairs whose outcomes differ; at least ``difference`` is assumed.
        difference: The difference of success rates to be seen, above 0.
    """
    share = max(discordant, difference)
    level, power = _quantile(1 - SIGNIFICANCE / 2), _quantile(POWER)
    root = level * math.sqrt(share) + power * math.sqrt(share - difference**2)
    return math.ceil((root / difference) ** 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for there being several of them (Holm 1979), in the same order."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)


def _scipy_stats() -> Any:
    try:
        return importlib.import_module("scipy.stats")
    except ImportError as error:
        raise MissingExtra(
            "intervals and tests need SciPy, which is not installed: pip install 'polyarm[report]'"
        ) from error
