"""What a task is: a model in the scene, its episodes, and when it is done."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
from pyrep import PyRep
from pyrep.backend import rotation, sim
from pyrep.backend.sim import Body
from pyrep.const import ObjectType
from pyrep.objects import Dummy, Object

from rlbench.backend.conditions import Condition
from rlbench.backend.exceptions import WaypointError
from rlbench.backend.observation import Observation
from rlbench.backend.robot import Robot
from rlbench.backend.waypoints import Point

TASKS_PATH = Path(__file__).parents[1] / "tasks"


class Task:
    def __init__(self, pyrep: PyRep, robot: Robot, name: str | None = None) -> None:
        self.pyrep = pyrep
        self.robot = robot
        self.name = name or re.sub("(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        self._waypoints: list[Point] | None = None
        self._initial_objs_in_scene: list[str] = []
        self.clear_registerings()

    def model(self) -> list[Body]:
        """What the task puts into the scene; stands for the real task's .ttm file."""
        raise NotImplementedError

    def init_task(self) -> None:
        raise NotImplementedError

    def init_episode(self, index: int) -> list[str]:
        raise NotImplementedError

    def variation_count(self) -> int:
        raise NotImplementedError

    def get_low_dim_state(self) -> np.ndarray:
        """Pose by pose, and the position of each joint, of all that is in the model."""
        state: list[float] = []
        for name, is_joint in self._initial_objs_in_scene:
            if not Object.exists(name):
                state += [0.0] * (8 if is_joint else 7)
                continue
            state += Object(name).get_pose().tolist()
            if is_joint:
                state.append(float(np.float32(sim.get(name).joint_position)))
        return np.array(state).flatten()

    def step(self) -> None:
        """Called after each step of the simulator."""

    def reward(self) -> float | None:
        return None

    def cleanup(self) -> None:
        pass

    def base_rotation_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0, 0.0, -3.14), (0.0, 0.0, 3.14)

    def boundary_root(self) -> Object:
        return self.get_base()

    def decorate_observation(self, observation: Observation) -> Observation:
        return observation

    def is_static_workspace(self) -> bool:
        return False

    def set_initial_objects_in_scene(self) -> None:
        self._initial_objs_in_scene = [
            (body.name, body.kind is ObjectType.JOINT) for body in self._children()
        ]

    def register_success_conditions(self, condition: list[Condition]) -> None:
        self._success_conditions = condition

    def register_fail_conditions(self, condition: list[Condition]) -> None:
        self._fail_conditions = condition

    def register_graspable_objects(self, objects: list[Object]) -> None:
        self._graspable_objects = objects

    def register_waypoints_should_repeat(self, func: Callable[[], bool]) -> None:
        self._waypoints_should_repeat = func

    def get_name(self) -> str:
        return self.name

    def validate(self) -> None:
        self._waypoints = self._get_waypoints()

    def get_waypoints(self) -> list[Point]:
        if self._waypoints is None:
            self._waypoints = self._get_waypoints()
        return self._waypoints

    def should_repeat_waypoints(self) -> bool:
        return self._waypoints_should_repeat()

    def get_graspable_objects(self) -> list[Object]:
        return self._graspable_objects

    def success(self) -> tuple[bool, bool]:
        """(success, terminate). Without conditions, before the first reset, both are true."""
        failed = np.all([condition.condition_met()[0] for condition in self._fail_conditions])
        if self._fail_conditions and failed:
            return False, True
        met = np.all([condition.condition_met()[0] for condition in self._success_conditions])
        return met, met

    def load(self) -> Object:
        upright = np.array(rotation.IDENTITY)
        sim.add(Body(self.name, ObjectType.DUMMY, np.zeros(3), upright))
        for body in self.model():
            body.parent = self.name
            sim.add(body)
        return self.get_base()

    def unload(self) -> None:
        self._waypoints = None
        self.get_base().remove()
        self.clear_registerings()

    def cleanup_(self) -> None:
        for condition in self._success_conditions + self._fail_conditions:
            condition.reset()
        self._waypoints = None
        self.cleanup()

    def clear_registerings(self) -> None:
        self._success_conditions: list[Condition] = []
        self._fail_conditions: list[Condition] = []
        self._graspable_objects: list[Object] = []
        self._waypoints_should_repeat: Callable[[], bool] = lambda: False

    def get_base(self) -> Dummy:
        return Dummy(self.name)

    def get_state(self) -> list[Body]:
        return deepcopy([sim.get(self.name), *self._children()])

    def restore_state(self, state: list[Body]) -> None:
        for body in deepcopy(state):
            sim.simulator.bodies[body.name] = body

    def place(self, position: np.ndarray, quaternion: np.ndarray) -> None:
        """Move the base there, and the whole model with it."""
        base = sim.get(self.name)
        back = rotation.conjugate(base.quaternion)
        for body in self._children():
            offset = rotation.rotate(back, body.position - base.position)
            turn = rotation.multiply(back, body.quaternion)
            body.position = position + rotation.rotate(quaternion, offset)
            body.quaternion = np.array(rotation.multiply(quaternion, turn))
        base.position, base.quaternion = position, quaternion

    def to_world(self, offset: np.ndarray) -> np.ndarray:
        """Where a place, given in metres from the base, is in the world."""
        base = sim.get(self.name)
        return base.position + rotation.rotate(base.quaternion, offset)

    def _children(self) -> list[Body]:
        return [body for body in sim.simulator.bodies.values() if body.parent == self.name]

    def _get_waypoints(self) -> list[Point]:
        waypoints = []
        while Object.exists(name := f"waypoint{len(waypoints)}"):
            point = Point(Dummy(name), self.robot)
            if not point.is_feasible():
                message = f"Infeasible episode. Can't reach waypoint {len(waypoints)}."
                raise WaypointError(message, self)
            waypoints.append(point)
        return waypoints
