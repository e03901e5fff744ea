"""Spaces and observations of our envs in the shape that LeRobot's envs give theirs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from polyarm.compat.lerobot.plans import EnvPlan
from polyarm.contracts import map_leaves
from polyarm.policies.lerobot_observations import (
    LIBERO_CAMERAS,
    LIBERO_STATE,
    METAWORLD_STATE,
    to_lerobot,
)

_AGENT_POS = Box(-1000.0, 1000.0, (METAWORLD_STATE,), np.float64)


def lerobot_space(flat: gymnasium.Space[Any], plan: EnvPlan) -> gymnasium.Space[Any]:
    """The space of one env's observation, nested as LeRobot's; an env's own stays as it is."""
    if plan.suite == "callable":
        return flat
    assert isinstance(flat, Dict)
    pixels = {name: flat[f"pixels/{plan.cameras[name]}"] for name in plan.cameras if plan.frames}
    if plan.suite == "metaworld":
        spaces: dict[str, gymnasium.Space[Any]] = {}
        if plan.frames:
            spaces["pixels"] = next(iter(pixels.values())) if len(pixels) == 1 else Dict(pixels)
        if plan.obs_type != "pixels":
            spaces["agent_pos"] = _AGENT_POS
        return Dict(spaces)
    spaces = {"pixels": Dict(pixels)}
    if plan.obs_type != "pixels":
        spaces["robot_state"] = _robot_state_space(flat)
    return Dict(spaces)


def lerobot_observation(obs: Any, plan: EnvPlan) -> Any:
    """A batch of observations as LeRobot's envs deliver it, in arrays of its own."""
    if plan.suite == "callable":
        return map_leaves(np.array, obs)
    nested = to_lerobot(obs, plan.suite)
    if plan.suite == "libero":
        frames = nested["pixels"]
        nested["pixels"] = {
            name: frames[LIBERO_CAMERAS.get(camera, camera)]
            for name, camera in plan.cameras.items()
        }
    elif plan.suite == "metaworld":
        nested["agent_pos"] = nested["agent_pos"].astype(_AGENT_POS.dtype)
    if plan.obs_type == "pixels":
        nested.pop("robot_state", None)
        nested.pop("agent_pos", None)
    return map_leaves(np.array, nested)


def _robot_state_space(flat: Dict) -> Dict:
    nested: dict[str, dict[str, gymnasium.Space[Any]]] = {}
    for (part, name), key in LIBERO_STATE.items():
        shape = (3, 3) if name == "mat" else flat[key].shape
        nested.setdefault(part, {})[name] = Box(-np.inf, np.inf, shape, np.float64)
    return Dict({part: Dict(spaces) for part, spaces in nested.items()})
