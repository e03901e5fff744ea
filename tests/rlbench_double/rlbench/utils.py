"""Tasks by name, and demonstrations from disk."""

import importlib
import pickle
import re
from pathlib import Path

import numpy as np
from pyrep.objects import VisionSensor

from rlbench.backend.cameras import PLACES, join_handle
from rlbench.backend.const import EPISODES_FOLDER, LOW_DIM_PICKLE, VARIATIONS_FOLDER
from rlbench.backend.observation import Observation
from rlbench.backend.utils import image_to_float_array
from rlbench.demo import Demo
from rlbench.observation_config import CameraConfig, ObservationConfig

COUNTED = ("rgb", "depth")


class InvalidTaskName(Exception):
    pass


def name_to_task_class(task_file: str) -> type:
    """The class for a name in snake_case, of a module loaded anew: never the same class twice."""
    name = task_file.replace(".py", "")
    class_name = "".join(word[0].upper() + word[1:] for word in name.split("_"))
    try:
        module = importlib.reload(importlib.import_module(f"rlbench.tasks.{name}"))
    except ModuleNotFoundError as error:
        raise InvalidTaskName(
            f"The task file '{name}' does not exist or cannot be compiled."
        ) from error
    try:
        return getattr(module, class_name)
    except AttributeError as error:
        raise InvalidTaskName(
            f"Cannot find the class name '{class_name}' in the file '{name}'."
        ) from error


def get_stored_demos(
    amount: int,
    image_paths: bool,
    dataset_root: str,
    variation_number: int,
    task_name: str,
    obs_config: ObservationConfig,
    random_selection: bool = True,
    from_episode_number: int = 0,
) -> list[Demo]:
    task_root = Path(dataset_root, task_name)
    if not task_root.exists():
        raise RuntimeError(f"Can't find the demos for {task_name} at: {task_root}")
    folder = task_root / (VARIATIONS_FOLDER % variation_number) / EPISODES_FOLDER
    examples = [path.name for path in folder.iterdir()]
    amount = len(examples) if amount == -1 else amount
    if amount > len(examples):
        raise RuntimeError(
            f"You asked for {amount} examples, but only {len(examples)} were available."
        )
    if random_selection:
        chosen = np.random.choice(examples, amount, replace=False)
    else:
        ordered = sorted(examples, key=lambda name: int(re.sub(r"\D", "", name)))
        chosen = ordered[from_episode_number : from_episode_number + amount]
    return [_load(folder / name, obs_config, image_paths=image_paths) for name in chosen]


def _load(episode: Path, obs_config: ObservationConfig, *, image_paths: bool) -> Demo:
    demo = pickle.loads((episode / LOW_DIM_PICKLE).read_bytes())
    for camera in PLACES:
        for kind in COUNTED:
            if len(list((episode / f"{camera}_{kind}").iterdir())) != len(demo):
                raise RuntimeError("Broken dataset assumption")
    for index in range(len(demo)):
        observation = demo[index]
        _remove_low_dim(observation, obs_config)
        for camera in PLACES:
            config = getattr(obs_config, f"{camera}_camera")
            _name_images(observation, camera, config, episode, index)
            if not image_paths:
                _read_images(observation, camera, config)
    return demo


def _remove_low_dim(observation: Observation, obs_config: ObservationConfig) -> None:
    """Drop what is switched off; the gripper's matrix stays, as it does there."""
    names = ["joint_velocities", "joint_positions", "joint_forces", "gripper_open", "gripper_pose"]
    names += ["gripper_joint_positions", "gripper_touch_forces", "task_low_dim_state"]
    for name in names:
        if not getattr(obs_config, name):
            setattr(observation, name, None)


def _name_images(
    observation: Observation, camera: str, config: CameraConfig, episode: Path, index: int
) -> None:
    wanted = {"rgb": config.rgb, "depth": config.depth or config.point_cloud, "mask": config.mask}
    for kind, is_wanted in wanted.items():
        if is_wanted:
            path = episode / f"{camera}_{kind}" / f"{index}.png"
            setattr(observation, f"{camera}_{kind}", str(path))


def _read_images(observation: Observation, camera: str, config: CameraConfig) -> None:
    if config.rgb:
        path = getattr(observation, f"{camera}_rgb")
        setattr(observation, f"{camera}_rgb", _read(path, config.image_size))
    if config.depth or config.point_cloud:
        pixels = _read(getattr(observation, f"{camera}_depth"), config.image_size)
        share = image_to_float_array(pixels)
        misc = observation.misc
        near, far = misc[f"{camera}_camera_near"], misc[f"{camera}_camera_far"]
        metres = near + share * (far - near)
        depth = metres if config.depth_in_meters else share
        noisy = config.depth_noise.apply(depth) if config.depth else None
        setattr(observation, f"{camera}_depth", noisy)
        if config.point_cloud:
            cloud = VisionSensor.pointcloud_from_depth_and_camera_params(
                metres, misc[f"{camera}_camera_extrinsics"], misc[f"{camera}_camera_intrinsics"]
            )
            setattr(observation, f"{camera}_point_cloud", cloud)
    if config.mask:
        pixels = _read(getattr(observation, f"{camera}_mask"), config.image_size)
        setattr(observation, f"{camera}_mask", join_handle(pixels.astype(int)))


def _read(path: str, size: tuple[int, int]) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.array(image if image.size == tuple(size) else image.resize(size))
