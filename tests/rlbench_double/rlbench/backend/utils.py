"""Tasks by file name, and depths as the bytes of an image."""

import importlib

import numpy as np

from rlbench.backend.const import DEPTH_SCALE


def task_file_to_task_class(task_file: str) -> type:
    name = task_file.replace(".py", "")
    class_name = "".join(word[0].upper() + word[1:] for word in name.split("_"))
    return getattr(importlib.reload(importlib.import_module(f"rlbench.tasks.{name}")), class_name)


def float_array_to_rgb_image(depth: np.ndarray, scale_factor: int = DEPTH_SCALE) -> np.ndarray:
    """Depths in [0, 1] as uint8 (H, W, 3), the highest byte first."""
    whole = np.clip(np.rint(depth.astype(np.float64) * scale_factor), 0, DEPTH_SCALE).astype(int)
    return np.stack([whole >> 16, whole >> 8 & 255, whole & 255], -1).astype(np.uint8)


def image_to_float_array(pixels: np.ndarray, scale_factor: int = DEPTH_SCALE) -> np.ndarray:
    return np.sum(pixels * [65536, 256, 1], axis=2) / scale_factor
