"""Press the button; its plate turns green."""

import numpy as np
from pyrep.backend.sim import Body
from pyrep.objects import Joint, Shape

from rlbench.backend.conditions import JointCondition
from rlbench.backend.scenery import joint, shape, waypoint
from rlbench.backend.task import Task
from rlbench.const import colors as all_colors

colors = [color for color in all_colors if color[0] not in ("red", "lime")]
TOP_M, DEPTH_M, RADIUS_M = 0.04, 0.02, 0.03


class PushButton(Task):
    def model(self) -> list[Body]:
        button = [
            shape("push_button_target", (0, 0, 0.03)),
            joint("target_button_joint", (0, 0, 0)),
        ]
        plate = shape("target_button_topPlate", (0, 0, TOP_M), size=0.015)
        ways = [waypoint(0, (0, 0, 0.15), "close_gripper()"), waypoint(1, (0, 0, 0.025))]
        return [*button, plate, *ways]

    def init_task(self) -> None:
        self.joint = Joint("target_button_joint")
        self.plate = Shape("target_button_topPlate")
        self.goal = JointCondition(self.joint, 0.003)

    def init_episode(self, index: int) -> list[str]:
        name, color = colors[index]
        self.plate.set_color((1.0, 0.0, 0.0))
        Shape("push_button_target").set_color(color)
        self.register_success_conditions([self.goal])
        return [f"press the {name} button", f"push {name} down", f"hit the button on {name}"]

    def variation_count(self) -> int:
        return len(colors)

    def step(self) -> None:
        top = self.to_world((0, 0, TOP_M))
        away = self.robot.arm.get_tip().get_position() - top
        if np.linalg.norm(away[:2]) < RADIUS_M:
            self.joint.set_joint_position(float(np.clip(-away[2], 0.0, DEPTH_M)))
        if self.goal.condition_met()[0]:
            self.plate.set_color((0.0, 1.0, 0.0))
