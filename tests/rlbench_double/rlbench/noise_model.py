"""Noise on observations, drawn from the global np.random."""

import numpy as np


class NoiseModel:
    def apply(self, val: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Identity(NoiseModel):
    def apply(self, val: np.ndarray) -> np.ndarray:
        return val


class GaussianNoise(NoiseModel):
    def __init__(self, variance: float, min_max_clip: tuple[float, float] | None = None) -> None:
        self._variance, self._min_max_clip = variance, min_max_clip

    def apply(self, val: np.ndarray) -> np.ndarray:
        val += np.random.normal(0.0, self._variance, val.shape)
        return val if self._min_max_clip is None else np.clip(val, *self._min_max_clip)
