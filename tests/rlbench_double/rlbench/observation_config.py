"""What an observation holds; read anew for every observation."""

from pyrep.const import RenderMode

from rlbench.noise_model import Identity, NoiseModel

_NO_NOISE = Identity()


class CameraConfig:
    """`image_size` is (width, height)."""

    def __init__(
        self,
        rgb: bool = True,
        rgb_noise: NoiseModel = _NO_NOISE,
        depth: bool = True,
        depth_noise: NoiseModel = _NO_NOISE,
        point_cloud: bool = True,
        mask: bool = True,
        image_size: tuple[int, int] = (128, 128),
        render_mode: RenderMode = RenderMode.OPENGL3,
        masks_as_one_channel: bool = True,
        depth_in_meters: bool = False,
    ) -> None:
        self.rgb = rgb
        self.rgb_noise = rgb_noise
        self.depth = depth
        self.depth_noise = depth_noise
        self.point_cloud = point_cloud
        self.mask = mask
        self.image_size = image_size
        self.render_mode = render_mode
        self.masks_as_one_channel = masks_as_one_channel
        self.depth_in_meters = depth_in_meters

    def set_all(self, value: bool) -> None:
        for field in ("rgb", "depth", "point_cloud", "mask"):
            setattr(self, field, value)


class ObservationConfig:
    def __init__(
        self,
        left_shoulder_camera: CameraConfig | None = None,
        right_shoulder_camera: CameraConfig | None = None,
        overhead_camera: CameraConfig | None = None,
        wrist_camera: CameraConfig | None = None,
        front_camera: CameraConfig | None = None,
        joint_velocities: bool = True,
        joint_velocities_noise: NoiseModel = _NO_NOISE,
        joint_positions: bool = True,
        joint_positions_noise: NoiseModel = _NO_NOISE,
        joint_forces: bool = True,
        joint_forces_noise: NoiseModel = _NO_NOISE,
        gripper_open: bool = True,
        gripper_pose: bool = True,
        gripper_matrix: bool = False,
        gripper_joint_positions: bool = False,
        gripper_touch_forces: bool = False,
        wrist_camera_matrix: bool = False,
        record_gripper_closing: bool = False,
        task_low_dim_state: bool = False,
    ) -> None:
        self.left_shoulder_camera = left_shoulder_camera or CameraConfig()
        self.right_shoulder_camera = right_shoulder_camera or CameraConfig()
        self.overhead_camera = overhead_camera or CameraConfig()
        self.wrist_camera = wrist_camera or CameraConfig()
        self.front_camera = front_camera or CameraConfig()
        self.joint_velocities = joint_velocities
        self.joint_velocities_noise = joint_velocities_noise
        self.joint_positions = joint_positions
        self.joint_positions_noise = joint_positions_noise
        self.joint_forces = joint_forces
        self.joint_forces_noise = joint_forces_noise
        self.gripper_open = gripper_open
        self.gripper_pose = gripper_pose
        self.gripper_matrix = gripper_matrix
        self.gripper_joint_positions = gripper_joint_positions
        self.gripper_touch_forces = gripper_touch_forces
        self.wrist_camera_matrix = wrist_camera_matrix
        self.record_gripper_closing = record_gripper_closing
        self.task_low_dim_state = task_low_dim_state

    def set_all(self, value: bool) -> None:
        self.set_all_high_dim(value)
        self.set_all_low_dim(value)

    def set_all_high_dim(self, value: bool) -> None:
        for camera in ("left_shoulder", "right_shoulder", "overhead", "wrist", "front"):
            getattr(self, f"{camera}_camera").set_all(value)

    def set_all_low_dim(self, value: bool) -> None:
        """All but `record_gripper_closing`."""
        self.joint_velocities = self.joint_positions = self.joint_forces = value
        self.gripper_open = self.gripper_pose = self.gripper_matrix = value
        self.gripper_joint_positions = self.gripper_touch_forces = value
        self.wrist_camera_matrix = self.task_low_dim_state = value
