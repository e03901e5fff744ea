"""What a run's episodes add up to: results, statistics, comparisons and the HTML report."""

from __future__ import annotations
