"""How published evaluations run LIBERO: each protocol's rules, complete, under its name.

``docs/libero.md`` names the source of every rule.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM
from polyarm.suites.libero.catalogue import HORIZONS

SeedRule = Literal["episode", "task", "constant", "count"]

OPEN = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""Stay and open the gripper."""

HOLD = (0.0,) * 7
"""Stay and leave the gripper as it is."""

_LEROBOT_HORIZONS = {**HORIZONS, "libero_spatial": 280}


@dataclass(frozen=True, slots=True)
class Protocol:
    """Rules of an evaluation.

    Attributes:
        seed_rule: What places the fixtures. ``"episode"``: a seed made of task and index;
            ``"constant"``: the same seed before every reset of a new env; ``"count"``: ``seed``
            plus the episode's number before every reset; ``"task"``: ``seed`` once per task, so
            that each episode's fixtures hang on the number of resets before it.
        seed: Of the rules that need one.
        extra_resets: Resets of a new env before its first episode.
        trials: Episodes per task.
        horizons: Policy steps by LIBERO suite; settle steps are not counted.
        settle_steps: Steps before the policy's first, for things to come to rest.
        settle_action: What is done in them.
        settle_first: Settle before the initial state is set, instead of after.
        image_size: Rendered height and width in pixels.
        orientation: Of delivered frames.
        resize: Side of the square to which frames are resized (bilinear, padded), or None.
        gripper: How the policy's last number becomes a gripper command.
        quaternion: ``"raw"``, or ``"canonical"`` to choose the sign that makes w positive before
            the orientation is turned into an axis times an angle.
        precision: In which actions reach the controller; it shows in the last bits of poses.
        robot_state: Whether observations carry the nested robot state.
    """

    seed_rule: SeedRule = "episode"
    seed: int = 0
    extra_resets: int = 0
    trials: int = 50
    horizons: Mapping[str, int] = field(default_factory=lambda: dict(HORIZONS))
    settle_steps: int = 10
    settle_action: tuple[float, ...] = OPEN
    settle_first: bool = False
    image_size: tuple[int, int] = (256, 256)
    orientation: str = "rot180"
    resize: int | None = None
    gripper: str = "as_is"
    quaternion: str = "raw"
    precision: str = "float64"
    robot_state: bool = False

    def seeding(self, task: str, index: int) -> tuple[int, int, int]:
        """How an episode's fixtures are placed: seed, resets since it, resets since the build.

        Args:
            task: The task's name.
            index: The episode's; stream s uses seeds that are larger by s.
        """
        stream, number = divmod(index, STREAM)
        seed = self.seed + stream
        built_resets = number + self.extra_resets
        if self.seed_rule == "episode":
            return _key_seed(task, index), 0, self.extra_resets
        if self.seed_rule == "constant":
            return seed, 0, self.extra_resets
        if self.seed_rule == "count":
            return seed + number, 0, built_resets
        return seed, number, built_resets


PROTOCOLS: dict[str, Protocol] = {
    "polyarm": Protocol(),
    "openpi": Protocol("task", 7, resize=224),
    "oft": Protocol("task", 0, gripper="oft"),
    "simplevla": Protocol("constant", 0, horizons=dict.fromkeys(HORIZONS, 512), gripper="oft"),
    "ript-oft": Protocol("task", 0, gripper="oft"),
    "ript-quest": Protocol(
        extra_resets=1,
        trials=48,
        horizons=dict.fromkeys(HORIZONS, 600),
        settle_action=HOLD,
        settle_first=True,
        image_size=(128, 128),
        orientation="raw",
        robot_state=True,
    ),
    "lerobot": Protocol(
        "count",
        1000,
        extra_resets=1,
        horizons=_LEROBOT_HORIZONS,
        image_size=(360, 360),
        orientation="raw",
        precision="float32",
        robot_state=True,
    ),
    "vla-eval": Protocol("task", 7, gripper="sign", quaternion="canonical", robot_state=True),
}
"""Protocols by name; ``polyarm`` is our own."""


def grip_as_is(command: float) -> float:
    """The policy speaks LIBERO's language: negative opens, positive closes."""
    return command


def grip_by_sign(command: float) -> float:
    """-1 for anything negative, else 1."""
    return -1.0 if command < 0 else 1.0


def grip_oft(command: float) -> float:
    """From OpenVLA's 0 (closed) to 1 (open) to -1 (open) or 1 (closed)."""
    return float(-np.sign(2 * command - 1))


GRIPPERS = {"as_is": grip_as_is, "sign": grip_by_sign, "oft": grip_oft}


def axis_angle(quat: NDArray[np.float64], *, canonical: bool) -> NDArray[np.float64]:
    """An orientation (x, y, z, w) as an axis times an angle in radians, (3,).

    Args:
        quat: (4,), of unit length.
        canonical: Take the smaller of the two possible angles.
    """
    if canonical and quat[3] < 0:
        quat = -quat
    w = min(1.0, max(-1.0, float(quat[3])))
    length = np.sqrt(1.0 - w * w)
    if length == 0.0 or (canonical and length < 1e-8):
        return np.zeros(3)
    turned: NDArray[np.float64] = (quat[:3] * 2.0 * math.acos(w)) / length
    return turned


def _key_seed(task: str, index: int) -> int:
    digest = hashlib.sha256(f"libero/{task}#{index}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
