from __future__ import annotations

import numpy as np
import pytest

from polyarm.contracts import Batch, EpisodeKey


@pytest.fixture
def make_batch():
    """A batch of the episodes ``keys`` with observations ``obs``."""

    def make(keys, obs=None, steps=None, generators=None):
        keys = tuple(
            EpisodeKey("toy", "count", key) if isinstance(key, int) else key for key in keys
        )
        if obs is None:
            obs = {"state": np.zeros((len(keys), 4), np.float32)}
        return Batch(
            obs,
            keys,
            tuple(f"do {key.task}" for key in keys),
            np.array(steps if steps is not None else [0] * len(keys), np.int64),
            tuple(generators or [key.generator() for key in keys]),
        )

    return make
