"""robosuite's operational-space control step, to the bit, without its repetitions.

robosuite runs MuJoCo's whole forward pass three times per simulation step: before the controller,
inside it and in ``mj_step``. Positions, velocities and contacts are the same in all three and are
computed once here. The constraint solver starts from its last result, so how often it has run
shows in the last bits: it runs as often as in robosuite. Names, ids and limits that robosuite
looks up in every simulation step are looked up once. Every remaining number is computed by the
same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

SUBSTEPS = 25
"""Simulation steps of 2 ms in a control step of 50 ms."""


class OscStepper:
    """Drives one robot by operational-space control.

    Args:
        env: robosuite's env, freshly reset: it makes a new controller at every reset.
    """

    def __init__(self, env: Any) -> None:
        from robosuite.utils.control_utils import (
            nullspace_torques,
            opspace_matrices,
            orientation_error,
        )

        self._nullspace_torques = nullspace_torques
        self._opspace_matrices = opspace_matrices
        self._orientation_error = orientation_error
        robot = env.robots[0]
        sim = env.sim
        self._controller = robot.controller
        self._gripper = robot.gripper
        self._model, self._data = sim.model._model, sim.data._data
        self._site: int = sim.model.site_name2id(self._controller.eef_name)
        self._qpos = np.array(self._controller.qpos_index)
        self._qvel = np.array(self._controller.qvel_index)
        self._arm = np.array(robot._ref_joint_actuator_indexes)
        self._fingers = np.array(robot._ref_joint_gripper_actuator_indexes)
        self._torque_low, self._torque_high = robot.torque_limits
        finger_range = sim.model.actuator_ctrlrange[self._fingers]
        self._finger_bias = 0.5 * (finger_range[:, 1] + finger_range[:, 0])
        self._finger_weight = 0.5 * (finger_range[:, 1] - finger_range[:, 0])
        velocities: int = sim.model.nv
        self._jacp = np.zeros((3, velocities))
        self._jacr = np.zeros((3, velocities))
        self._mass = np.zeros((velocities, velocities))

    def step(self, action: NDArray[np.float64], after_substep: Callable[[], None]) -> None:
        """Move for 50 ms.

        Args:
            action: (7,): pose command and gripper command.
            after_substep: Called after each simulation step.
        """
        model, data, controller = self._model, self._data, self._controller
        for substep in range(SUBSTEPS):
            mujoco.mj_step1(model, data)
            mujoco.mj_fwdActuation(model, data)
            mujoco.mj_fwdAcceleration(model, data)
            mujoco.mj_fwdConstraint(model, data)
            # A new controller has looked at the arm when it was made, before the initial state
            # was set, and acts on that in the episode's first simulation step.
            if controller.new_update:
                mujoco.mj_fwdConstraint(model, data)
                self._update()
            if substep == 0:
                controller.set_goal(action[:6])
            torques = self._torques()
            data.ctrl[self._fingers] = self._finger_bias + self._finger_weight * (
                self._gripper.format_action(action[6:])
            )
            data.ctrl[self._arm] = np.clip(torques, self._torque_low, self._torque_high)
            mujoco.mj_step2(model, data)
            after_substep()

    def _update(self) -> None:
        """The controller's view of the arm, from the positions and velocities of now."""
        model, data, controller = self._model, self._data, self._controller
        qvel_index = self._qvel
        mujoco.mj_jacSite(model, data, self._jacp, self._jacr, self._site)
        mujoco.mj_fullM(model, self._mass, data.qM)
        qvel = data.qvel
        controller.ee_pos = np.array(data.site_xpos[self._site])
        controller.ee_ori_mat = np.array(data.site_xmat[self._site].reshape([3, 3]))
        controller.ee_pos_vel = np.dot(self._jacp, qvel)
        controller.ee_ori_vel = np.dot(self._jacr, qvel)
        controller.joint_pos = np.array(data.qpos[self._qpos])
        controller.joint_vel = np.array(qvel[qvel_index])
        controller.J_pos = np.array(self._jacp[:, qvel_index])
        controller.J_ori = np.array(self._jacr[:, qvel_index])
        controller.J_full = np.array(np.vstack([controller.J_pos, controller.J_ori]))
        controller.mass_matrix = self._mass[qvel_index, :][:, qvel_index]
        controller.new_update = False

    def _torques(self) -> NDArray[np.float64]:
        controller = self._controller
        force = np.multiply(controller.goal_pos - controller.ee_pos, controller.kp[0:3])
        force = force + np.multiply(-controller.ee_pos_vel, controller.kd[0:3])
        turn = self._orientation_error(np.array(controller.goal_ori), controller.ee_ori_mat)
        torque = np.multiply(turn, controller.kp[3:6])
        torque = torque + np.multiply(-controller.ee_ori_vel, controller.kd[3:6])
        _, lambda_pos, lambda_ori, nullspace = self._opspace_matrices(
            controller.mass_matrix, controller.J_full, controller.J_pos, controller.J_ori
        )
        wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, torque)])
        torques: NDArray[np.float64] = np.dot(controller.J_full.T, wrench)
        torques = torques + self._data.qfrc_bias[self._qvel]
        torques += self._nullspace_torques(
            controller.mass_matrix,
            nullspace,
            controller.initial_joint,
            controller.joint_pos,
            controller.joint_vel,
        )
        controller.torques = torques
        controller.new_update = True
        return torques
