"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class Histogram:
    """Counts values by size.

    Args:
        bounds: The largest value of each bucket, ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """As Prometheus reads it."""
        lines, below = [], 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*lines, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


class Metrics:
    """What a server counts.

    Args:
        queued: How many requests wait now.
        clients: How many clients are connected now.

    Attributes:
        requests: Requests that were answered, with actions or an error.
        errors: Those answered with an error.
        refused: Connections refused: a wrong key, or too many.
        batch_rows: Rows of each decision; its count is the number of decisions.
        act_s: Seconds each decision took.
        latency_s: Seconds from a request's arrival to its answer.
    """

    def __init__(self, queued: Callable[[], int], clients: Callable[[], int]) -> None:
        self._gauges = {"queue": queued, "clients": clients}
        self.requests = self.errors = self.refused = 0
        self.batch_rows = Histogram(_ROWS)
        self.act_s = Histogram(_SECONDS)
        self.latency_s = Histogram(_SECONDS)

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        lines: list[str] = []
        counters = {
            "requests_total": (self.requests, "Requests answered."),
            "errors_total": (self.errors, "Requests answered with an error."),
            "refused_total": (self.refused, "Connections refused."),
            "batches_total": (self.batch_rows.count, "Decisions of the policy."),
        }
        for name, (value, about) in counters.items():
            lines += [*_head(name, "counter", about), f"polyarm_serve_{name} {value}"]
        for name, gauge in self._gauges.items():
            about = {"queue": "Requests that wait.", "clients": "Clients connected."}[name]
            lines += [*_head(name, "gauge", about), f"polyarm_serve_{name} {gauge()}"]
        histograms = {
            "batch_rows": (self.batch_rows, "Requests per decision."),
            "act_seconds": (self.act_s, "Seconds per decision."),
            "latency_seconds": (self.latency_s, "Seconds from request to answer."),
        }
        for name, (histogram, about) in histograms.items():
            lines += _head(name, "histogram", about) + histogram.lines(f"polyarm_serve_{name}")
        return "\n".join([*lines, ""])


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP polyarm_serve_{name} {about}", f"# TYPE polyarm_serve_{name} {kind}"]
