"""When and what LIBERO observes: once per step, at a moment that floating point decides.

robosuite samples its observations inside the control step, when a clock that counts simulation
steps of 2 ms wraps around at 50 ms. Resets shift that clock, so the sample lies one or two
simulation steps before the end of the control step. A frame belongs to the same moment. What a
frame shows is therefore copied at that moment and drawn later, if somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

PERIOD_S = 1.0 / 20
"""Time between samples; control runs at 20 Hz."""

_KINEMATICS = (
    "xpos",
    "xquat",
    "xmat",
    "xipos",
    "ximat",
    "geom_xpos",
    "geom_xmat",
    "site_xpos",
    "site_xmat",
    "cam_xpos",
    "cam_xmat",
    "light_xpos",
    "light_xdir",
)
"""Everything of MuJoCo's data that is drawn."""


class SamplingClock:
    """The counter of robosuite's observables, to the bit; all of them count alike."""

    def __init__(self, timestep_s: float) -> None:
        self._timestep_s = timestep_s
        self._elapsed_s = 0.0
        self._sampled = False

    def reset(self) -> None:
        """Start counting anew, as a reset does."""
        self._elapsed_s = 0.0

    def tick(self, *, forced: bool = False) -> bool:
        """Count one simulation step; whether observations are sampled now."""
        self._elapsed_s += self._timestep_s
        samples = forced or (not self._sampled and self._elapsed_s <= PERIOD_S)
        self._sampled |= samples
        if self._elapsed_s >= PERIOD_S:
            samples |= not self._sampled
            self._elapsed_s %= PERIOD_S
            self._sampled = False
        return samples


@dataclass(slots=True)
class Proprioception:
    """What the robot feels, float64.

    Attributes:
        eef_pos: Position of the gripper's site in metres, (3,).
        eef_quat: Orientation of the hand, x, y, z, w, (4,).
        gripper_qpos: Finger positions in metres, (2,).
        gripper_qvel: Finger velocities, (2,).
        joint_pos: Joint angles in radians, (7,).
        joint_vel: Joint velocities, (7,).
    """

    eef_pos: NDArray[np.float64]
    eef_quat: NDArray[np.float64]
    gripper_qpos: NDArray[np.float64]
    gripper_qvel: NDArray[np.float64]
    joint_pos: NDArray[np.float64]
    joint_vel: NDArray[np.float64]


class Sampler:
    """Takes samples from a simulation.

    Args:
        model: The `mujoco.MjModel`.
        data: The `mujoco.MjData` that is stepped.
        robot: robosuite's robot, whose references are set up.

    Attributes:
        felt: The last sample of the robot.
        shown: A `mujoco.MjData` posed as at the last sample, for drawing; never stepped.
    """

    def __init__(self, model: Any, data: Any, robot: Any) -> None:
        self._model = model
        self._data = data
        self._eef_site: int = robot.eef_site_id
        self._hand: int = model.body(robot.robot_model.eef_name).id
        self._joint_qpos = np.array(robot._ref_joint_pos_indexes)
        self._joint_qvel = np.array(robot._ref_joint_vel_indexes)
        self._gripper_qpos = np.array(robot._ref_gripper_joint_pos_indexes)
        self._gripper_qvel = np.array(robot._ref_gripper_joint_vel_indexes)
        self.shown = mujoco.MjData(model)
        self._copies = [(getattr(self.shown, n), getattr(data, n)) for n in _KINEMATICS]
        self._site_rgba = model.site_rgba.copy()
        self.felt = self._feel()

    def sample(self) -> None:
        """Keep what the robot feels and what a camera would see now."""
        self.felt = self._feel()
        for copy, original in self._copies:
            copy[:] = original
        self._site_rgba[:] = self._model.site_rgba

    def swap_colours(self) -> None:
        """Exchange the sites' colours of now and of the last sample.

        A stove's burner lights up after the step in which its knob is turned. Call it before and
        after drawing.
        """
        now = self._model.site_rgba.copy()
        self._model.site_rgba[:] = self._site_rgba
        self._site_rgba[:] = now

    def _feel(self) -> Proprioception:
        data = self._data
        return Proprioception(
            data.site_xpos[self._eef_site].copy(),
            data.xquat[self._hand][[1, 2, 3, 0]],
            data.qpos[self._gripper_qpos],
            data.qvel[self._gripper_qvel],
            data.qpos[self._joint_qpos],
            data.qvel[self._joint_qvel],
        )
