"""Meta-World's step without what it computes in vain: the same bits in about half the time.

Physics takes a third of a step of Meta-World's own. The rest is Python around it: arrays that are
split and stacked again, names that are looked up, and rotation matrices that SciPy proves to be
rotations before it turns them into quaternions. Here the same operations run in the same order on
the same numbers, so trajectories, rewards and infos are Meta-World's to the last bit; a test
compares all tasks.

Imported by `MetaWorldEnv` alone, because it imports the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Float64s = NDArray[np.float64]

_MOCAP_QUAT = np.array([1.0, 0.0, 1.0, 0.0])
_ACTION_SIZE = 4
_NUM_CURRENT = 18
"""Numbers in an observation that tell of now; as many of the step before follow, then the goal."""


class LeanStep:
    """Steps one simulator of Meta-World's.

    Args:
        sim: The simulator; its MuJoCo model and data are the ones it will always have.
    """

    def __init__(self, sim: Any) -> None:
        data = sim.data
        self._sim = sim
        self._mocap_pos, self._mocap_quat, self._ctrl = data.mocap_pos, data.mocap_quat, data.ctrl
        self._hand = data.body("hand").xpos
        self._right_claw, self._left_claw = data.body("rightclaw").xpos, data.body("leftclaw").xpos
        self._positions: Callable[[Any], Float64s] = type(sim)._get_pos_objects
        self._quaternions: Callable[[Any], Float64s] = _trusting(type(sim)._get_quat_objects)

    def __call__(
        self, action: NDArray[np.float32]
    ) -> tuple[Float64s, float, bool, Mapping[str, Any]]:
        """Do what ``sim.step(action)`` does.

        Returns:
            Observation ``(39,)``, reward, whether the horizon is reached, and infos.
        """
        sim = self._sim
        if sim.curr_path_length >= sim.max_path_length:
            raise ValueError("the episode is over: reset the env before its next step")
        if len(action) != _ACTION_SIZE:
            raise ValueError(f"an action has {_ACTION_SIZE} numbers, found {len(action)}")
        self._move(action)
        sim.curr_path_length += 1
        # Meta-World puts its target sites in place here, and computes all sites anew right after.
        mujoco.mj_forward(sim.model, sim.data)
        obs = self._observe()
        sim._last_stable_obs = obs
        reward, info = sim.evaluate_state(obs, action)
        return obs.copy(), reward, sim.curr_path_length == sim.max_path_length, info

    def _move(self, action: NDArray[np.float32]) -> None:
        sim = self._sim
        position = self._mocap_pos + action[:3].clip(-1, 1) * sim.action_scale
        position[0].clip(sim.mocap_low, sim.mocap_high, out=position[0])
        self._mocap_pos[:] = position
        self._mocap_quat[:] = _MOCAP_QUAT
        self._ctrl[0] = action[-1]
        self._ctrl[1] = -action[-1]
        mujoco.mj_step(sim.model, sim.data, nstep=sim.frame_skip)
        mujoco.mj_rnePostConstraint(sim.model, sim.data)

    def _observe(self) -> Float64s:
        sim, now = self._sim, _NUM_CURRENT
        space = sim.sawyer_observation_space
        goal = sim._get_pos_goal()
        obs = np.zeros(2 * now + len(goal))
        obs[:3] = self._hand
        apart = self._right_claw - self._left_claw
        obs[3] = min(math.sqrt(apart.dot(apart)) / 0.1, 1.0)
        positions, quaternions = self._positions(sim), self._quaternions(sim)
        for place in range(len(positions) // 3):
            at = 4 + 7 * place
            obs[at : at + 3] = positions[3 * place : 3 * place + 3]
            obs[at + 3 : at + 7] = quaternions[4 * place : 4 * place + 4]
        obs[now : 2 * now] = sim._prev_obs
        if not sim._partially_observable:
            obs[2 * now :] = goal
        sim._prev_obs = obs[:now].copy()
        return obs.clip(space.low, space.high, out=obs)


class _TrustedRotation:
    """What observations ask of SciPy's rotations, for matrices that MuJoCo made of quaternions."""

    @staticmethod
    def from_matrix(matrix: Any) -> Rotation:
        return Rotation.from_matrix(matrix, assume_valid=True)


def _trusting(method: Callable[[Any], Float64s]) -> Callable[[Any], Float64s]:
    """A method of Meta-World's with ``Rotation`` replaced, or as it is if SciPy is too old."""
    try:
        _TrustedRotation.from_matrix(np.eye(3))
    except TypeError:
        return method
    function: Any = method
    names = {**function.__globals__, "Rotation": _TrustedRotation}
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
