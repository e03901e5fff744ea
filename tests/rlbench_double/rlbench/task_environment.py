"""One task in the scene: reset, step, demonstrations."""

import logging
import time
from collections.abc import Callable

import numpy as np
from pyrep import PyRep
from pyrep.backend import switches

from rlbench import utils
from rlbench.action_modes.action_mode import ActionMode
from rlbench.backend.exceptions import BoundaryError, TaskEnvironmentError, WaypointError
from rlbench.backend.observation import Observation
from rlbench.backend.robot import Robot
from rlbench.backend.scene import Scene
from rlbench.backend.task import Task
from rlbench.demo import Demo
from rlbench.observation_config import ObservationConfig

_MAX_RESET_ATTEMPTS = 40
_MAX_DEMO_ATTEMPTS = 10


class TaskEnvironment:
    def __init__(
        self,
        pyrep: PyRep,
        robot: Robot,
        scene: Scene,
        task: Task,
        action_mode: ActionMode,
        dataset_root: str,
        obs_config: ObservationConfig,
        static_positions: bool = False,
        attach_grasped_objects: bool = True,
        shaped_rewards: bool = False,
    ) -> None:
        self._pyrep = pyrep
        self._robot = robot
        self._scene = scene
        self._task = task
        self._variation_number = 0
        self._action_mode = action_mode
        self._dataset_root = dataset_root
        self._obs_config = obs_config
        self._static_positions = static_positions
        self._attach_grasped_objects = attach_grasped_objects
        self._shaped_rewards = shaped_rewards
        self._reset_called = False
        self._episode = self._steps = 0
        self._scene.load(self._task)
        self._pyrep.start()

    def get_name(self) -> str:
        return self._task.get_name()

    def sample_variation(self) -> int:
        self._variation_number = np.random.randint(0, self._task.variation_count())
        return self._variation_number

    def set_variation(self, v: int) -> None:
        if v >= self.variation_count():
            raise TaskEnvironmentError(
                f"Requested variation {v}, but there are only {self.variation_count()} variations."
            )
        self._variation_number = v

    def variation_count(self) -> int:
        return self._task.variation_count()

    def reset(self, demo: Demo | None = None) -> tuple[list[str], Observation]:
        self._fail_if_asked_to()
        self._scene.reset()
        attempts = getattr(demo, "num_reset_attempts", None)
        try:
            self._find_place()
            descriptions = self._scene.init_episode(
                self._variation_number,
                max_attempts=_MAX_RESET_ATTEMPTS if attempts is None else attempts,
                randomly_place=not self._static_positions,
                place_demo=attempts is not None,
            )
        except (BoundaryError, WaypointError) as error:
            raise TaskEnvironmentError(
                f"Could not place the task {self._task.get_name()} in the scene. This should not "
                "happen, please raise an issues on this task."
            ) from error
        self._reset_called = True
        return descriptions, self._scene.get_observation()

    def get_observation(self) -> Observation:
        return self._scene.get_observation()

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool]:
        """(observation, reward, terminate); terminate does not tell success from failure."""
        if not self._reset_called:
            raise RuntimeError("Call 'reset' before calling 'step' on a task.")
        self._steps += 1
        switches.strike("step", self._episode, self._steps)
        self._action_mode.action(self._scene, action)
        success, terminate = self._task.success()
        reward = float(success)
        if self._shaped_rewards:
            reward = self._task.reward()
            if reward is None:
                raise RuntimeError(
                    "User requested shaped rewards, but task "
                    f"{self._task.get_name()} does not have a defined reward() function."
                )
        return self._scene.get_observation(), reward, terminate

    def get_demos(
        self,
        amount: int,
        live_demos: bool = False,
        image_paths: bool = False,
        callable_each_step: Callable[[Observation], None] | None = None,
        max_attempts: int = _MAX_DEMO_ATTEMPTS,
        random_selection: bool = True,
        from_episode_number: int = 0,
    ) -> list[Demo]:
        """Stored demos (-1: all), or new ones of the current variation, each after a reset."""
        if live_demos:
            arm = self._robot.arm
            before = arm.joints[0].is_control_loop_enabled()
            arm.set_control_loop_enabled(True)
            demos = [self._get_live_demo(callable_each_step, max_attempts) for _ in range(amount)]
            arm.set_control_loop_enabled(before)
            return demos
        if not self._dataset_root:
            raise RuntimeError("Can't ask for a stored demo when no dataset root provided.")
        return utils.get_stored_demos(
            amount,
            image_paths,
            self._dataset_root,
            self._variation_number,
            self._task.get_name(),
            self._obs_config,
            random_selection,
            from_episode_number,
        )

    def reset_to_demo(self, demo: Demo) -> tuple[list[str], Observation]:
        demo.restore_state()
        self.set_variation(demo._observations[0].misc["variation_index"])
        return self.reset(demo)

    def _get_live_demo(
        self, callable_each_step: Callable[[Observation], None] | None, max_attempts: int
    ) -> Demo:
        for _ in range(max_attempts):
            random_seed = np.random.get_state()
            self.reset()
            try:
                demo = self._scene.get_demo(callable_each_step=callable_each_step)
            except Exception as error:  # noqa: BLE001  whatever it is, as there
                logging.getLogger().info("Bad demo. %s", error)
                continue
            demo.random_seed = random_seed
            return demo
        raise RuntimeError("Could not collect demos. Maybe a problem with the task?")

    def _fail_if_asked_to(self) -> None:
        self._episode, self._steps = switches.count("reset"), 0
        switches.strike("reset", self._episode)
        slow = switches.find("slow_reset")
        if slow is not None and slow.is_first():
            time.sleep(float(slow.value))

    def _find_place(self) -> None:
        if switches.happens("no_place", self._episode):
            raise BoundaryError("Could not place within boundary.")
