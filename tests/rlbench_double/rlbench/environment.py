"""The simulator with a robot in it, and the tasks for it."""

from pathlib import Path

from pyrep import PyRep

from rlbench import utils
from rlbench.action_modes.action_mode import ActionMode
from rlbench.backend.robot import Robot
from rlbench.backend.scene import Scene
from rlbench.backend.task import Task
from rlbench.const import SUPPORTED_ROBOTS
from rlbench.demo import Demo
from rlbench.observation_config import ObservationConfig
from rlbench.sim2real.domain_randomization import (
    DynamicsRandomizationConfig,
    RandomizeEvery,
    VisualRandomizationConfig,
)
from rlbench.task_environment import TaskEnvironment

SCENE_FILE = Path(__file__).parent / "task_design.ttt"


class Environment:
    def __init__(
        self,
        action_mode: ActionMode,
        dataset_root: str = "",
        obs_config: ObservationConfig = ObservationConfig(),  # noqa: B008  one for all, as there
        headless: bool = False,
        static_positions: bool = False,
        robot_setup: str = "panda",
        randomize_every: RandomizeEvery | None = None,
        frequency: int = 1,
        visual_randomization_config: VisualRandomizationConfig | None = None,
        dynamics_randomization_config: DynamicsRandomizationConfig | None = None,
        attach_grasped_objects: bool = True,
        shaped_rewards: bool = False,
        arm_max_velocity: float = 1.0,
        arm_max_acceleration: float = 4.0,
    ) -> None:
        self._action_mode = action_mode
        self._dataset_root = dataset_root
        self._obs_config = obs_config
        self._headless = headless
        self._static_positions = static_positions
        self._robot_setup = robot_setup.lower()
        self._attach_grasped_objects = attach_grasped_objects
        self._shaped_rewards = shaped_rewards
        self._arm_max_velocity = arm_max_velocity
        self._arm_max_acceleration = arm_max_acceleration
        if robot_setup not in SUPPORTED_ROBOTS:
            raise ValueError(f"robot_configuration must be one of {SUPPORTED_ROBOTS.keys()}")
        configs = (visual_randomization_config, dynamics_randomization_config)
        if randomize_every is not None and configs == (None, None):
            raise ValueError("domain randomization needs a visual or a dynamics config")
        if dataset_root and not Path(dataset_root).exists():
            raise RuntimeError(f"Data set root does not exists: {dataset_root}")
        self._pyrep: PyRep | None = None
        self._robot: Robot | None = None
        self._scene: Scene | None = None
        self._prev_task: Task | None = None

    def launch(self) -> None:
        if self._pyrep is not None:
            raise RuntimeError("Already called launch!")
        self._pyrep = PyRep()
        self._pyrep.launch(str(SCENE_FILE), headless=self._headless)
        arm_class, gripper_class, _ = SUPPORTED_ROBOTS[self._robot_setup]
        arm = arm_class(
            max_velocity=self._arm_max_velocity, max_acceleration=self._arm_max_acceleration
        )
        self._robot = Robot(arm, gripper_class())
        self._scene = Scene(self._pyrep, self._robot, self._obs_config, self._robot_setup)
        self._action_mode.arm_action_mode.set_control_mode(self._robot)

    def shutdown(self) -> None:
        if self._pyrep is not None:
            self._pyrep.shutdown()
        self._pyrep = None

    def get_task(self, task_class: type[Task]) -> TaskEnvironment:
        """The task, in place of the one before, whose TaskEnvironment is then worth nothing."""
        if self._pyrep is None:
            self.launch()
        self._scene.unload()
        task = task_class(self._pyrep, self._robot)
        self._prev_task = task
        return TaskEnvironment(
            self._pyrep,
            self._robot,
            self._scene,
            task,
            self._action_mode,
            self._dataset_root,
            self._obs_config,
            self._static_positions,
            self._attach_grasped_objects,
            self._shaped_rewards,
        )

    @property
    def action_shape(self) -> tuple[int]:
        return (self._action_mode.action_shape(self._scene),)

    def get_demos(
        self,
        task_name: str,
        amount: int,
        variation_number: int = 0,
        image_paths: bool = False,
        random_selection: bool = True,
        from_episode_number: int = 0,
    ) -> list[Demo]:
        if not self._dataset_root:
            raise RuntimeError("Can't ask for a stored demo when no dataset root provided.")
        return utils.get_stored_demos(
            amount,
            image_paths,
            self._dataset_root,
            variation_number,
            task_name,
            self._obs_config,
            random_selection,
            from_episode_number,
        )
