"""Actions of an RLBench arm: what they mean, which may pass, and how a target becomes one.

Poses are ``(x, y, z, qx, qy, qz, qw)`` in metres, in the world's frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidAction

Vector = NDArray[np.float64]

JOINTS = {"panda": 7, "sawyer": 7, "ur5": 6, "jaco": 6, "mico": 6}
"""Joints of each arm."""

POSE_MODES = ("ik", "planning")
"""Arm modes whose actions are poses of the hand."""

QUATERNION_TOLERANCE = 0.02
"""How far from 1 a quaternion's norm may be and still be taken for rounding."""

_POSE = 7
_DELTA_M = 0.05
_DELTA_RAD = 0.1
_OPEN_M = 0.04
_TORQUE_NM = 100.0


def action_space(spec: EnvSpec) -> Box:
    """Arm, gripper, and whether collisions may be ignored, float32.

    The bounds say what is usual; RLBench itself has none for poses.
    """
    options = spec.options
    joints = JOINTS[options["robot_setup"]]
    delta = options["control"] == "delta"
    if options["arm_mode"] in POSE_MODES:
        reach = [_DELTA_M] * 3 if delta else [np.inf] * 3
        low, high = [-bound for bound in reach] + [-1.0] * 4, [*reach, *[1.0] * 4]
    else:
        bound = {
            "joint_velocity": 1.0,
            "joint_position": _DELTA_RAD if delta else np.pi,
            "joint_torque": _TORQUE_NM,
        }[options["arm_mode"]]
        low, high = [-bound] * joints, [bound] * joints
    high = [*high, _OPEN_M if options["gripper"] == "continuous" else 1.0]
    high = [*high, *[1.0] * options["ignore_collision"]]
    low = [*low, *[0.0] * (len(high) - len(low))]
    return Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)


def checked(action: Any, spec: EnvSpec, size: int) -> tuple[Vector, str]:
    """An action that the simulator may have, and why it must not have it.

    A NaN would keep it busy for ever, and a wrong length is noticed after the arm has moved.

    Args:
        action: The action, ``(size,)``.
        spec: The env's.
        size: Numbers of an action.

    Returns:
        The action in double precision, its quaternion of unit length, its gripper within reach;
        and a complaint, or "".

    Raises:
        InvalidAction: It is not ``size`` finite numbers.
    """
    try:
        values = np.array(action, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidAction(f"an action of {spec.name} is {size} numbers: {error}") from error
    if values.shape != (size,):
        raise InvalidAction(f"an action of {spec.name} has shape ({size},), found {values.shape}")
    if not np.isfinite(values).all():
        raise InvalidAction(f"an action of {spec.name} must be finite, found {values}")
    if spec.options["gripper"] == "continuous":
        gripper = size - 1 - spec.options["ignore_collision"]
        values[gripper] = np.clip(values[gripper], 0.0, _OPEN_M)
    if spec.options["arm_mode"] not in POSE_MODES:
        return values, ""
    norm = float(np.linalg.norm(values[3:_POSE]))
    if abs(norm - 1.0) > QUATERNION_TOLERANCE:
        return values, f"the action's quaternion has norm {norm:.3f} instead of 1"
    values[3:_POSE] /= norm
    return values, ""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an arm is to go.

    Attributes:
        pose: Of the hand, (7,).
        joints: Positions of the joints in radians, (n,).
        opened: How far the gripper is open, 0 to 1.
    """

    pose: Vector
    joints: Vector
    opened: float


def towards(target: Target, pose: Vector, joints: Vector, spec: EnvSpec) -> NDArray[np.float32]:
    """The action that takes an arm from ``pose`` and ``joints`` to a target."""
    options = spec.options
    delta = options["control"] == "delta"
    if options["arm_mode"] == "joint_position":
        arm = target.joints - joints if delta else target.joints
    elif delta:
        turn = _multiply(target.pose[3:], _conjugate(pose[3:]))
        arm = np.concatenate([target.pose[:3] - pose[:3], turn])
    else:
        arm = target.pose
    opened = target.opened * (_OPEN_M if options["gripper"] == "continuous" else 1.0)
    # What an expert has done itself can be done without looking out for collisions.
    ignored = [1.0] * options["ignore_collision"]
    return np.concatenate([arm, [opened], ignored]).astype(np.float32)


def keyframes(targets: list[Target], speeds: list[float]) -> list[Target]:
    """Of a demonstration, the moments a planner needs: the hand opens, closes or comes to rest.

    Args:
        targets: Where the arm was, moment by moment.
        speeds: The fastest joint's speed at each moment, in radians per second.
    """
    found = []
    for moment in range(1, len(targets) - 1):
        changed = targets[moment].opened != targets[moment - 1].opened
        rests = speeds[moment] < _AT_REST <= speeds[moment - 1]
        if changed or rests:
            found.append(targets[moment])
    return [*found, targets[-1]]


_AT_REST = 0.1  # radians per second; PerAct takes less for standing still


def _multiply(a: Vector, b: Vector) -> Vector:
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return np.array(
        [
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
        ]
    )


def _conjugate(quaternion: Vector) -> Vector:
    turned: Vector = quaternion * np.array([-1.0, -1.0, -1.0, 1.0])
    return turned
