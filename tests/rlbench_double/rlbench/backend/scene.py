"""The scene: robot, cameras and the one task that is loaded."""

from collections.abc import Callable

import numpy as np
from pyrep import PyRep
from pyrep.backend import rotation

from rlbench.backend.cameras import PLACES, Cameras
from rlbench.backend.demonstration import Demonstration
from rlbench.backend.exceptions import BoundaryError, WaypointError
from rlbench.backend.observation import Observation
from rlbench.backend.robot import Robot
from rlbench.backend.task import Task
from rlbench.demo import Demo
from rlbench.observation_config import ObservationConfig

STEPS_BEFORE_EPISODE_START = 10
WORKSPACE = np.array([0.25, 0.0, 0.752])
SPREAD = np.array([0.12, 0.2, 0.0])
# Where the tip may be sent, corner to corner.
LOWEST = np.array([-0.275, -0.655, 0.752])
HIGHEST = np.array([0.775, 0.655, 1.752])


class Scene:
    def __init__(
        self,
        pyrep: PyRep,
        robot: Robot,
        obs_config: ObservationConfig = ObservationConfig(),  # noqa: B008  one for all, as there
        robot_setup: str = "panda",
    ) -> None:
        self.pyrep = pyrep
        self.robot = robot
        self.robot_setup = robot_setup
        self.task: Task | None = None
        self._obs_config = obs_config
        self._start_arm_joint_pos = robot.arm.get_joint_positions()
        self._starting_gripper_joint_pos = robot.gripper.get_joint_positions()
        self._cameras = Cameras(obs_config)
        for camera, (name, *_) in PLACES.items():
            setattr(self, f"_{name}", self._cameras.sensors[camera])
            setattr(self, f"_{name}_mask", self._cameras.mask_sensors[camera])
        self._has_init_task = self._has_init_episode = False
        self._variation_index = 0
        self._attempts = 0
        self._initial_task_state: list | None = None
        self._step_callback: Callable[[], None] | None = None
        self._joint_position_action: np.ndarray | None = None

    def load(self, task: Task) -> None:
        task.load()
        task.place(WORKSPACE, np.array(rotation.IDENTITY))
        self._initial_task_state = task.get_state()
        self.task = task
        self._has_init_task = self._has_init_episode = False
        self._variation_index = 0

    def unload(self) -> None:
        if self.task is not None:
            self.robot.gripper.release()
            if self._has_init_task:
                self.task.cleanup_()
            self.task.unload()
        self.task = None
        self._variation_index = 0

    def init_task(self) -> None:
        self.task.init_task()
        self._initial_task_state = self.task.get_state()
        self._has_init_task = True
        self._variation_index = 0

    def init_episode(
        self,
        index: int,
        randomly_place: bool = True,
        max_attempts: int = 5,
        place_demo: bool = False,
    ) -> list[str]:
        """Set up a variation. For a demo, place it as often as that demo was, and check nothing."""
        self._variation_index = index
        if not self._has_init_task:
            self.init_task()
        self._attempts = 0
        descriptions: list[str] = []
        while self._attempts < max_attempts:
            descriptions = self.task.init_episode(index)
            try:
                if randomly_place and not self.task.is_static_workspace():
                    self._place_task()
                if not place_demo:
                    self.task.validate()
                    break
                self._attempts += 1
            except (BoundaryError, WaypointError):
                self.task.cleanup_()
                self.task.restore_state(self._initial_task_state)
                self._attempts += 1
                if self._attempts >= max_attempts:
                    raise
        for _ in range(STEPS_BEFORE_EPISODE_START):
            self.pyrep.step()
        self._has_init_episode = True
        return descriptions

    def reset(self) -> None:
        arm, gripper = self.robot.arm, self.robot.gripper
        gripper.release()
        arm.set_joint_positions(self._start_arm_joint_pos, disable_dynamics=True)
        arm.set_joint_target_velocities([0] * len(arm.joints))
        gripper.set_joint_positions(self._starting_gripper_joint_pos, disable_dynamics=True)
        gripper.set_joint_target_velocities([0] * len(gripper.joints))
        if self.task is not None and self._has_init_task:
            self.task.cleanup_()
            self.task.restore_state(self._initial_task_state)
        self.task.set_initial_objects_in_scene()

    def get_observation(self) -> Observation:
        arm, gripper, config = self.robot.arm, self.robot.gripper, self._obs_config
        tip = arm.get_tip()
        wanted = {
            "joint_velocities": lambda: config.joint_velocities_noise.apply(
                np.array(arm.get_joint_velocities())
            ),
            "joint_positions": lambda: config.joint_positions_noise.apply(
                np.array(arm.get_joint_positions())
            ),
            "joint_forces": lambda: config.joint_forces_noise.apply(self._get_joint_forces()),
            "gripper_open": lambda: float(gripper.get_open_amount()[0] > 0.9),
            "gripper_pose": lambda: np.array(tip.get_pose()),
            "gripper_matrix": tip.get_matrix,
            "gripper_joint_positions": lambda: np.array(gripper.get_joint_positions()),
            "gripper_touch_forces": lambda: np.concatenate(gripper.get_touch_sensor_forces()),
            "task_low_dim_state": lambda: self.task.get_low_dim_state(),
        }
        low = {name: read() if getattr(config, name) else None for name, read in wanted.items()}
        observation = Observation(**self._cameras.capture(tip), **low, misc=self._get_misc())
        return self.task.decorate_observation(observation)

    def step(self) -> None:
        self.pyrep.step()
        self.task.step()
        if self._step_callback is not None:
            self._step_callback()

    def register_step_callback(self, func: Callable[[], None]) -> None:
        self._step_callback = func

    def get_demo(
        self,
        record: bool = True,
        callable_each_step: Callable[[Observation], None] | None = None,
        randomly_place: bool = True,
    ) -> Demo:
        if not self._has_init_task:
            self.init_task()
        if not self._has_init_episode:
            self.init_episode(self._variation_index, randomly_place=randomly_place)
        self._has_init_episode = False
        demo = Demo(Demonstration(self, callable_each_step, record=record).run())
        demo.num_reset_attempts = self._attempts + 1
        return demo

    def get_observation_config(self) -> ObservationConfig:
        return self._obs_config

    def check_target_in_workspace(self, target_pos: np.ndarray) -> bool:
        return bool(np.all((target_pos > LOWEST) & (target_pos < HIGHEST)))

    def _get_joint_forces(self) -> np.ndarray:
        forces = self.robot.arm.get_joint_forces()
        targets = self.robot.arm.get_joint_target_velocities()
        pairs = zip(forces, targets, strict=True)
        return np.array([-force if target < 0 else force for force, target in pairs])

    def _place_task(self) -> None:
        low, high = self.task.base_rotation_bounds()
        yaw = np.random.uniform(low[2], high[2])
        position = WORKSPACE + np.random.uniform(-SPREAD, SPREAD)
        self.task.place(position, np.array(rotation.about(2, yaw)))

    def _get_misc(self) -> dict[str, object]:
        misc = self._cameras.get_misc() | {"variation_index": self._variation_index}
        if self._joint_position_action is not None:
            misc["joint_position_action"] = self._joint_position_action
        return misc | {"joint_poses": [joint.get_pose() for joint in self.robot.arm.joints]}
