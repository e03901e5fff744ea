"""Actions of the whole robot."""

import numpy as np

from rlbench.action_modes.arm_action_modes import ArmActionMode, JointPosition
from rlbench.action_modes.gripper_action_modes import GripperActionMode, GripperJointPosition
from rlbench.backend.scene import Scene


class ActionMode:
    def __init__(
        self, arm_action_mode: ArmActionMode, gripper_action_mode: GripperActionMode
    ) -> None:
        self.arm_action_mode = arm_action_mode
        self.gripper_action_mode = gripper_action_mode

    def action(self, scene: Scene, action: np.ndarray) -> None:
        pass

    def action_shape(self, scene: Scene) -> int:
        pass

    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError("You must define your own action bounds.")

    def _split(self, scene: Scene, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.prod(self.arm_action_mode.action_shape(scene))
        return np.array(action[:size]), np.array(action[size:])

    def _size(self, scene: Scene) -> int:
        arm = self.arm_action_mode.action_shape(scene)
        return np.prod(arm) + np.prod(self.gripper_action_mode.action_shape(scene))


class MoveArmThenGripper(ActionMode):
    """First the arm, to the end; only then is the gripper's share of the action looked at."""

    def action(self, scene: Scene, action: np.ndarray) -> None:
        arm, gripper = self._split(scene, action)
        self.arm_action_mode.action(scene, arm)
        self.gripper_action_mode.action(scene, gripper)

    def action_shape(self, scene: Scene) -> int:
        return self._size(scene)


class JointPositionActionMode(ActionMode):
    """Joint deltas and the gripper's position in one step of the simulator."""

    def __init__(self) -> None:
        super().__init__(JointPosition(False), GripperJointPosition(True))

    def action(self, scene: Scene, action: np.ndarray) -> None:
        arm, gripper = self._split(scene, action)
        self.arm_action_mode.action_pre_step(scene, arm)
        self.gripper_action_mode.action_pre_step(scene, gripper)
        scene.step()
        self.arm_action_mode.action_post_step(scene, arm)
        self.gripper_action_mode.action_post_step(scene, gripper)

    def action_shape(self, scene: Scene) -> int:
        return self._size(scene)

    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(7 * [-0.1] + [0.0]), np.array(7 * [0.1] + [0.04])
