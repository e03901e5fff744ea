"""From our observations to those that LeRobot's envs deliver, key by key; NumPy only.

LeRobot knows a LIBERO env by two cameras, ``image`` and ``image2``, and a nested robot state, and a
Meta-World env by one camera and the first four numbers of its state. Frames pass as they are: what
turns LIBERO's upright is LeRobot's own processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import PolicyError

Array = NDArray[Any]

PIXELS = "pixels/"

LIBERO_CAMERAS = {"agentview": "image", "robot0_eye_in_hand": "image2"}
"""LIBERO's cameras by the names that LeRobot gives them; others keep their own."""

LIBERO_STATE = {
    ("eef", "pos"): "robot_state/eef_pos",
    ("eef", "quat"): "robot_state/eef_quat",
    ("eef", "mat"): "robot_state/eef_mat",
    ("gripper", "qpos"): "robot_state/gripper_qpos",
    ("gripper", "qvel"): "robot_state/gripper_qvel",
    ("joints", "pos"): "robot_state/joint_pos",
    ("joints", "vel"): "robot_state/joint_vel",
}
"""Where LeRobot's nested robot state finds its numbers."""

OWN_OBSERVATIONS = ("gym", "callable")
"""Suites whose envs have no cameras to name: ``pixels`` and ``agent_pos`` are theirs, as those of
LeRobot's own envs are."""

METAWORLD_STATE = 4
"""Numbers of Meta-World's state that LeRobot's policies see: the hand and its opening."""


def to_lerobot(obs: Mapping[str, Array], suite: str) -> dict[str, Any]:
    """Observations of a batch as LeRobot's env of that suite delivers them.

    Args:
        obs: Leaves ``(B, …)``: ``"pixels/<camera>"``, ``"state"`` and more, or what a Gymnasium
            env delivers.
        suite: Which suite's env they come from.

    Raises:
        PolicyError: LIBERO's robot state is not among them.
    """
    frames = {
        key.removeprefix(PIXELS): value for key, value in obs.items() if key.startswith(PIXELS)
    }
    if suite == "libero":
        named = {LIBERO_CAMERAS.get(camera, camera): frames[camera] for camera in frames}
        return {"pixels": named, "robot_state": _robot_state(obs)}
    if suite == "metaworld":
        return {**_pixels(frames), "agent_pos": obs["state"][:, :METAWORLD_STATE]}
    rest = {
        key: value for key, value in obs.items() if key != "state" and not key.startswith(PIXELS)
    }
    state = {"agent_pos": obs["state"]} if "state" in obs else {}
    return {**_pixels(frames), **state, **rest}


def image_keys(cameras: Sequence[str], suite: str) -> list[str]:
    """The keys that LeRobot gives the frames of these cameras, in their order."""
    if suite == "libero":
        return [f"observation.images.{LIBERO_CAMERAS.get(camera, camera)}" for camera in cameras]
    if len(cameras) == 1:
        return ["observation.image"]
    return [f"observation.images.{camera}" for camera in cameras]


def _pixels(frames: Mapping[str, Array]) -> dict[str, Any]:
    """One camera is an array, several are a mapping."""
    if len(frames) == 1:
        return {"pixels": next(iter(frames.values()))}
    return {"pixels": dict(frames)} if frames else {}


def _robot_state(obs: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    missing = [key for key in LIBERO_STATE.values() if key not in obs]
    if missing:
        raise PolicyError(
            f"LeRobot's policies see LIBERO's robot state, but {missing[0]!r} is not observed: "
            "use protocol='lerobot' (--protocol lerobot), or the option robot_state=true"
        )
    nested: dict[str, dict[str, Array]] = {}
    for (part, name), key in LIBERO_STATE.items():
        value = np.asarray(obs[key])
        nested.setdefault(part, {})[name] = value.reshape(-1, 3, 3) if name == "mat" else value
    return nested
