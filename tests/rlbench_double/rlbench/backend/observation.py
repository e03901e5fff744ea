"""One observation; what is switched off is None."""

from dataclasses import dataclass

import numpy as np


@dataclass(eq=False)
class Observation:
    left_shoulder_rgb: np.ndarray
    left_shoulder_depth: np.ndarray
    left_shoulder_mask: np.ndarray
    left_shoulder_point_cloud: np.ndarray
    right_shoulder_rgb: np.ndarray
    right_shoulder_depth: np.ndarray
    right_shoulder_mask: np.ndarray
    right_shoulder_point_cloud: np.ndarray
    overhead_rgb: np.ndarray
    overhead_depth: np.ndarray
    overhead_mask: np.ndarray
    overhead_point_cloud: np.ndarray
    wrist_rgb: np.ndarray
    wrist_depth: np.ndarray
    wrist_mask: np.ndarray
    wrist_point_cloud: np.ndarray
    front_rgb: np.ndarray
    front_depth: np.ndarray
    front_mask: np.ndarray
    front_point_cloud: np.ndarray
    joint_velocities: np.ndarray
    joint_positions: np.ndarray
    joint_forces: np.ndarray
    gripper_open: float
    gripper_pose: np.ndarray
    gripper_matrix: np.ndarray
    gripper_joint_positions: np.ndarray
    gripper_touch_forces: np.ndarray
    task_low_dim_state: np.ndarray
    misc: dict

    def get_low_dim_data(self) -> np.ndarray:
        """Everything without pixels as one row; the matrix is left out."""
        rows = [None if self.gripper_open is None else [self.gripper_open]]
        rows += [self.joint_velocities, self.joint_positions, self.joint_forces, self.gripper_pose]
        rows += [self.gripper_joint_positions, self.gripper_touch_forces, self.task_low_dim_state]
        return np.concatenate([row for row in rows if row is not None] or [[]])
