"""Everything of polyarm that touches RLBench, PyRep and CoppeliaSim.

One simulator per process, launched here and never forked. Cameras must be on when it is launched;
afterwards they are on only while a frame is drawn, which the simulator does for the state it is
in: physics and pixels do not depend on who looked before.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall
from polyarm.suites.rlbench.actions import Target
from polyarm.suites.rlbench.catalogue import find
from polyarm.suites.rlbench.environment import ROOT
from polyarm.suites.rlbench.private_root import PrivateRoot

CAMERAS = ("front", "wrist", "overhead", "left_shoulder", "right_shoulder")
"""RLBench's five cameras."""

CHANNELS = {"pixels": "rgb", "depth": "depth", "point_cloud": "point_cloud", "mask": "mask"}
"""What a camera gives: our observation's prefix and RLBench's name."""


def channels(spec: EnvSpec) -> list[str]:
    """What is delivered of each camera: ``"pixels"`` and what else was asked for."""
    return [prefix for prefix in CHANNELS if prefix == "pixels" or spec.options[prefix]]


_DEMO_ATTEMPTS = 10
_DEMO_BUDGET_S = 25.0  # all of it happens within the deadline of one step
_SAME_START = 1e-2  # metres and radians of the task's objects
_FAREWELL_S = 2.0


class ActionRefused(Exception):
    """The simulator did not execute an action; it and the episode are fine."""


@dataclass(frozen=True, slots=True)
class RandomStates:
    """The global generators, from which RLBench and its tasks draw.

    Attributes:
        numpy: NumPy's.
        python: Python's own; a few tasks use it.
    """

    numpy: Any
    python: Any

    @classmethod
    def current(cls) -> RandomStates:
        """As they are now."""
        return cls(np.random.get_state(), random.getstate())

    def restore(self) -> None:
        """Bring the generators back to this."""
        np.random.set_state(self.numpy)
        random.setstate(self.python)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the task's own waypoints did.

    Attributes:
        targets: Where the arm was, moment by moment.
        speeds: The fastest joint's speed at each moment, in radians per second.
    """

    targets: list[Target]
    speeds: list[float]


class Simulator:
    """One RLBench task in the one simulator of this process.

    Args:
        spec: What is wanted, complete.
        root: CoppeliaSim's folder.

    Raises:
        InvalidCall: The task has no shaped reward, or the process has launched a simulator.
    """

    _launched = False

    def __init__(self, spec: EnvSpec, root: Path) -> None:
        if Simulator._launched:
            # A second one would wait for the first for ever.
            raise InvalidCall("RLBench runs one simulator per process, and one was launched here")
        self._root = PrivateRoot(root)
        self._busy = threading.Lock()
        self._idle: _IdleRedraw | None = None
        self._cameras = spec.cameras
        self._channels = [CHANNELS[prefix] for prefix in channels(spec)]
        self._config = _observation_config(spec)
        self._environment = _environment(spec, self._config)
        self._launch()
        try:
            self._load(spec)
        except BaseException:
            self.close()
            raise

    def _launch(self) -> None:
        Simulator._launched = True
        self._set_cameras(on=True)
        with _same_folder(), _variable(ROOT, str(self._root.path)):
            self._environment.launch()
        self._set_cameras(on=False)

    def _load(self, spec: EnvSpec) -> None:
        self._env = self._environment.get_task(_task_class(spec))
        self._task = self._env._task
        self._success = _remember_success(self._task)
        self._variation = 0
        self._wants_task_state: bool = self._config.task_low_dim_state
        self._start: NDArray[np.float64] | None = None
        # A task's first reset also sets it up; every episode must find that done.
        self._env.reset()
        if spec.options["shaped_rewards"] and self._task.reward() is None:
            raise InvalidCall(f"{spec.name} has no shaped reward; leave shaped_rewards out")
        self._idle = _IdleRedraw(self._env._pyrep, self._busy, spec.options["idle_fps"])
        self._idle.start()

    @property
    def variation_count(self) -> int:
        """How many variations the task has."""
        return int(self._env.variation_count())

    def reset(self, variation: int) -> tuple[Sequence[str], Any]:
        """Start an episode from NumPy's global random state.

        Returns:
            RLBench's descriptions of the task and its observation, without frames.
        """
        with self._busy:
            self._success[0], self._variation = False, variation
            self._env.set_variation(variation)
            with self._task_state():
                descriptions, observation = self._env.reset()
            self._start = np.array(observation.task_low_dim_state, np.float64)
            return descriptions, observation

    def reset_to(self, demo: Any, variation: int) -> tuple[Sequence[str], Any]:
        """Start an episode as a demonstration started."""
        with self._busy:
            self._success[0], self._variation = False, variation
            # A task's first demonstration names variation 0, whatever it was.
            demo[0].misc["variation_index"] = variation
            with self._task_state():
                descriptions, observation = self._env.reset_to_demo(demo)
            self._start = np.array(observation.task_low_dim_state, np.float64)
            return descriptions, observation

    def step(self, action: NDArray[np.float64]) -> tuple[Any, float, bool, bool]:
        """Execute one action.

        Returns:
            RLBench's observation without frames, the reward, whether the task says that the
            episode is over, and whether its success conditions hold.

        Raises:
            ActionRefused: No joint positions or no path were found.
        """
        from rlbench.backend.exceptions import InvalidActionError

        with self._busy:
            try:
                observation, reward, terminate = self._env.step(action)
            except InvalidActionError as error:
                raise ActionRefused(str(error)) from error
        return observation, float(reward), bool(terminate), self.is_success

    @property
    def is_success(self) -> bool:
        """Whether the success conditions held when they were last looked at."""
        return self._success[0]

    def observe(self) -> Any:
        """RLBench's observation now, without frames."""
        with self._busy:
            return self._env.get_observation()

    def draw(self) -> Any:
        """RLBench's observation now, with frames of all cameras."""
        with self._busy:
            self._set_cameras(on=True)
            try:
                return self._env.get_observation()
            finally:
                self._set_cameras(on=False)

    def demonstrate(self, random_states: RandomStates) -> Demonstration:
        """Have the task's own waypoints play the current episode, then start it again.

        Args:
            random_states: Of the global generators, before the episode's reset.

        Raises:
            InvalidCall: They do not get there.
        """
        start, complaint = self._start, ""
        end = time.monotonic() + _DEMO_BUDGET_S
        for _ in range(_DEMO_ATTEMPTS):
            # Placing and planning have time limits, so that the same random numbers may fail once
            # and then succeed, or lead to another start.
            demo, complaint = self._live_demo(random_states)
            if demo is not None:
                random_states.restore()
                self.reset_to(demo, self._variation)
                if _same_start(start, self._start):
                    return _demonstration(demo)
                complaint = "it started from another place than the episode"
            if time.monotonic() > end:
                break
        raise InvalidCall(f"the task's waypoints give no demonstration of it: {complaint}")

    def _live_demo(self, random_states: RandomStates) -> tuple[Any, str]:
        """A demonstration, or None and why there is none."""
        random_states.restore()
        with self._busy:
            try:
                (demo,) = self._env.get_demos(1, live_demos=True, max_attempts=1)
            except RuntimeError as error:
                return None, str(error)
        return demo, ""

    def close(self) -> None:
        """End the simulator; afterwards the process may launch another."""
        if self._idle is not None:
            self._idle.stop()
        self._environment.shutdown()
        self._root.close()
        Simulator._launched = False

    @contextlib.contextmanager
    def _task_state(self) -> Iterator[None]:
        """Observe the task's own state, which tells starts of episodes apart."""
        self._config.task_low_dim_state = True
        try:
            yield
        finally:
            self._config.task_low_dim_state = self._wants_task_state

    def _set_cameras(self, *, on: bool) -> None:
        for camera in self._cameras:
            config = getattr(self._config, f"{camera}_camera")
            for channel in self._channels:
                setattr(config, channel, on)


def _demonstration(demo: Any) -> Demonstration:
    moments = [demo[index] for index in range(len(demo))]
    targets = [
        Target(
            np.asarray(moment.gripper_pose, np.float64),
            np.asarray(moment.joint_positions, np.float64),
            float(moment.gripper_open),
        )
        for moment in moments
    ]
    return Demonstration(targets, [float(np.abs(one.joint_velocities).max()) for one in moments])


def _same_start(one: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool(np.allclose(one, other, atol=_SAME_START))


class _IdleRedraw(threading.Thread):
    """Lets an idle simulator redraw its window, for people who look at it."""

    def __init__(self, pyrep: Any, busy: threading.Lock, fps: float) -> None:
        super().__init__(name="idle-redraw", daemon=True)
        self._pyrep = pyrep
        self._busy = busy
        self._fps = fps
        self._leave = threading.Event()

    def start(self) -> None:
        """Begin, unless the rate is zero."""
        if self._fps > 0:
            super().start()

    def run(self) -> None:
        """Redraw whenever nobody uses the simulator."""
        while not self._leave.wait(1.0 / self._fps):
            if self._busy.acquire(blocking=False):
                try:
                    self._pyrep.step_ui()
                finally:
                    self._busy.release()

    def stop(self) -> None:
        """End, and wait for it, but not for a simulator that hangs."""
        self._leave.set()
        if self.is_alive():
            self.join(_FAREWELL_S)


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """A variable for the time of a launch; the folder is this simulator's alone."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def _same_folder() -> Iterator[None]:
    """Come back to the working folder, which a launch changes."""
    folder = Path.cwd()
    try:
        yield
    finally:
        os.chdir(folder)


def _remember_success(task: Any) -> list[bool]:
    """Note what a task's success conditions say whenever they are looked at.

    ``step`` tells only whether the episode is over, which a broken constraint may be the cause of.
    """
    latest = [False]
    look: Callable[[], tuple[Any, Any]] = task.success

    def success() -> tuple[Any, Any]:
        succeeds, over = look()
        latest[0] = bool(succeeds)
        return succeeds, over

    task.success = success
    return latest


def _environment(spec: EnvSpec, config: Any) -> Any:
    from rlbench.environment import Environment

    options = spec.options
    return Environment(
        action_mode=_action_mode(spec),
        obs_config=config,
        headless=True,
        static_positions=options["static_positions"],
        robot_setup=options["robot_setup"],
        shaped_rewards=options["shaped_rewards"],
    )


def _observation_config(spec: EnvSpec) -> Any:
    """The low-dimensional part of an observation, and cameras that are all off."""
    from pyrep.const import RenderMode
    from rlbench.observation_config import CameraConfig, ObservationConfig

    height, width = spec.image_size
    mode = {"opengl3": RenderMode.OPENGL3, "opengl": RenderMode.OPENGL}
    cameras = {
        f"{camera}_camera": CameraConfig(
            image_size=(width, height), render_mode=mode[spec.options["render_mode"]]
        )
        for camera in CAMERAS
    }
    # A new one each: RLBench's default is one object that all environments share.
    config = ObservationConfig(**cameras)
    config.set_all(False)
    config.joint_positions = config.joint_velocities = config.joint_forces = True
    config.gripper_open = config.gripper_pose = config.gripper_joint_positions = True
    config.task_low_dim_state = bool(spec.options["task_state"])
    return config


def _task_class(spec: EnvSpec) -> Any:
    from rlbench.utils import name_to_task_class

    return name_to_task_class(find(spec.task)[0])


def _action_mode(spec: EnvSpec) -> Any:
    from rlbench.action_modes import arm_action_modes as arms
    from rlbench.action_modes import gripper_action_modes as grippers
    from rlbench.action_modes.action_mode import ActionMode

    options = spec.options
    absolute = options["control"] == "absolute"

    def planner(*, checking: bool) -> Any:
        return arms.EndEffectorPoseViaPlanning(absolute_mode=absolute, collision_checking=checking)

    class ArmThenGripper(ActionMode):  # type: ignore[misc]
        """The arm moves, then the gripper; a number behind them chooses between two planners.

        RLBench's own ``MoveArmThenGripper`` knows of no such number, and that of PerAct's RLBench
        takes it away from an action that has none.
        """

        def action(self, scene: Any, action: NDArray[np.float64]) -> None:
            size = int(np.prod(self.arm_action_mode.action_shape(scene)))
            ignored = action[size + 1] > 0.5 if len(action) > size + 1 else not checking
            arm = planners[int(ignored)] if planners else self.arm_action_mode
            arm.action(scene, action[:size], *([bool(ignored)] if is_told else []))
            self.gripper_action_mode.action(scene, action[size : size + 1])

        def action_shape(self, scene: Any) -> Any:
            size = np.prod(self.arm_action_mode.action_shape(scene))
            return size + 1 + options["ignore_collision"]

    checking: bool = options["collision_checking"]
    chosen = (True, False) if options["ignore_collision"] else ()
    planners = [planner(checking=each) for each in chosen]
    arm = {
        "ik": lambda: arms.EndEffectorPoseViaIK(absolute_mode=absolute),
        "planning": lambda: planner(checking=checking),
        "joint_velocity": arms.JointVelocity,
        "joint_position": lambda: arms.JointPosition(absolute_mode=absolute),
        "joint_torque": arms.JointTorque,
    }[options["arm_mode"]]()
    # That of PerAct's RLBench is told whether to ignore collisions.
    is_told = "ignore_collisions" in inspect.signature(arm.action).parameters
    continuous = options["gripper"] == "continuous"
    return ArmThenGripper(
        arm, grippers.GripperJointPosition() if continuous else grippers.Discrete()
    )
