"""A scripted expert for LIBERO's pick-and-place tasks.

It reads the task's goal and the simulator's state, and moves each thing that the goal names to
its place: grip it from above, lift, carry, lower, release. Where to grip it and where to put it
is searched on height maps of the collision geometry; nothing here is written for one object or
one scene. It only reads: neither the simulator nor any random generator is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import InvalidCall
from polyarm.suites.libero.grasping import CLEARANCE, HOME_YAW, Carry, find_grasp, lowest
from polyarm.suites.libero.height_map import Floats, HeightMap, rectangle

Action = NDArray[np.float32]
Script = Iterator[Action]

OPEN, CLOSED = -1.0, 1.0

_METRES, _RADIANS = 0.05, 0.5
"""What an action of 1 asks of robosuite's OSC_POSE controller."""
_GAIN = 2.5
"""How many times the error is asked for; the controller alone closes a third of it in a step."""
_TRAVEL = 0.03
"""Room left under whatever is carried across the scene, in metres."""

_BEYOND = (
    ("plate", "stove_front_region"),  # too flat to be gripped
    ("ketchup", "cabinet_1_top_region"),  # too tall to stand in a drawer
    ("black_book", "caddy_1_front_contain_region"),  # has to be turned
    ("", "shelf_1_top_region"),  # under a roof, as the next
    ("", "shelf_1_bottom_region"),
)
"""Starts of things and ends of targets, for goals that were tried and mostly missed."""


def can_solve(problem: Mapping[str, Any]) -> bool:
    """Whether a parsed BDDL problem is one of pick and place that the expert masters."""
    return all(_is_reachable(goal, problem["initial_state"]) for goal in problem["goal_state"])


def _is_reachable(goal: list[str], initial_state: list[list[str]]) -> bool:
    if goal[0] not in ("on", "in"):
        return False
    _, thing, target = goal
    is_closed = "cabinet" in target and goal[0] == "in" and ["open", target] not in initial_state
    return not is_closed and not any(
        thing.startswith(start) and target.endswith(end) for start, end in _BEYOND
    )


class PickAndPlace:
    """The expert for one task; deterministic given the states it sees.

    Args:
        env: robosuite's env of the task, the ``env`` inside LIBERO's ``ControlEnv``.

    Raises:
        InvalidCall: The task is not one that `can_solve`.
    """

    def __init__(self, env: Any) -> None:
        if not can_solve(env.parsed_problem):
            raise InvalidCall(
                f"no expert for the goal {env.parsed_problem['goal_state']}: it only puts things "
                "where they can be lowered from above. Choose another task or policy."
            )
        self._env = env
        self.reset()

    def reset(self) -> None:
        """Begin a new episode, whatever the state of the last one."""
        self._yaw = HOME_YAW
        self._held: tuple[int, Floats] | None = None
        self._script = self._play()

    def action(self) -> Action:
        """What to do now, float32 (7,) in [-1, 1]: OSC deltas, and the gripper (1 closes)."""
        return next(self._script)

    def _play(self) -> Script:
        goals = self._env.parsed_problem["goal_state"]
        things = {thing for _, thing, _ in goals}
        # What others are put on is itself put in place first.
        goals = sorted(goals, key=lambda goal: goal[2] in things)
        while True:
            missing = [goal for goal in goals if not self._env._eval_predicate(goal)]
            if missing:
                _, thing, target = missing[0]
                yield from self._pick(thing, target)
                yield from self._place(thing, target)
            else:
                yield from self._hold(OPEN, steps=1)

    def _pick(self, thing: str, target: str) -> Script:
        """Grip the thing where it can also be let go of at its place, and lift it a little."""
        body = self._env.obj_body_id[thing]
        mine, others = self._maps(thing, target)
        shift = self._find_place(thing, target, mine, others) - self._position(body)
        grasp = find_grasp(mine, others, Carry(self._mass(body), shift, self._shoulder))
        self._yaw = grasp.yaw
        yield from self._travel(lambda: grasp.position, OPEN, (mine, others), hang=0.01)
        yield from self._hold(CLOSED, steps=15)
        self._held = (body, self._hand - self._position(body))
        # Slide out from under whatever is above, such as a cabinet over its open drawer.
        slides = rectangle((0.08, 0.08), 0.01)
        free = slides[_rises(slides, mine, others) < 0.01]
        slide = min(free, key=np.linalg.norm, default=np.zeros(2))
        yield from self._shift([*slide, 0.003], CLOSED)
        yield from self._shift([0, 0, 0.05], CLOSED)

    def _place(self, thing: str, target: str) -> Script:
        """Carry the thing to its place and let go of it; if it has slipped, just let go."""
        body = self._env.obj_body_id[thing]
        mine, others = self._maps(thing, target)
        place = self._find_place(thing, target, mine, others)

        def release_point() -> Floats:
            point = place + self._hand - self._position(body)
            point[2] = max(point[2], lowest(point[None, :2], self._yaw, others)[0])
            return point

        hang = self._hand[2] - mine.cells()[1].min()
        yield from self._travel(release_point, CLOSED, (others,), hang)
        self._held = None
        yield from self._hold(OPEN, steps=8)
        yield from self._shift([0, 0, 0.08], OPEN)

    def _find_place(self, thing: str, target: str, mine: HeightMap, others: HeightMap) -> Floats:
        """Where the thing's origin goes: as low, then as central as the target allows."""
        origin = self._position(self._env.obj_body_id[thing])
        if target in self._env.obj_body_id:
            spots = self._position(self._env.obj_body_id[target])[None, :2]
        else:
            site = self._env.sim.model.site_name2id(target)
            axes = self._env.sim.data.site_xmat[site].reshape(3, 3)
            half = np.abs(axes @ self._env.object_sites_dict[target].size)[:2] - 0.01
            spots = self._env.sim.data.site_xpos[site][:2] + rectangle(half, 0.01)
        rises = _rises(spots - origin[:2], mine, others)
        from_centre = np.linalg.norm(spots - spots.mean(0), axis=1)
        best = np.argmin(rises + 0.3 * from_centre)
        return np.array([*spots[best], origin[2] + rises[best] + CLEARANCE])

    def _maps(self, thing: str, target: str) -> tuple[HeightMap, HeightMap]:
        """The thing, and everything else but the robot, seen from above."""
        model, data = self._env.sim.model, self._env.sim.data
        body = self._env.obj_body_id[thing]
        robot = model.body_name2id(self._env.robots[0].robot_model.root_body)
        roots = model.body_rootid[model.geom_bodyid]
        is_solid = (model.geom_contype > 0) | (model.geom_conaffinity > 0)
        is_mine = is_solid & (roots == model.body_rootid[body])
        centre = self._env.object_states_dict[target].get_geom_state()["pos"]
        points = np.stack([self._hand, self._position(body), centre])[:, :2]
        low, high = points.min(0) - 0.25, points.max(0) + 0.25
        mine = HeightMap(low, high, ground=-np.inf)
        mine.draw(model, data, np.flatnonzero(is_mine).tolist())
        others = HeightMap(low, high, ground=0.0)
        others.draw(model, data, np.flatnonzero(is_solid & ~is_mine & (roots != robot)).tolist())
        return mine, others

    @property
    def _hand(self) -> Floats:
        return np.array(self._env.sim.data.site_xpos[self._env.robots[0].eef_site_id])

    @property
    def _shoulder(self) -> Floats:
        robot = self._env.robots[0].robot_model.root_body
        x, y, z = self._env.sim.data.get_body_xpos(robot)
        # The shoulder is 0.333 m above the base, the wrist 0.2 m above the grip site.
        return np.array([x, y, z + 0.333 - 0.2])

    def _position(self, body: int) -> Floats:
        return np.array(self._env.sim.data.xpos[body])

    def _mass(self, body: int) -> Floats:
        return np.array(self._env.sim.data.xipos[body])

    def _travel(
        self, goal: Callable[[], Floats], grip: float, maps: Sequence[HeightMap], hang: float
    ) -> Script:
        """Rise above everything on the way, cross, come down on the goal.

        Args:
            goal: Where the hand goes (3,), asked anew at each step.
            grip: What the gripper does meanwhile.
            maps: What is on the way.
            hang: How far the hand and what it holds reach below the grip site.
        """
        start, end = self._hand, goal()
        line = start[:2] + np.linspace(0, 1, 50)[:, None] * (end - start)[:2]
        corridor = line[:, None] + rectangle((0.06, 0.06), 0.02)
        highest = max(heights.tops(corridor).max() for heights in maps)
        height = max(highest + hang + _TRAVEL, end[2])
        if start[2] < height:
            yield from self._shift([0, 0, height - start[2]], grip, tolerance=0.02)
        yield from self._servo(lambda: np.array([*goal()[:2], height]), grip, tolerance=0.01)
        yield from self._servo(goal, grip, tolerance=0.003)

    def _shift(self, offset: Sequence[float], grip: float, tolerance: float = 0.01) -> Script:
        goal = self._hand + offset
        return self._servo(lambda: goal, grip, tolerance)

    def _servo(self, goal: Callable[[], Floats], grip: float, tolerance: float) -> Script:
        """Move the hand to within ``tolerance`` of the goal, unless it gets stuck or slips off."""
        still, before = 0, self._hand
        while still < 5 and not self._slipped():
            move, turn = goal() - self._hand, self._turn()
            if np.abs(move).max() < tolerance and np.abs(turn).max() < 0.05:
                return
            yield _action(move, turn, grip)
            still = still + 1 if np.linalg.norm(self._hand - before) < 0.001 else 0
            before = self._hand

    def _hold(self, grip: float, steps: int) -> Script:
        where = self._hand
        for _ in range(steps):
            yield _action(where - self._hand, self._turn(), grip)

    def _slipped(self) -> bool:
        if self._held is None:
            return False
        body, offset = self._held
        return bool(np.linalg.norm(self._hand - self._position(body) - offset) > 0.04)

    def _turn(self) -> Floats:
        """Rotation vector (3,) from how the hand is to straight down at the wanted yaw."""
        cos, sin = np.cos(self._yaw), np.sin(self._yaw)
        wanted = np.array([[cos, sin, 0], [sin, -cos, 0], [0, 0, -1]])
        hand = self._env.sim.data.site_xmat[self._env.robots[0].eef_site_id].reshape(3, 3)
        turn = wanted @ hand.T
        axis = np.array([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
        sine, cosine = np.linalg.norm(axis) / 2, (np.trace(turn) - 1) / 2
        rotation: Floats = axis / 2 * np.arctan2(sine, cosine) / max(sine, 1e-9)
        return rotation


def _rises(shifts: Floats, mine: HeightMap, others: HeightMap) -> Floats:
    """By how much a thing has to rise to be clear of what is there, for each shift (n, 2)."""
    cells, bottoms = (array[::3] for array in mine.cells())
    rises: Floats = (others.tops(cells + shifts[:, None]) - bottoms).max(1)
    return rises


def _action(move: Floats, turn: Floats, grip: float) -> Action:
    parts = [_GAIN * move / _METRES, _GAIN * turn / _RADIANS]
    # Clipped as a whole, so that a long way is straight.
    deltas = [part / max(1.0, np.abs(part).max()) for part in parts]
    return np.array([*deltas[0], *deltas[1], grip], np.float32)
