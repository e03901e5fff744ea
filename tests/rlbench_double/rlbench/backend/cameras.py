"""The five cameras of the scene, each with a second sensor for its mask."""

import math

import numpy as np
from pyrep.backend import rotation, sim
from pyrep.backend.sim import Body
from pyrep.const import ObjectType
from pyrep.objects import Dummy, VisionSensor

from rlbench.observation_config import CameraConfig, ObservationConfig

# The sensor's name, where it stands (m), where it looks on the table, and how far down (degrees).
PLACES = {
    "left_shoulder": ("cam_over_shoulder_left", (-0.3, 0.6, 1.8), -0.8, 130),
    "right_shoulder": ("cam_over_shoulder_right", (-0.3, -0.6, 1.8), 0.8, 130),
    "overhead": ("cam_overhead", (0.25, 0.0, 2.3), 0.0, 180),
    "wrist": ("cam_wrist", (0.0, 0.0, 0.0), 0.0, 0),
    "front": ("cam_front", (1.35, 0.0, 1.58), math.pi, 115),
}
WRIST_OFFSET_M = (0.07, 0.0, -0.1)


class Cameras:
    """Sensors by camera name; those that were off at the launch have been removed."""

    def __init__(self, obs_config: ObservationConfig) -> None:
        self._config = obs_config
        self.sensors: dict[str, VisionSensor] = {}
        self.mask_sensors: dict[str, VisionSensor] = {}
        for camera, (name, place, heading, tilt) in PLACES.items():
            facing = rotation.multiply(rotation.about(2, heading), rotation.about(1, _rad(tilt)))
            for label in (name, f"{name}_mask"):
                body = Body(label, ObjectType.VISION_SENSOR, np.array(place), np.array(facing))
                sim.add(body)
            config = getattr(obs_config, f"{camera}_camera")
            self.sensors[camera] = VisionSensor(name)
            self.mask_sensors[camera] = VisionSensor(f"{name}_mask")
            is_on = config.rgb or config.depth or config.point_cloud
            _set_up(self.sensors[camera], config, is_on=is_on)
            self.sensors[camera].set_render_mode(config.render_mode)
            _set_up(self.mask_sensors[camera], config, is_on=config.mask)

    def capture(self, tip: Dummy) -> dict[str, np.ndarray | None]:
        """All fields of an observation that cameras fill."""
        self._move_wrist(tip)
        fields: dict[str, np.ndarray | None] = {}
        for camera, sensor in self.sensors.items():
            config = getattr(self._config, f"{camera}_camera")
            rgb, depth, cloud = _capture(sensor, config)
            mask = _capture_mask(self.mask_sensors[camera], config) if config.mask else None
            fields |= {
                f"{camera}_rgb": rgb,
                f"{camera}_depth": depth,
                f"{camera}_point_cloud": cloud,
                f"{camera}_mask": mask,
            }
        return fields

    def get_misc(self) -> dict[str, object]:
        misc: dict[str, object] = {}
        for camera, sensor in self.sensors.items():
            if sensor.still_exists():
                misc[f"{camera}_camera_extrinsics"] = sensor.get_matrix()
                misc[f"{camera}_camera_intrinsics"] = sensor.get_intrinsic_matrix()
                misc[f"{camera}_camera_near"] = sensor.get_near_clipping_plane()
                misc[f"{camera}_camera_far"] = sensor.get_far_clipping_plane()
        return misc

    def _move_wrist(self, tip: Dummy) -> None:
        pose = tip.get_pose()
        for sensor in (self.sensors["wrist"], self.mask_sensors["wrist"]):
            if sensor.still_exists():
                sensor.set_position(pose[:3] + rotation.rotate(pose[3:], WRIST_OFFSET_M))
                sensor.set_quaternion(pose[3:])


def _capture(
    sensor: VisionSensor, config: CameraConfig
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Rgb, depth and point cloud; a cloud alone is not enough for a frame."""
    rgb = depth = cloud = None
    if not (config.rgb or config.depth):
        return rgb, depth, cloud
    sensor.handle_explicitly()
    if config.rgb:
        shades = config.rgb_noise.apply(sensor.capture_rgb())
        rgb = np.clip((shades * 255.0).astype(np.uint8), 0, 255)
    if config.depth or config.point_cloud:
        depth = config.depth_noise.apply(sensor.capture_depth(config.depth_in_meters))
    if config.point_cloud:
        near, far = sensor.get_near_clipping_plane(), sensor.get_far_clipping_plane()
        metres = depth if config.depth_in_meters else near + depth * (far - near)
        cloud = sensor.pointcloud_from_depth(metres)
    return rgb, depth if config.depth else None, cloud


def _capture_mask(sensor: VisionSensor, config: CameraConfig) -> np.ndarray:
    sensor.handle_explicitly()
    coded = sensor.capture_rgb()
    return join_handle(coded * 255) if config.masks_as_one_channel else coded


def join_handle(channels: np.ndarray) -> np.ndarray:
    """Handles (H, W) from their three bytes (H, W, 3)."""
    return channels[..., 0] + channels[..., 1] * 256 + channels[..., 2] * 65536


def _set_up(sensor: VisionSensor, config: CameraConfig, *, is_on: bool) -> None:
    sensor.set_resolution(config.image_size)
    if is_on:
        sensor.set_explicit_handling(1)
    else:
        sensor.remove()


def _rad(degrees: float) -> float:
    return math.radians(degrees)
