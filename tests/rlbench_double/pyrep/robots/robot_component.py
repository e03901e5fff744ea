"""Something with motors: joints that follow target positions or target velocities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyrep.backend import sim
from pyrep.objects.object import as_float32

STRONG = 1e4  # N m: reaches any target velocity within a step


@dataclass
class Limits:
    """What the motors can do; radians or metres, and seconds."""

    low: np.ndarray
    high: np.ndarray
    speed: np.ndarray


class RobotJoint:
    """A single joint of a component, for those who look at one."""

    def __init__(self, component: "RobotComponent", index: int) -> None:
        self._component, self._index = component, index

    def is_control_loop_enabled(self) -> bool:
        return self._component.control_loop

    def get_joint_position(self) -> float:
        return self._component.get_joint_positions()[self._index]

    def get_pose(self) -> np.ndarray:
        """A pose that changes with the joint; the toy arm has no links to speak of."""
        angle = self.get_joint_position()
        return as_float32([0, 0, 0.1 * self._index, 0, 0, np.sin(angle / 2), np.cos(angle / 2)])


class RobotComponent:
    def __init__(self, name: str, home: Sequence[float], limits: Limits) -> None:
        self._name = name
        self._limits = limits
        self.positions = as_float32(home)
        self.targets = self.positions.copy()
        self.velocities = np.zeros(len(home))
        self.target_velocities = np.zeros(len(home))
        self.forces = np.full(len(home), STRONG)
        self.control_loop = True
        self.joints = [RobotJoint(self, index) for index in range(len(home))]
        sim.simulator.movers.append(self.move)

    def move(self, seconds: float) -> None:
        """Advance by one step of the simulator."""
        self._check_numbers()
        if self.control_loop:
            reach = self._limits.speed * seconds
            velocities = np.clip(self.targets - self.positions, -reach, reach) / seconds
        else:
            change = self.forces * seconds
            wanted = self.target_velocities - self.velocities
            velocities = self.velocities + np.clip(wanted, -change, change)
            velocities = np.clip(velocities, -self._limits.speed, self._limits.speed)
        moved = np.clip(self.positions + velocities * seconds, self._limits.low, self._limits.high)
        moved = as_float32(moved)
        self.velocities = as_float32((moved - self.positions) / seconds)
        self.positions = moved
        self.placed()

    def placed(self) -> None:
        """Called whenever the joints have new positions."""

    def get_joint_count(self) -> int:
        return len(self.positions)

    def get_joint_positions(self) -> list[float]:
        sim.enter()
        return self.positions.tolist()

    def set_joint_positions(
        self, positions: Sequence[float], disable_dynamics: bool = False
    ) -> None:
        self._assert_length(positions)
        self.positions = as_float32(positions)
        self.targets = self.positions.copy()
        self.velocities = np.zeros(len(self.positions))
        self.placed()

    def get_joint_target_positions(self) -> list[float]:
        return self.targets.tolist()

    def set_joint_target_positions(self, positions: Sequence[float]) -> None:
        self._assert_length(positions)
        self.targets = as_float32(positions)

    def get_joint_velocities(self) -> list[float]:
        sim.enter()
        return self.velocities.tolist()

    def get_joint_target_velocities(self) -> list[float]:
        return self.target_velocities.tolist()

    def set_joint_target_velocities(self, velocities: Sequence[float]) -> None:
        self._assert_length(velocities)
        self.target_velocities = as_float32(velocities)

    def get_joint_forces(self) -> list[float]:
        """What the motors hold and push with, in N m; only its shape is to be taken seriously."""
        sim.enter()
        return as_float32(3 * np.sin(self.positions) + 0.5 * self.velocities).tolist()

    def set_joint_forces(self, forces: Sequence[float]) -> None:
        self._assert_length(forces)
        self.forces = as_float32(forces)

    def get_joint_intervals(self) -> tuple[list[bool], list[list[float]]]:
        pairs = zip(self._limits.low, self._limits.high - self._limits.low, strict=True)
        return [False] * len(self.positions), [[float(low), float(span)] for low, span in pairs]

    def get_joint_upper_velocity_limits(self) -> list[float]:
        return self._limits.speed.tolist()

    def set_control_loop_enabled(self, value: bool) -> None:
        self.control_loop = value

    def set_motor_locked_at_zero_velocity(self, value: bool) -> None:
        pass

    def _check_numbers(self) -> None:
        pass

    def _assert_length(self, values: Sequence[float]) -> None:
        if len(values) != len(self.positions):
            raise RuntimeError(
                f"{self._name} has {len(self.positions)} joints, but got {len(values)} values"
            )
