"""Take the broom and sweep five bits of dirt into the dustpan. There is only one variation."""

import numpy as np
from pyrep.backend.sim import Body
from pyrep.objects import ProximitySensor, Shape

from rlbench.backend.conditions import DetectedCondition
from rlbench.backend.scenery import sensor, shape, waypoint
from rlbench.backend.task import Task

BROOM, DIRT, PAN = (0.0, -0.15, 0.1), (0.0, 0.0, 0.01), (0.0, 0.2, 0.01)
NUM_DIRTS = 5
SWEEP_HEIGHT_M, BROOM_WIDTH_M = 0.06, 0.07


class SweepToDustpan(Task):
    def model(self) -> list[Body]:
        spread = np.linspace(-0.03, 0.03, NUM_DIRTS)
        dirts = [
            shape(f"dirt{number}", (x, *DIRT[1:]), size=0.005) for number, x in enumerate(spread)
        ]
        ways = [
            waypoint(0, (*BROOM[:2], 0.25)),
            waypoint(1, BROOM, "close_gripper()"),
            waypoint(2, (*DIRT[:2], SWEEP_HEIGHT_M)),
            waypoint(3, (*PAN[:2], SWEEP_HEIGHT_M)),
        ]
        pan = [shape("dustpan", PAN, size=0.06), sensor("success", PAN, 0.07)]
        return [shape("broom", BROOM, size=0.04), *dirts, *pan, *ways]

    def init_task(self) -> None:
        self.broom = Shape("broom")
        self.dirts = [Shape(f"dirt{number}") for number in range(NUM_DIRTS)]
        self._swept_from: np.ndarray | None = None
        self.register_graspable_objects([self.broom])
        success = ProximitySensor("success")
        self.register_success_conditions([DetectedCondition(dirt, success) for dirt in self.dirts])

    def init_episode(self, index: int) -> list[str]:
        self._swept_from = None
        return ["sweep the dirt away", "brush the dirt into the dustpan", "clean the table"]

    def variation_count(self) -> int:
        return 1

    def base_rotation_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0, 0.0, -0.5), (0.0, 0.0, 0.5)

    def step(self) -> None:
        """Dirt in front of the broom moves with it while the broom is down."""
        broom = self.broom.get_position()
        is_down = broom[2] < self.to_world((0, 0, SWEEP_HEIGHT_M + 0.02))[2]
        before, self._swept_from = self._swept_from, broom if is_down else None
        if before is None or not is_down:
            return
        move = np.array([*(broom - before)[:2], 0.0])
        for dirt in self.dirts:
            if np.linalg.norm((dirt.get_position() - before)[:2]) < BROOM_WIDTH_M:
                dirt.set_position(dirt.get_position() + move)
