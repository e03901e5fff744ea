"""Put the lid on the jar of the right colour and let go of it."""

import numpy as np
from pyrep.backend.sim import Body
from pyrep.objects import Dummy, ProximitySensor, Shape

from rlbench.backend.conditions import DetectedCondition, NothingGrasped
from rlbench.backend.scenery import sensor, shape, waypoint
from rlbench.backend.task import Task
from rlbench.const import colors

LID = (-0.15, 0.0, 0.02)
RIM_M, ABOVE_M = 0.1, 0.22


class CloseJar(Task):
    def model(self) -> list[Body]:
        jars = [shape(f"jar{number}", (0, 0, 0.05), size=0.04) for number in range(2)]
        ways = [
            waypoint(0, (*LID[:2], ABOVE_M)),
            waypoint(1, LID, "close_gripper()"),
            waypoint(2, (*LID[:2], ABOVE_M)),
            waypoint(3, (0, 0, ABOVE_M)),
            waypoint(4, (0, 0, RIM_M), "open_gripper()"),
        ]
        return [shape("jar_lid0", LID), *jars, sensor("success", (0, 0, RIM_M), 0.05), *ways]

    def init_task(self) -> None:
        self.lid = Shape("jar_lid0")
        self.jars = [Shape("jar0"), Shape("jar1")]
        self.register_graspable_objects([self.lid])
        self.register_success_conditions(
            [
                NothingGrasped(self.robot.gripper),
                DetectedCondition(self.lid, ProximitySensor("success")),
            ]
        )

    def init_episode(self, index: int) -> list[str]:
        name, color = colors[index]
        other = np.random.choice([choice for choice in range(len(colors)) if choice != index])
        places = [np.array([0.0, side * np.random.uniform(0.08, 0.2), 0.05]) for side in (-1, 1)]
        for number, jar in enumerate(self.jars):
            jar.set_position(self.to_world(places[number]))
            jar.set_color(color if number == index % 2 else colors[other][1])
        x, y, _ = places[index % 2]
        ProximitySensor("success").set_position(self.to_world((x, y, RIM_M)))
        Dummy("waypoint3").set_position(self.to_world((x, y, ABOVE_M)))
        Dummy("waypoint4").set_position(self.to_world((x, y, RIM_M)))
        return [f"close the {name} jar", f"put the lid on {name}", f"seal the {name} jar"]

    def variation_count(self) -> int:
        return len(colors)

    def base_rotation_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0, 0.0, -0.6 * np.pi), (0.0, 0.0, 0.6 * np.pi)
