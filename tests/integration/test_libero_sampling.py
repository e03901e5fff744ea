"""The clock that says when LIBERO's observations are sampled, against robosuite's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyarm.suites.libero.importing import import_libero
from polyarm.suites.libero.sampling import SamplingClock

pytestmark = pytest.mark.simulator

TIMESTEP_S = 0.002


@pytest.mark.parametrize("forced_share", [0.0, 0.002, 0.05, 0.5])
def test_samples_are_taken_when_robosuite_takes_them(forced_share: float) -> None:
    import_libero()
    from robosuite.utils.observables import Observable, sensor

    taken = []

    @sensor(modality="count")
    def count(_: Any) -> float:
        taken.append(True)
        return 0.0

    observable, clock = Observable("count", count), SamplingClock(TIMESTEP_S)
    rng = np.random.default_rng(int(1000 * forced_share))
    samples = []
    for tick in range(20_000):
        if rng.random() < 0.0005:
            observable.reset()
            clock.reset()
        forced = bool(rng.random() < forced_share)
        taken.clear()
        observable.update(TIMESTEP_S, {}, force=forced)
        found = clock.tick(forced=forced)
        assert found == bool(taken), f"tick {tick}"
        samples.append(found and not forced)
    assert sum(samples) > 100 or forced_share == 0.5
