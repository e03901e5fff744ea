"""From a trajectory to RIPT-VLA's episode dictionary: lists with one entry per inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

FULL, WRIST = "pixels/agentview", "pixels/robot0_eye_in_hand"

_IMAGES = {"full_image": FULL, "wrist_image": WRIST}
_SEEN = (*_IMAGES, "state")
_RECORDED = ("actions_normalized", "log_prob")
_ROBOT_STATE = {
    "robot0_eef_pos": "robot_state/eef_pos",
    "robot0_eef_quat": "robot_state/eef_quat",
    "robot0_gripper_qpos": "robot_state/gripper_qpos",
    "robot0_joint_pos": "robot_state/joint_pos",
}

_ACTION_DIM, _STATE_DIM = 7, 8


@dataclass(frozen=True, slots=True)
class EpisodeForm:
    """How an episode is written down.

    Attributes:
        task_id: The task's number in its benchmark.
        grip: From the policy's last number to LIBERO's gripper command.
        turned: Steps of rows and columns from LIBERO's frame to the delivered one.
        raw: Whether observations also carry LIBERO's own names and orientation of frames.
        render: Whether the frames of the first camera are kept, upright, as ``render``.
    """

    task_id: int
    grip: Callable[[float], float]
    turned: tuple[int, int]
    raw: bool = False
    render: bool = False

    def write(self, trajectory: Mapping[str, Any]) -> dict[str, Any]:
        """The dictionary.

        Extras of the policy become lists under their own names. Those called ``full_image``,
        ``wrist_image`` or ``state`` are what it really looked at, and take the place of the env's.
        """
        steps = trajectory["decision_steps"]
        extras = dict(trajectory["extras"])
        instruction = str(trajectory["instruction"])
        count = len(steps)
        episode: dict[str, Any] = {
            "actions": [self._sent(action) for action in trajectory["actions"][steps]],
            "valid": [True] * count,
            **{name: list(extras.pop(name, [None] * count)) for name in _RECORDED},
            "observations": self._observations(trajectory["obs"], extras, count),
            "task_description": [instruction] * count,
            "rewards": np.add.reduceat(trajectory["rewards"], steps).tolist(),
            "task": instruction,
            "task_id": self.task_id,
            "policy_inference_steps": [count],
        }
        for name in extras.keys() - {*_SEEN}:
            episode[name] = list(extras[name])
        if self.render:
            episode["render"] = self.upright(trajectory["obs"])
        return episode

    def upright(self, obs: Mapping[str, Any]) -> Any:
        """Frames of the first camera as a person sees them, uint8 ``(D, H, W, 3)``; or None."""
        frames = obs.get(FULL)
        rows, columns = self.turned
        return None if frames is None else frames[:, ::-rows, ::columns]

    def _sent(self, action: Any) -> list[float]:
        """The first action of a chunk as LIBERO executes it."""
        *motion, command = action.tolist()
        return [*motion, self.grip(command)]

    def _observations(
        self, obs: Mapping[str, Any], extras: Mapping[str, Any], count: int
    ) -> list[dict[str, Any]]:
        seen = {"state": obs["state"]}
        seen.update({name: obs[key] for name, key in _IMAGES.items() if key in obs})
        seen.update({name: extras[name] for name in _SEEN if name in extras})
        if self.raw:
            seen.update(self._raw(obs))
        return [{name: values[row] for name, values in seen.items()} for row in range(count)]

    def _raw(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        rows, columns = self.turned
        named = {name: obs[key] for name, key in _ROBOT_STATE.items() if key in obs}
        for key in (FULL, WRIST):
            if key in obs:
                camera = key.partition("/")[2]
                named[f"{camera}_image"] = obs[key][:, ::rows, ::columns]
        return named


def problems(episode: Mapping[str, Any]) -> list[str]:
    """What keeps a dictionary from being an episode that a trainer can use; nothing if it is one.

    ``actions_normalized`` and ``log_prob`` may be missing: not every policy knows them.
    """
    found = []
    lists = ("actions", "valid", *_RECORDED, "observations", "task_description", "rewards")
    lengths = {name: len(episode[name]) for name in lists if name in episode}
    if missing := [name for name in lists if name not in episode]:
        found.append(f"it has no {', '.join(missing)}")
    if len({*lengths.values()}) > 1 or not all(lengths.values()):
        found.append(f"its lists must have one entry per inference, found {lengths}")
    for action in episode.get("actions", ()):
        if len(action) != _ACTION_DIM or not np.isfinite(action).all():
            found.append(f"an action has {_ACTION_DIM} finite numbers, found {action}")
    for seen in episode.get("observations", ()):
        found += _observation_problems(seen)
    return list(dict.fromkeys(found))


def _observation_problems(seen: Mapping[str, Any]) -> list[str]:
    found = []
    for name in _IMAGES:
        image = np.asarray(seen.get(name))
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            found.append(f"{name} is uint8 (H, W, 3), found {image.dtype} {image.shape}")
        elif image.min() == image.max():
            found.append(f"{name} is of one colour: nothing was rendered")
    state = np.asarray(seen.get("state", ()), np.float64)
    if state.shape != (_STATE_DIM,) or not np.isfinite(state).all():
        found.append(f"state has {_STATE_DIM} finite numbers, found {state}")
    return found
