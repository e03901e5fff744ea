"""Running means and deviations, the same on all ranks."""

from __future__ import annotations

from typing import Any

from polyarm.distributed.torchrun import ProcessGroup
from polyarm.vector.tensors import import_torch

_LEAST_VARIANCE = 1e-6


class RunningMoments:
    """Mean and standard deviation of the rows seen so far, in float64.

    Args:
        size: Numbers per row.
        forget: Least weight of the newest batch; 0 weighs all rows ever seen alike.
        device: Where rows are normalised.
    """

    def __init__(self, size: int, *, forget: float = 0.0, device: Any = "cpu") -> None:
        torch = import_torch()
        self._forget, self._device = forget, device
        self._count = 0.0
        self._mean = torch.zeros(size, dtype=torch.float64)
        self._variance = torch.ones(size, dtype=torch.float64)
        self._cache()

    def _cache(self) -> None:
        torch = import_torch()
        self.mean = self._mean.to(self._device, torch.float32)
        deviation = (self._variance + _LEAST_VARIANCE).sqrt()
        self.std = deviation.to(self._device, torch.float32)
        self._scale = (1.0 / deviation).to(self._device, torch.float32)

    def normalise(self, rows: Any) -> Any:
        """Rows ``(…, size)`` at mean 0 and deviation 1; float32."""
        return (rows.float() - self.mean) * self._scale

    def update(self, rows: Any, group: ProcessGroup) -> None:
        """Take in the rows ``(n, size)`` of all ranks; every rank must call it, n may be 0."""
        torch = import_torch()
        rows = rows.to("cpu", torch.float64)
        sums = torch.cat([torch.tensor([float(len(rows))]).double(), rows.sum(0), (rows**2).sum(0)])
        group.total([sums])
        count, size = float(sums[0]), len(self._mean)
        if count == 0:
            return
        mean = sums[1 : 1 + size] / count
        variance = (sums[1 + size :] / count - mean**2).clamp_(min=0.0)
        self._count += count
        weight = max(count / self._count, self._forget)
        apart = mean - self._mean
        self._variance = (
            (1 - weight) * self._variance + weight * variance + weight * (1 - weight) * apart**2
        )
        self._mean = self._mean + weight * apart
        self._cache()

    def state_dict(self) -> dict[str, Any]:
        """All there is to know."""
        return {"count": self._count, "mean": self._mean, "variance": self._variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._count = float(state["count"])
        self._mean, self._variance = state["mean"].cpu(), state["variance"].cpu()
        self._cache()
