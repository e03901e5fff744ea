"""A way through joint space that starts and ends at rest."""

import math
from typing import TYPE_CHECKING

import numpy as np

from pyrep.backend.sim import TIME_STEP_S

if TYPE_CHECKING:
    from pyrep.robots.arms.arm import Arm

SETTLING = 2  # steps at the end of a path in which nothing moves


class ArmConfigurationPath:
    def __init__(self, arm: "Arm", path_points: np.ndarray) -> None:
        self._arm = arm
        self._points = np.asarray(path_points).reshape(-1, arm.get_joint_count())
        self._schedule: list[np.ndarray] | None = None
        self._done = False
        self._joint_position_action: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._points)

    def step(self) -> bool:
        """Give the arm its next target; True with the last. The physics is stepped by others."""
        if self._done:
            raise RuntimeError("This path is completed; call set_to_start to run it again.")
        if self._schedule is None:
            self._schedule = self._get_schedule()
        target = self._schedule.pop(0)
        self._arm.set_joint_target_positions(target)
        self._joint_position_action = np.array(target)
        self._done = not self._schedule
        return self._done

    def set_to_start(self, disable_dynamics: bool = False) -> None:
        self._arm.set_joint_positions(self._points[0], disable_dynamics)
        self._schedule, self._done = None, False

    def set_to_end(self, disable_dynamics: bool = False) -> None:
        self._arm.set_joint_positions(self._points[-1], disable_dynamics)

    def visualize(self) -> None:
        pass

    def clear_visualization(self) -> None:
        pass

    def get_executed_joint_position_action(self) -> np.ndarray:
        return self._joint_position_action

    def _get_schedule(self) -> list[np.ndarray]:
        """Targets for every step: no joint faster than the arm's maximum, at rest at both ends."""
        hops = np.abs(np.diff(self._points, axis=0)).max(1, initial=0.0)
        along = np.concatenate([[0.0], np.cumsum(hops)])
        count = math.ceil(along[-1] * math.pi / 2 / (self._arm.max_velocity * TIME_STEP_S))
        shares = (1 - np.cos(np.pi * np.arange(1, count + 1) / max(count, 1))) / 2
        places = [*(shares * along[-1]), *[along[-1]] * SETTLING]
        columns = [np.interp(places, along, column) for column in self._points.T]
        return list(np.stack(columns, 1))
