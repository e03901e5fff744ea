"""What an arm can be asked for: joints, or poses of its tip (x, y, z, qx, qy, qz, qw)."""

from enum import Enum

import numpy as np
from pyrep.backend import rotation
from pyrep.errors import ConfigurationPathError, IKError

from rlbench.backend.exceptions import InvalidActionError
from rlbench.backend.robot import Robot
from rlbench.backend.scene import Scene
from rlbench.const import SUPPORTED_ROBOTS


def assert_action_shape(action: np.ndarray, expected_shape: tuple[int, ...]) -> None:
    if np.shape(action) != expected_shape:
        raise InvalidActionError(
            f"Expected the action shape to be: {expected_shape}, but was shape: {np.shape(action)}"
        )


def assert_unit_quaternion(quat: np.ndarray) -> None:
    if not np.isclose(np.linalg.norm(quat), 1.0):
        raise InvalidActionError("Action contained non unit quaternion!")


def calculate_delta_pose(robot: Robot, action: np.ndarray) -> np.ndarray:
    """The pose after a move and a turn, both in the world's directions."""
    pose = robot.arm.get_tip().get_pose()
    return np.array([*(pose[:3] + action[:3]), *rotation.multiply(action[3:], pose[3:])])


class RelativeFrame(Enum):
    WORLD = 0
    EE = 1


class ArmActionMode:
    def action(self, scene: Scene, action: np.ndarray) -> None:
        self.action_pre_step(scene, action)
        self.action_step(scene, action)
        self.action_post_step(scene, action)

    def action_pre_step(self, scene: Scene, action: np.ndarray) -> None:
        pass

    def action_step(self, scene: Scene, action: np.ndarray) -> None:
        scene.step()

    def action_post_step(self, scene: Scene, action: np.ndarray) -> None:
        pass

    def action_shape(self, scene: Scene) -> tuple[int, ...]:
        pass

    def set_control_mode(self, robot: Robot) -> None:
        robot.arm.set_control_loop_enabled(True)


class _JointMode(ArmActionMode):
    def action_shape(self, scene: Scene) -> tuple[int, ...]:
        return (SUPPORTED_ROBOTS[scene.robot_setup][2],)


class JointVelocity(_JointMode):
    """Radians per second for one step of the simulator."""

    def action_pre_step(self, scene: Scene, action: np.ndarray) -> None:
        assert_action_shape(action, self.action_shape(scene))
        scene.robot.arm.set_joint_target_velocities(action)

    def action_post_step(self, scene: Scene, action: np.ndarray) -> None:
        scene.robot.arm.set_joint_target_velocities(np.zeros_like(action))

    def set_control_mode(self, robot: Robot) -> None:
        robot.arm.set_control_loop_enabled(False)
        robot.arm.set_motor_locked_at_zero_velocity(True)


class JointPosition(_JointMode):
    """Radians to go to, for one step of the simulator, arrived or not."""

    def __init__(self, absolute_mode: bool = True) -> None:
        self._absolute_mode = absolute_mode

    def action_pre_step(self, scene: Scene, action: np.ndarray) -> None:
        assert_action_shape(action, self.action_shape(scene))
        arm = scene.robot.arm
        start = 0.0 if self._absolute_mode else np.array(arm.get_joint_positions())
        arm.set_joint_target_positions(start + action)

    def action_post_step(self, scene: Scene, action: np.ndarray) -> None:
        arm = scene.robot.arm
        arm.set_joint_target_positions(arm.get_joint_positions())


class JointTorque(_JointMode):
    """Newton metres, as a limit on motors that are told to turn as fast as they can."""

    TORQUE_MAX_VEL = 9999

    def action_pre_step(self, scene: Scene, action: np.ndarray) -> None:
        assert_action_shape(action, self.action_shape(scene))
        self._push(scene.robot, action)

    def action_post_step(self, scene: Scene, action: np.ndarray) -> None:
        self._push(scene.robot, np.array(scene.robot.arm.get_joint_forces()))
        scene.robot.arm.set_joint_target_velocities(np.zeros_like(action))

    def set_control_mode(self, robot: Robot) -> None:
        robot.arm.set_control_loop_enabled(False)

    def _push(self, robot: Robot, torques: np.ndarray) -> None:
        fastest = np.where(torques < 0, self.TORQUE_MAX_VEL, -self.TORQUE_MAX_VEL)
        robot.arm.set_joint_target_velocities(fastest)
        robot.arm.set_joint_forces(np.abs(torques))


class _PoseMode(ArmActionMode):
    def __init__(
        self,
        absolute_mode: bool = True,
        frame: RelativeFrame = RelativeFrame.WORLD,
        collision_checking: bool = False,
    ) -> None:
        self._absolute_mode = absolute_mode
        self._frame = frame
        self._collision_checking = collision_checking

    def action_shape(self, scene: Scene) -> tuple[int, ...]:
        return (7,)

    def _check(self, scene: Scene, action: np.ndarray) -> np.ndarray:
        assert_action_shape(action, (7,))
        assert_unit_quaternion(action[3:])
        if not self._absolute_mode and self._frame != RelativeFrame.EE:
            return calculate_delta_pose(scene.robot, action)
        return action

    def _get_frame(self, scene: Scene) -> object:
        return None if self._frame == RelativeFrame.WORLD else scene.robot.arm.get_tip()


class EndEffectorPoseViaPlanning(_PoseMode):
    """A pose anywhere in the workspace, reached along a planned path."""

    def action(self, scene: Scene, action: np.ndarray) -> None:
        action = self._check(scene, action)
        frame = self._get_frame(scene)
        self._check_boundary(scene, action, frame)
        try:
            path = scene.robot.arm.get_path(
                action[:3],
                quaternion=action[3:],
                ignore_collisions=not self._collision_checking,
                relative_to=frame,
            )
        except ConfigurationPathError as error:
            raise InvalidActionError(
                "A path could not be found. Most likely due to the target being inaccessible or a "
                "collison was detected."
            ) from error
        done = False
        while not done:
            done = path.step()
            scene.step()
            if scene.task.success()[0]:
                break

    def _check_boundary(self, scene: Scene, action: np.ndarray, frame: object) -> None:
        position = action[:3]
        if frame is not None:
            pose = frame.get_pose()
            position = pose[:3] + rotation.rotate(pose[3:], position)
        if not scene.check_target_in_workspace(position):
            raise InvalidActionError(
                "A path could not be found because the target is outside of workspace."
            )


class EndEffectorPoseViaIK(_PoseMode):
    """A pose close to the current one."""

    def action(self, scene: Scene, action: np.ndarray) -> None:
        action = self._check(scene, action)
        arm = scene.robot.arm
        try:
            goal = arm.solve_ik_via_jacobian(
                action[:3], quaternion=action[3:], relative_to=self._get_frame(scene)
            )
        except IKError as error:
            raise InvalidActionError(
                "Could not perform IK via Jacobian; most likely due to current end-effector pose "
                "being too far from the given target pose. Try limiting/bounding your action space."
            ) from error
        arm.set_joint_target_positions(goal)
        before = None
        while True:
            scene.step()
            now = arm.get_joint_positions()
            is_still = before is not None and np.allclose(now, before, atol=0.001)
            if is_still or np.allclose(now, goal, atol=0.01):
                break
            before = now
