"""What a gripper can be asked for."""

import numpy as np

from rlbench.backend.exceptions import InvalidActionError
from rlbench.backend.scene import Scene

STEPS_TO_DROP = 10


def assert_action_shape(action: np.ndarray, expected_shape: tuple[int, ...]) -> None:
    if np.shape(action) != expected_shape:
        raise InvalidActionError(
            f"Expected the action shape to be: {expected_shape}, but was shape: {np.shape(action)}"
        )


class GripperActionMode:
    def action(self, scene: Scene, action: np.ndarray) -> None:
        pass

    def action_pre_step(self, scene: Scene, action: np.ndarray) -> None:
        pass

    def action_post_step(self, scene: Scene, action: np.ndarray) -> None:
        pass

    def action_shape(self, scene: Scene) -> tuple[int, ...]:
        return (1,)

    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        pass


class Discrete(GripperActionMode):
    """Above 0.5 opens, anything else closes: 7.5 opens and NaN closes, without a word."""

    def __init__(
        self, attach_grasped_objects: bool = True, detach_before_open: bool = True
    ) -> None:
        self._attach_grasped_objects = attach_grasped_objects
        self._detach_before_open = detach_before_open

    def action(self, scene: Scene, action: np.ndarray) -> None:
        assert_action_shape(action, self.action_shape(scene.robot))
        gripper = scene.robot.gripper
        is_open = all(amount > 0.9 for amount in gripper.get_open_amount())
        opens = bool(action[0] > 0.5)
        if opens == is_open:
            return
        if not self._detach_before_open:
            self._actuate(scene, opens=opens)
        if not opens and self._attach_grasped_objects:
            for obj in scene.task.get_graspable_objects():
                gripper.grasp(obj)
        else:
            gripper.release()
        if self._detach_before_open:
            self._actuate(scene, opens=opens)
        for _ in range(STEPS_TO_DROP if opens else 0):
            scene.pyrep.step()
            scene.task.step()

    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([0]), np.array([1])

    def _actuate(self, scene: Scene, *, opens: bool) -> None:
        done = False
        while not done:
            done = scene.robot.gripper.actuate(float(opens), velocity=0.2)
            scene.pyrep.step()
            scene.task.step()


class GripperJointPosition(GripperActionMode):
    """Metres between each finger and the middle, for one step of the simulator."""

    def __init__(
        self,
        attach_grasped_objects: bool = True,
        detach_before_open: bool = True,
        absolute_mode: bool = True,
    ) -> None:
        self._absolute_mode = absolute_mode
        self._control_mode_set = False

    def action(self, scene: Scene, action: np.ndarray) -> None:
        self.action_pre_step(scene, action)
        scene.step()
        self.action_post_step(scene, action)

    def action_pre_step(self, scene: Scene, action: np.ndarray) -> None:
        gripper = scene.robot.gripper
        if not self._control_mode_set:
            gripper.set_control_loop_enabled(True)
            self._control_mode_set = True
        assert_action_shape(action, self.action_shape(scene.robot))
        fingers = action.repeat(2)
        gripper.set_joint_target_positions(
            fingers if self._absolute_mode else gripper.get_joint_positions()
        )

    def action_post_step(self, scene: Scene, action: np.ndarray) -> None:
        gripper = scene.robot.gripper
        gripper.set_joint_target_positions(gripper.get_joint_positions())

    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([0]), np.array([0.04])
