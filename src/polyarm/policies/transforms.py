"""How openpi, OpenVLA and LeRobot normalise states and actions: one class per formula.

`forward` is from the env's numbers to the model's, `inverse` the way back. Every transform is one
upstream's formula with its own epsilon, in its own order of operations and in the precision that
upstream computes in, rounded to float32 once, at the end: the same bits, not merely close ones.

Read in openpi 15a9616a (src/openpi/transforms.py), openvla c8f03f48 and openvla-oft 213c5ff8
(prismatic/extern/hf/modeling_prismatic.py, experiments/robot/openvla_utils.py and robot_utils.py)
and lerobot 7427f318 (src/lerobot/processor/normalize_processor.py).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import to_host
from polyarm.errors import PolicyError

Array = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Transform(ABC):
    """A way to normalise the last dimension of arrays, and the way back.

    Raises:
        PolicyError: Statistics that are NaN, infinite, empty or of different lengths.
    """

    mode: ClassVar[str]
    """What it is called in the results."""
    statistics: ClassVar[tuple[str, ...]] = ()
    """The fields that hold one number per dimension."""

    def __post_init__(self) -> None:
        found = {name: _statistic(self, name) for name in self.statistics}
        if len({len(value) for value in found.values()}) > 1:
            lengths = ", ".join(f"{name} {len(value)}" for name, value in found.items())
            raise PolicyError(f"the statistics of {self.mode} differ in length: {lengths}")
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The mode, and a digest of the statistics."""
        digest = hashlib.sha256()
        for name in self.statistics:
            digest.update(name.encode() + b"\0" + getattr(self, name).tobytes())
        return {"mode": self.mode, "statistics": digest.hexdigest()[:32]}

    def forward(self, x: Any) -> Floats:
        """The env's numbers ``(…, n)`` as the model knows them, float32.

        Args:
            x: An array or tensor. Float64 is computed with as such, anything else as float32.

        Raises:
            PolicyError: ``x`` has another number of dimensions than the statistics.
        """
        return self._rounded(self._forward, x)

    def inverse(self, x: Any) -> Floats:
        """The model's numbers ``(…, n)`` as the env knows them, float32; see `forward`."""
        return self._rounded(self._inverse, x)

    @abstractmethod
    def _forward(self, x: Array) -> Array: ...

    @abstractmethod
    def _inverse(self, x: Array) -> Array: ...

    def _rounded(self, function: Callable[[Array], Array], x: Any) -> Floats:
        array = np.asarray(to_host(x))
        if array.ndim == 0 or array.dtype.kind not in "fiub":
            raise PolicyError(
                f"{self.mode} takes arrays (…, n) of numbers, not {array.dtype} {array.shape}"
            )
        # Upstream multiplies float32 from the model with float64 from the file, in places after a
        # first step in float32. Widening x here would give other bits.
        if array.dtype != np.float64:
            array = array.astype(np.float32)
        with np.errstate(over="ignore"):
            return function(array).astype(np.float32)

    def _check(self, x: Array, dims: int, *, wider: bool = False, narrower: bool = False) -> None:
        found = x.shape[-1]
        if found == dims or (wider and found > dims) or (narrower and found < dims):
            return
        limit = "at least " if wider else "at most " if narrower else ""
        raise PolicyError(
            f"{self.mode} has statistics of {dims} dimensions and takes {limit}{dims}; found"
            f" {found}, in an array of shape {x.shape}. Are these the statistics of another"
            f" robot or dataset?"
        )


@dataclass(frozen=True, eq=False)
class OpenpiZScore(Transform):
    """Openpi's for pi0: ``(x - mean) / (std + 1e-6)``.

    As there, `forward` of fewer dimensions uses the first statistics, and `inverse` takes those
    beyond the statistics for mean 0 and std 1, epsilon included: ``x * (1 + 1e-6)``. A dimension
    that never moved (std 0) is divided by 1e-6.
    """

    mean: Array
    std: Array
    mode = "openpi z-score"
    statistics = ("mean", "std")

    def _forward(self, x: Array) -> Array:
        self._check(x, len(self.mean), narrower=True)
        mean, std = self.mean[: x.shape[-1]], self.std[: x.shape[-1]]
        return np.asarray((x - mean) / (std + 1e-6))

    def _inverse(self, x: Array) -> Array:
        self._check(x, len(self.mean), wider=True)
        beyond = (0, x.shape[-1] - len(self.mean))
        mean, std = np.pad(self.mean, beyond), np.pad(self.std, beyond, constant_values=1.0)
        return np.asarray(x * (std + 1e-6) + mean)


@dataclass(frozen=True, eq=False)
class OpenpiQuantiles(Transform):
    """Openpi's for all models but pi0: ``(x - q01) / (q99 - q01 + 1e-6) * 2 - 1``.

    As there, `forward` of fewer dimensions uses the first statistics, and `inverse` leaves those
    beyond the statistics as they are. Nothing is clipped.
    """

    q01: Array
    q99: Array
    mode = "openpi quantiles"
    statistics = ("q01", "q99")

    def _forward(self, x: Array) -> Array:
        self._check(x, len(self.q01), narrower=True)
        q01, q99 = self.q01[: x.shape[-1]], self.q99[: x.shape[-1]]
        return np.asarray((x - q01) / (q99 - q01 + 1e-6) * 2.0 - 1.0)

    def _inverse(self, x: Array) -> Array:
        dims = len(self.q01)
        self._check(x, dims, wider=True)
        known = (x[..., :dims] + 1.0) / 2.0 * (self.q99 - self.q01 + 1e-6) + self.q01
        return np.concatenate([known, x[..., dims:]], axis=-1)


@dataclass(frozen=True, eq=False)
class OpenvlaBounds(Transform):
    """OpenVLA's: from between two bounds to between -1 and 1, where a mask says so.

    `inverse` is what its models do to actions; without epsilon in OpenVLA, with 1e-8 in OpenVLA-OFT
    (``oft``). `forward` is what OpenVLA-OFT does to states: with 1e-8, and clipped to [-1, 1], the
    dimensions outside of the mask as well. Only what lies inside comes back.

    Args:
        low: q01, or the minimum.
        high: q99, or the maximum.
        mask: Which dimensions are normalised; all of them by default. Others pass.
        oft: Whether the model is of OpenVLA-OFT.
    """

    low: Array
    high: Array
    mask: Array | None = None
    oft: bool = True
    statistics = ("low", "high")

    def __post_init__(self) -> None:
        super().__post_init__()
        mask = np.ones(len(self.low), bool) if self.mask is None else np.array(self.mask, bool)
        if mask.shape != self.low.shape:
            raise PolicyError(
                f"the mask has shape {mask.shape}, the bounds have {len(self.low)} dimensions"
            )
        mask.flags.writeable = False
        object.__setattr__(self, "mask", mask)

    @property
    def mode(self) -> str:  # type: ignore[override]
        """With whose epsilon."""
        return "openvla-oft bounds" if self.oft else "openvla bounds"

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The mode, a digest of the bounds, and the mask."""
        mask = "".join("01"[int(one)] for one in np.asarray(self.mask))
        return {**super().fingerprint, "mask": mask}

    def _forward(self, x: Array) -> Array:
        self._check(x, len(self.low))
        scaled = 2 * (x - self.low) / (self.high - self.low + 1e-8) - 1
        return np.asarray(np.clip(np.where(np.asarray(self.mask), scaled, x), -1.0, 1.0))

    def _inverse(self, x: Array) -> Array:
        self._check(x, len(self.low))
        width = self.high - self.low + 1e-8 if self.oft else self.high - self.low
        return np.where(np.asarray(self.mask), 0.5 * (x + 1) * width + self.low, x)


@dataclass(frozen=True, eq=False)
class LiberoGripper(Transform):
    """The last action in LIBERO, -1 open and +1 close, from OpenVLA's: 1 open and 0 close.

    `inverse` is that of OpenVLA's and OpenVLA-OFT's LIBERO evaluation: from [0, 1] to [-1, 1], only
    the sign of it, inverted. Exactly 0.5 becomes 0. `forward` is their training's: clipped to
    [0, 1], then inverted.
    """

    mode = "libero gripper"

    def _forward(self, x: Array) -> Array:
        return np.concatenate([x[..., :-1], 1 - np.clip(x[..., -1:], 0, 1)], axis=-1)

    def _inverse(self, x: Array) -> Array:
        return np.concatenate([x[..., :-1], np.sign(2 * x[..., -1:] - 1) * -1.0], axis=-1)


@dataclass(frozen=True, eq=False)
class LerobotMeanStd(Transform):
    """LeRobot's MEAN_STD: ``(x - mean) / (std + 1e-8)``, and back ``x * std + mean``.

    The way back has no epsilon there. So a dimension that never moved (std 0) comes back as its
    mean, whatever it was.
    """

    mean: Array
    std: Array
    mode = "lerobot MEAN_STD"
    statistics = ("mean", "std")

    def _forward(self, x: Array) -> Array:
        self._check(x, len(self.mean))
        mean, std = self.mean.astype(x.dtype), self.std.astype(x.dtype)
        return np.asarray((x - mean) / (std + 1e-8))

    def _inverse(self, x: Array) -> Array:
        self._check(x, len(self.mean))
        return np.asarray(x * self.std.astype(x.dtype) + self.mean.astype(x.dtype))


@dataclass(frozen=True, eq=False)
class LerobotRange(Transform):
    """LeRobot's MIN_MAX, QUANTILES and QUANTILE10: ``2 * (x - low) / (high - low) - 1``.

    Where both bounds are equal, their difference is taken for 1e-8. Nothing is clipped. As all of
    LeRobot's, it is computed in the precision of ``x``.

    Args:
        low: min, q01 or q10.
        high: max, q99 or q90.
        kind: LeRobot's name of the mode.
    """

    low: Array
    high: Array
    kind: str = "MIN_MAX"
    statistics = ("low", "high")

    @property
    def mode(self) -> str:  # type: ignore[override]
        """With LeRobot's name of it."""
        return f"lerobot {self.kind}"

    def _forward(self, x: Array) -> Array:
        low, width = self._bounds(x)
        return np.asarray(2 * (x - low) / width - 1)

    def _inverse(self, x: Array) -> Array:
        low, width = self._bounds(x)
        # Upstream halves earlier for MIN_MAX than for quantiles; halving is exact in either place.
        return np.asarray((x + 1) / 2 * width + low)

    def _bounds(self, x: Array) -> tuple[Array, Array]:
        self._check(x, len(self.low))
        low, high = self.low.astype(x.dtype), self.high.astype(x.dtype)
        width = high - low
        return low, np.where(width == 0, x.dtype.type(1e-8), width)


@dataclass(frozen=True, eq=False)
class Chain(Transform):
    """Several transforms, in the order of `forward`; rounded once, after the last."""

    steps: tuple[Transform, ...]
    mode = "chain"

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Those of the steps."""
        return {"mode": self.mode, "steps": [dict(step.fingerprint) for step in self.steps]}

    def _forward(self, x: Array) -> Array:
        for step in self.steps:
            x = step._forward(x)
        return x

    def _inverse(self, x: Array) -> Array:
        for step in reversed(self.steps):
            x = step._inverse(x)
        return x


def _statistic(transform: Transform, name: str) -> Array:
    """A field of a transform as float64 of its own that nobody can change."""
    value = getattr(transform, name)
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{name} of {transform.mode} is no list of numbers: {error}") from error
    if array.ndim != 1 or not len(array):
        raise PolicyError(
            f"{name} of {transform.mode} has shape {array.shape}, expected (n,): one number per"
            f" dimension"
        )
    if not np.isfinite(array).all():
        wrong = int(np.flatnonzero(~np.isfinite(array))[0])
        raise PolicyError(
            f"{name} of {transform.mode} is {array[wrong]} in dimension {wrong}; compute the"
            f" statistics again"
        )
    array.flags.writeable = False
    return array
