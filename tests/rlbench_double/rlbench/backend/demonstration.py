"""Doing a task by driving the arm from waypoint to waypoint, and recording it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from pyrep.backend import switches
from pyrep.errors import ConfigurationPathError
from pyrep.robots.arms.path import ArmConfigurationPath

from rlbench.backend.exceptions import DemoError, NoWaypointsError
from rlbench.backend.observation import Observation
from rlbench.backend.waypoints import Point

if TYPE_CHECKING:
    from rlbench.backend.scene import Scene

GRIPPER_SPEED = 0.04
PATIENCE_STEPS = 10


class Demonstration:
    def __init__(
        self,
        scene: "Scene",
        callable_each_step: Callable[[Observation], None] | None,
        *,
        record: bool,
    ) -> None:
        self._scene, self._callable, self._records = scene, callable_each_step, record
        self._robot, self._task = scene.robot, scene.task
        self._gripper_open = float(self._robot.gripper.get_open_amount()[0] > 0.9)
        self._observations: list[Observation] = []

    def run(self) -> list[Observation]:
        waypoints = self._task.get_waypoints()
        if not waypoints:
            raise NoWaypointsError("No waypoints were found.", self._task)
        self._start()
        path = None
        for index, point in enumerate(waypoints):
            path = self._get_path(index, point)
            self._follow(path)
            self._use_gripper(point.get_ext(), path)
        self._wait(path)
        if not self._task.success()[0]:
            raise DemoError("Demo was completed, but was not successful.", self._task)
        return self._observations

    def _start(self) -> None:
        switch = switches.find("bad_demo")
        if switch is not None and switches.count("demo") <= int(switch.value or 1):
            raise DemoError("Demo was completed, but was not successful.", self._task)
        if self._records:
            self._scene.pyrep.step()
            self._scene._joint_position_action = None
            self._observations.append(self._scene.get_observation())

    def _get_path(self, index: int, point: Point) -> ArmConfigurationPath:
        try:
            return point.get_path()
        except ConfigurationPathError as error:
            message = f"Could not get a path for waypoint {index}."
            raise DemoError(message, self._task) from error

    def _follow(self, path: ArmConfigurationPath) -> None:
        done = False
        while not done:
            done = path.step()
            self._step(path)
            self._record()

    def _use_gripper(self, extension: str, path: ArmConfigurationPath) -> None:
        """Open or close where the waypoint says so; seen once, or all along if asked for."""
        if not extension:
            return
        gripper = self._robot.gripper
        self._gripper_open = float("open_gripper(" in extension)
        if self._gripper_open:
            gripper.release()
        done = False
        while not done:
            done = gripper.actuate(self._gripper_open, GRIPPER_SPEED)
            self._step(path)
            if self._scene.get_observation_config().record_gripper_closing:
                self._record()
        if not self._gripper_open:
            for obj in self._task.get_graspable_objects():
                gripper.grasp(obj)
        self._record()

    def _wait(self, path: ArmConfigurationPath) -> None:
        for _ in range(PATIENCE_STEPS):
            if self._task.success()[0]:
                return
            self._step(path)
            self._record()

    def _step(self, path: ArmConfigurationPath) -> None:
        self._scene.step()
        action = path.get_executed_joint_position_action()
        self._scene._joint_position_action = np.append(action, self._gripper_open)

    def _record(self) -> None:
        if self._records:
            self._observations.append(self._scene.get_observation())
        if self._callable is not None:
            self._callable(self._scene.get_observation())
