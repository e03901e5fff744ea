"""Where a demonstration takes the tip."""

from pyrep.objects import Dummy
from pyrep.robots.arms.path import ArmConfigurationPath

from rlbench.backend.robot import Robot


class Point:
    def __init__(self, waypoint: Dummy, robot: Robot) -> None:
        self._waypoint, self._robot = waypoint, robot
        self.skip = False

    def is_feasible(self) -> bool:
        return self._robot.arm.reaches(
            self._waypoint.get_position(), self._waypoint.get_quaternion()
        )

    def get_path(self, ignore_collisions: bool = False) -> ArmConfigurationPath:
        return self._robot.arm.get_path(
            self._waypoint.get_position(),
            quaternion=self._waypoint.get_quaternion(),
            ignore_collisions=ignore_collisions,
        )

    def get_ext(self) -> str:
        return self._waypoint.get_extension_string()

    def get_waypoint_object(self) -> Dummy:
        return self._waypoint

    def start_of_path(self) -> None:
        pass

    def end_of_path(self) -> None:
        pass
