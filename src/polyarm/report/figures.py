"""The geometry of the report's figures, in percent of their width and height; pure.

Figures are laid out in percent so that the browser scales them to a phone or a sheet of paper
while the lettering keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyarm.report.results import Results, policy_step

_BINS = 24
_LABEL_WIDTH = 8
_NOTHING = 1e-300
"""Below this, numbers have no logarithm to speak of."""
_LABELS = {
    "sim": "simulation",
    "frames": "frames",
    "obs": "observations",
    "policy": "policy (inference)",
    "waiting": "waiting",
    "startup": "start-up",
    "other": "other",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram: successes below, failures on top; ``x`` and heights in percent."""

    x: float
    width: float
    success: float
    failure: float
    text: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram that starts at 0 and ends at a round number."""

    title: str
    bars: tuple[Bar, ...]
    tallest: int
    ticks: tuple[str, ...]
    median: float
    median_text: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar that shows where time went; ``share`` in percent."""

    name: str
    label: str
    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A policy's success rate over its training step; positions in percent."""

    policy: str
    step: str
    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Success rate over training steps."""

    points: tuple[CurvePoint, ...]
    has_steps: bool

    @property
    def path(self) -> str:
        """The line through all points, for an SVG of 100 by 100."""
        return " ".join(f"{point.x:.2f},{100 - point.y:.2f}" for point in self.points)

    @property
    def band(self) -> str:
        """The outline of the interval, for an SVG of 100 by 100."""
        upper = [f"{point.x:.2f},{100 - point.high:.2f}" for point in self.points]
        lower = [f"{point.x:.2f},{100 - point.low:.2f}" for point in reversed(self.points)]
        return " ".join(upper + lower)


def histogram(
    title: str, successes: Sequence[float], failures: Sequence[float], unit: str
) -> Histogram | None:
    """Bins from 0 to a round number; None if nothing is to be shown."""
    successes, failures = _finite(successes), _finite(failures)
    values = sorted([*successes, *failures])
    if not values:
        return None
    end = round_up(values[-1])
    width = end / _BINS
    won, lost = _counts(successes, width), _counts(failures, width)
    tallest = max(a + b for a, b in zip(won, lost, strict=True))
    bars = tuple(
        Bar(
            x=place * 100 / _BINS,
            width=100 / _BINS,
            success=100 * a / tallest,
            failure=100 * b / tallest,
            text=f"{number(place * width)}–{number((place + 1) * width)}{unit}: "
            f"{a} successes, {b} failures",
        )
        for place, (a, b) in enumerate(zip(won, lost, strict=True))
        if a + b
    )
    ticks = tuple(f"{number(end * share / 4)}{unit}" for share in range(5))
    median = values[len(values) // 2]
    return Histogram(title, bars, tallest, ticks, 100 * median / end, f"{number(median)}{unit}")


def time_split(seconds: Mapping[str, float], total: float | None = None) -> tuple[Segment, ...]:
    """Shares of the time: simulation first, then frames, observations, policy and waiting.

    Args:
        seconds: By what it was spent on; names that are not known are shown as they are.
        total: What the parts should add up to; what is missing is shown as ``other``.
    """
    parts = {name: value for name, value in seconds.items() if math.isfinite(value) and value > 0}
    known = sum(parts.values())
    if total is not None and math.isfinite(total) and total - known > 0.005 * total:
        parts["other"] = total - known
    whole = sum(parts.values())
    order = [*_LABELS, *(name for name in parts if name not in _LABELS)]
    return tuple(
        Segment(name, _LABELS.get(name, name), 100 * parts[name] / whole, parts[name])
        for name in order
        if name in parts
    )


def curve(policies: Mapping[str, Results]) -> Curve | None:
    """Success rate over training steps, or over the order of the policies if steps are unknown."""
    rates = {name: results.micro for name, results in policies.items()}
    shown = [name for name, rate in rates.items() if rate.rate is not None]
    if len(shown) < 2:
        return None
    steps = [policy_step(name) for name in shown]
    known = [step for step in steps if step is not None]
    has_steps = len(set(known)) == len(shown)
    places = [float(step) for step in known] if has_steps else [float(i) for i in range(len(shown))]
    first, span = min(places), max(places) - min(places)
    x = [4 + 92 * (place - first) / span for place in places]
    labels = [f"{place:,.0f}" for place in places] if has_steps else shown
    return Curve(
        tuple(
            CurvePoint(
                policy=name,
                step=label,
                x=position,
                y=100 * (rates[name].rate or 0.0),
                low=100 * (rates[name].low or 0.0),
                high=100 * (rates[name].high or 0.0),
                text=f"{name}: {rates[name].rate:.1%}, 95% interval {rates[name].low:.1%} to"
                f" {rates[name].high:.1%}, {rates[name].episodes} episodes",
            )
            for name, position, label in zip(shown, x, _spaced(labels, x), strict=True)
        ),
        has_steps,
    )


def round_up(value: float) -> float:
    """The next round number that four ticks divide into round numbers."""
    if value < _NOTHING:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
    return next(unit * step for step in steps if value <= unit * step * (1 + 1e-9))


def number(value: float) -> str:
    """A number as short as it can be read: three digits, thousands grouped."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.2e}"


def _spaced(labels: Sequence[str], x: Sequence[float]) -> list[str]:
    """The labels, blank where they would run into the one before or into the last."""
    shown: list[str] = []
    free = -math.inf
    for label, position in zip(labels[:-1], x[:-1], strict=True):
        fits = free <= position <= x[-1] - _LABEL_WIDTH
        shown.append(label if fits else "")
        free = position + _LABEL_WIDTH if fits else free
    return [*shown, *labels[-1:]]


def _counts(values: Sequence[float], width: float) -> list[int]:
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, max(0, int(value / width)))] += 1
    return counts


def _finite(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]
