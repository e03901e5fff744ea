"""Statistics of a dataset's features, as LeRobot's policies are normalised by them.

They are exact: of all rows and of all pixels of all frames. (LeRobot samples frames and averages
the quantiles of episodes; minimum, maximum, mean and deviation are the same figures.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Stats = dict[str, list[Any]]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_LEVELS, _CHANNELS = 256, 3


def column_stats(values: NDArray[Any]) -> Stats:
    """Statistics of each number of a feature.

    Args:
        values: ``(T,)`` or ``(T, n)``.

    Returns:
        Lists of n floats by statistic, and ``count``, ``[T]``.
    """
    rows = values.reshape(len(values), -1).astype(np.float64)
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return {
        "min": rows.min(axis=0).tolist(),
        "max": rows.max(axis=0).tolist(),
        "mean": rows.mean(axis=0).tolist(),
        "std": rows.std(axis=0).tolist(),
        "count": [len(rows)],
        **{name: row.tolist() for name, row in zip(QUANTILES, quantiles, strict=True)},
    }


class Histogram:
    """How often each level occurs in each channel of frames; all their statistics follow from it.

    Attributes:
        counts: int64 ``(3, 256)``.
    """

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        self.counts = np.zeros((_CHANNELS, _LEVELS), np.int64) if counts is None else counts

    def add(self, image: NDArray[np.uint8]) -> None:
        """Count the pixels of a frame, uint8 ``(H, W, 3)``."""
        for channel in range(_CHANNELS):
            self.counts[channel] += np.bincount(image[..., channel].ravel(), minlength=_LEVELS)

    def stats(self, num_frames: int) -> Stats:
        """Statistics of each channel, in [0, 1] and nested as ``(3, 1, 1)``."""
        levels = np.arange(_LEVELS)
        total = self.counts.sum(axis=1)
        mean = self.counts @ levels / total
        variance = np.array(
            [counts @ (levels - mean[c]) ** 2 / total[c] for c, counts in enumerate(self.counts)]
        )
        found = {
            "min": np.array([np.flatnonzero(counts)[0] for counts in self.counts]),
            "max": np.array([np.flatnonzero(counts)[-1] for counts in self.counts]),
            "mean": mean,
            "std": np.sqrt(variance),
            **{name: self._quantile(share) for name, share in QUANTILES.items()},
        }
        nested: Stats = {
            name: (values / (_LEVELS - 1)).reshape(_CHANNELS, 1, 1).tolist()
            for name, values in found.items()
        }
        return {**nested, "count": [num_frames]}

    def _quantile(self, share: float) -> NDArray[np.float64]:
        """What `numpy.quantile` says of the pixels themselves."""
        found = np.empty(_CHANNELS)
        for channel, counts in enumerate(self.counts):
            until = np.cumsum(counts)
            place = (until[-1] - 1) * share
            below, above = np.searchsorted(until, [np.floor(place), np.ceil(place)], side="right")
            found[channel] = below + (above - below) * (place - np.floor(place))
        return found
