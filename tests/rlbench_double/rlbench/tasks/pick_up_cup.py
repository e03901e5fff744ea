"""Lift the cup of the right colour. Touching the other one knocks it over, and that is the end."""

import numpy as np
from pyrep.backend import rotation
from pyrep.backend.sim import Body
from pyrep.objects import ProximitySensor, Shape

from rlbench.backend.conditions import DetectedCondition, GraspedCondition, ToppledCondition
from rlbench.backend.scenery import sensor, shape, waypoint
from rlbench.backend.task import Task
from rlbench.const import colors

CUP, OTHER = (0.0, 0.1, 0.05), (0.0, -0.1, 0.05)
TOUCH_M, FALLEN_M = 0.04, 0.02


class PickUpCup(Task):
    def model(self) -> list[Body]:
        cups = [shape("cup1", CUP, size=0.035), shape("cup2", OTHER, size=0.035)]
        ways = [
            waypoint(0, (*CUP[:2], 0.25)),
            waypoint(1, CUP, "close_gripper()"),
            waypoint(2, (*CUP[:2], 0.3)),
        ]
        return [*cups, sensor("success", CUP, 0.15), *ways]

    def init_task(self) -> None:
        self.cup1, self.cup2 = Shape("cup1"), Shape("cup2")
        self.register_graspable_objects([self.cup1, self.cup2])
        sensor_around = ProximitySensor("success")
        self.register_success_conditions(
            [
                DetectedCondition(self.cup1, sensor_around, negated=True),
                GraspedCondition(self.robot.gripper, self.cup1),
            ]
        )
        self.register_fail_conditions([ToppledCondition(self.cup2)])

    def init_episode(self, index: int) -> list[str]:
        name, color = colors[index]
        other = np.random.choice([choice for choice in range(len(colors)) if choice != index])
        self.cup1.set_color(color)
        self.cup2.set_color(colors[other][1])
        return [f"pick up the {name} cup", f"lift {name}", f"take the {name} cup off the table"]

    def variation_count(self) -> int:
        return len(colors)

    def step(self) -> None:
        tip = self.robot.arm.get_tip().get_position()
        place = self.cup2.get_position()
        if np.linalg.norm(tip - place) < TOUCH_M:
            self.cup2.set_quaternion(rotation.about(0, np.pi / 2))
            self.cup2.set_position([*place[:2], self.to_world((0, 0, FALLEN_M))[2]])
