"""What a scene looks like from above: for each cell, the highest and lowest collision surface.

A gripper that comes straight down only meets the topmost surface, so two such maps (the thing in
question, and everything else) are enough to plan a grasp, a path and a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CELL = 0.0025
"""Side of a cell, in metres; about the thickness of a bowl's wall."""


def rectangle(half: Sequence[float], step: float) -> Floats:
    """Points (n, 2) about ``step`` apart that fill a rectangle around zero, row by row along x."""
    x, y = (np.linspace(-length, length, 1 + round(2 * length / step)) for length in half)
    return np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)


class HeightMap:
    """Heights of collision geometry over a rectangle, in metres and world axes.

    Args:
        low: The rectangle's lower corner (x, y).
        high: Its upper corner.
        ground: The height of cells that hold nothing.
    """

    def __init__(self, low: Floats, high: Floats, ground: float) -> None:
        shape = np.ceil((high - low) / CELL).astype(int)
        self._low = low
        self._top = np.full(shape, ground)
        self._bottom = np.full(shape, np.inf)

    def draw(self, model: Any, data: Any, geoms: Sequence[int]) -> None:
        """Add geoms of a MuJoCo model, each as the box that bounds it in its own frame."""
        for geom in geoms:
            axes = data.geom_xmat[geom].reshape(3, 3)
            centre = data.geom_xpos[geom] + axes @ model.geom_aabb[geom, :3]
            # Half a cell more on every side: no wall is thin enough to slip between cells.
            self._draw_box(centre, axes, model.geom_aabb[geom, 3:] + CELL / 2)

    def _draw_box(self, centre: Floats, axes: Floats, half: Floats) -> None:
        reach = np.abs(axes[:2]) @ half
        first = np.maximum(np.floor((centre[:2] - reach - self._low) / CELL).astype(int), 0)
        last = np.minimum(
            np.ceil((centre[:2] + reach - self._low) / CELL).astype(int), self._top.shape
        )
        if np.any(first >= last):
            return
        window = (slice(first[0], last[0]), slice(first[1], last[1]))
        x, y = (self._low[i] + (np.arange(first[i], last[i]) + 0.5) * CELL for i in (0, 1))
        # The vertical line through a cell meets the box where it is inside all three slabs.
        at_zero = (np.stack(np.meshgrid(x, y, indexing="ij"), -1) - centre[:2]) @ axes[:2]
        slope = np.where(np.abs(axes[2]) < 1e-9, 1e-9, axes[2])
        one, other = (-half - at_zero) / slope, (half - at_zero) / slope
        enter = np.minimum(one, other).max(-1)
        leave = np.maximum(one, other).min(-1)
        hit = enter < leave
        top, bottom = self._top[window], self._bottom[window]
        top[hit] = np.maximum(top[hit], centre[2] + leave[hit])
        bottom[hit] = np.minimum(bottom[hit], centre[2] + enter[hit])

    def tops(self, points: Floats) -> Floats:
        """The highest surface at points (…, 2); points outside take the nearest cell."""
        cells = np.floor((points - self._low) / CELL).astype(int)
        nearest = np.clip(cells, 0, np.array(self._top.shape) - 1)
        found: Floats = self._top[nearest[..., 0], nearest[..., 1]]
        return found

    def cells(self) -> tuple[Floats, Floats]:
        """Centres (n, 2) and bottoms (n,) of the cells that hold something."""
        filled = np.isfinite(self._bottom)
        return self._low + (np.argwhere(filled) + 0.5) * CELL, self._bottom[filled]
