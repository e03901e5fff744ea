"""Bring the tip to the ball of the right colour; two others are in the way of the eye only."""

import numpy as np
from pyrep.backend.sim import Body
from pyrep.objects import Dummy, ProximitySensor, Shape

from rlbench.backend.conditions import DetectedCondition
from rlbench.backend.scenery import sensor, shape, waypoint
from rlbench.backend.task import Task
from rlbench.const import colors

LOWEST, HIGHEST = np.array([0.05, -0.3, 0.85]), np.array([0.45, 0.3, 1.25])
BALLS = ("target", "distractor0", "distractor1")
APART_M = 0.2


class ReachTarget(Task):
    def model(self) -> list[Body]:
        balls = [shape(name, (0, 0, 0.1), size=0.025) for name in BALLS]
        return [*balls, sensor("success", (0, 0, 0.1), 0.04), waypoint(0, (0, 0, 0.1))]

    def init_task(self) -> None:
        self.target = Shape("target")
        condition = DetectedCondition(self.robot.arm.get_tip(), ProximitySensor("success"))
        self.register_success_conditions([condition])

    def init_episode(self, index: int) -> list[str]:
        others = [other for other in range(len(colors)) if other != index]
        chosen = [index, *np.random.choice(others, size=2, replace=False)]
        places: list[np.ndarray] = []
        for name, color in zip(BALLS, chosen, strict=True):
            places.append(self._find_place(places))
            Shape(name).set_position(places[-1])
            Shape(name).set_color(colors[color][1])
        ProximitySensor("success").set_position(places[0])
        Dummy("waypoint0").set_position(places[0])
        name = colors[index][0]
        return [f"reach for the {name} target", f"move to the {name} ball", f"touch {name}"]

    def variation_count(self) -> int:
        return len(colors)

    def get_low_dim_state(self) -> np.ndarray:
        return np.array(self.target.get_position())

    def is_static_workspace(self) -> bool:
        return True

    def reward(self) -> float:
        tip = self.robot.arm.get_tip().get_position()
        return -np.linalg.norm(self.target.get_position() - tip)

    def _find_place(self, taken: list[np.ndarray]) -> np.ndarray:
        while True:
            place = np.random.uniform(LOWEST, HIGHEST)
            if all(np.linalg.norm(place - other) > APART_M for other in taken):
                return place
