"""A demonstration: observations, and what brings its episode back."""

import numpy as np

from rlbench.backend.observation import Observation


class Demo:
    def __init__(
        self,
        observations: list[Observation],
        random_seed: tuple | None = None,
        num_reset_attempts: int | None = None,
    ) -> None:
        self._observations = observations
        self.random_seed = random_seed
        self.num_reset_attempts = num_reset_attempts

    def __len__(self) -> int:
        return len(self._observations)

    def __getitem__(self, i: int) -> Observation:
        return self._observations[i]

    def restore_state(self) -> None:
        np.random.set_state(self.random_seed)
