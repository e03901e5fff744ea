"""One LIBERO env: episodes by index, frames only where somebody reads them.

Imported by `Libero.make` alone, because it imports the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import InvalidCall
from polyarm.suites.libero import catalogue, init_states
from polyarm.suites.libero.assets import package_folder
from polyarm.suites.libero.expert import PickAndPlace
from polyarm.suites.libero.protocols import GRIPPERS, HOLD, PROTOCOLS, axis_angle
from polyarm.suites.libero.simulator import EpisodeStart, Simulator
from polyarm.suites.libero.suite import (
    METADATA,
    ORIENTATIONS,
    action_space,
    frame_size,
    observation_space,
)
from polyarm.suites.mujoco_env import MujocoEnv, Observation
from polyarm.suites.mujoco_renderer import OffscreenRenderer

_COLLISION_GROUP = 0


class LiberoEnv(MujocoEnv):
    """A task as a Gymnasium env; see `Libero` for its options.

    Attributes:
        upright: Steps of rows and columns that turn a delivered frame upright.
    """

    metadata = METADATA
    _default_camera = "agentview"

    def __init__(self, spec: EnvSpec) -> None:
        task, options = catalogue.find(spec.task), spec.options
        super().__init__(spec, task.instruction, options["max_steps"])
        self.observation_space = observation_space(spec)
        self.action_space = action_space(spec)
        self._protocol = replace(PROTOCOLS[options["protocol"]], seed=options["first_seed"])
        self._grip = GRIPPERS[options["gripper"]]
        self._steps_of_frame = ORIENTATIONS[options["orientation"]]
        rows, columns = self._steps_of_frame
        self.upright = (-rows, columns)
        folder = package_folder()
        self._init_states = init_states.read(folder / "init_files" / task.init_states_file)
        self._sim = Simulator(
            folder / "bddl_files" / task.bddl_file,
            soft_reset=options["soft_reset"],
            lean_step=options["lean_step"],
        )
        # Loads compiled functions once for all forks; every reset starts from scratch again.
        self._sim.reset(EpisodeStart(seed=0, resets=0, built_resets=0))
        self._sim.step(np.array(HOLD))
        height, width = spec.image_size
        self._rendered = np.empty((height, width, 3), np.uint8)
        self._steps = 0
        self._expert: PickAndPlace | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode and let things settle.

        Args:
            seed: Starts the stream ``seed`` at its first episode, unless an episode is given.
            options: ``{"episode": index}`` starts exactly that episode. With neither, the episode
                after the last one is started. ``"init_state"`` is put in the place of the episode's
                own initial state; the index still places the fixtures.

        Raises:
            InvalidCall: The initial state is none of this task.
        """
        super().reset(seed=seed)
        index = self._begin(seed, options)
        protocol, sim = self._protocol, self._sim
        state = self._init_state(index, options or {})
        hard_reset = not self._spec.options["soft_reset"]
        sim.reset(EpisodeStart(*protocol.seeding(self._spec.task, index)))
        if hard_reset:
            self.close()  # its textures belong to a model that is gone
        if not protocol.settle_first:
            sim.set_state(state)
        for _ in range(self._spec.options["settle_steps"]):
            sim.step(np.array(protocol.settle_action))
        if protocol.settle_first:
            sim.set_state(state)
        sim.use_poses(absolute=self._spec.options["control"] == "absolute")
        self._steps = 0
        self._expert = None
        return self._observe(), {"is_success": False}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move for 50 ms.

        Args:
            action: Float32 (7,): hand displacement or pose (6) and gripper command.
        """
        command = np.array(action, dtype=self._protocol.precision)
        command[6] = self._grip(command[6])
        succeeds = self._sim.step(command)
        self._steps += 1
        truncated = self._steps >= self.max_steps
        return self._observe(), float(succeeds), succeeds, truncated, {"is_success": succeeds}

    def expert_action(self) -> NDArray[np.float32]:
        """What the scripted expert does now, float32 (7,).

        Raises:
            InvalidCall: The task has no expert, or its actions would be understood otherwise.
        """
        options = self._spec.options
        if options["control"] != "relative" or options["gripper"] == "oft":
            raise InvalidCall(
                f"the expert of {self._spec.name} speaks relative actions and LIBERO's gripper "
                "commands: use it with control='relative' and gripper='as_is' or 'sign'."
            )
        if self._expert is None:
            self._expert = PickAndPlace(self._sim.problem)
        return self._expert.action()

    def render(self) -> NDArray[np.uint8]:
        """The first camera's frame as a person sees it, uint8 (H, W, 3)."""
        frame = super().render()
        rows, columns = self.upright
        return frame[::rows, ::columns].copy()

    def sim_state(self) -> NDArray[np.float64]:
        """Time, positions and velocities, float64 (1 + nq + nv)."""
        return self._sim.state()

    def _init_state(self, index: int, options: Mapping[str, Any]) -> NDArray[np.float64]:
        own: NDArray[np.float64] = self._init_states[index % STREAM % len(self._init_states)]
        if (given := options.get("init_state")) is None:
            return own
        state = np.asarray(given, np.float64)
        if state.shape != own.shape or not np.isfinite(state).all():
            raise InvalidCall(
                f"an initial state of {self._spec.name} is {len(own)} finite numbers (time,"
                f" positions, velocities), found shape {state.shape}"
                f"{'' if state.shape != own.shape else ' with NaN or infinity'}"
            )
        return state

    @property
    def _frame_shape(self) -> tuple[int, int, int]:
        return (*frame_size(self._spec), 3)

    def _observe(self) -> Observation:
        felt = self._sim.sampler.felt
        state = self._array("state", (8,), np.float32)
        canonical = self._spec.options["quaternion"] == "canonical"
        state[:3] = felt.eef_pos
        state[3:6] = axis_angle(felt.eef_quat, canonical=canonical)
        state[6:] = felt.gripper_qpos
        observation = {"state": state}
        if self._spec.options["robot_state"]:
            for key, value in self._robot_state().items():
                observation[key] = self._array(key, value.shape, np.float64)
                observation[key][:] = value
        if self.frames_enabled:
            observation.update(self._frames())
        return observation

    def _robot_state(self) -> Observation:
        felt = self._sim.sampler.felt
        return {
            "robot_state/eef_pos": felt.eef_pos,
            "robot_state/eef_quat": felt.eef_quat,
            "robot_state/eef_mat": self._sim.controller.ee_ori_mat.ravel(),
            "robot_state/gripper_qpos": felt.gripper_qpos,
            "robot_state/gripper_qvel": felt.gripper_qvel,
            "robot_state/joint_pos": felt.joint_pos,
            "robot_state/joint_vel": felt.joint_vel,
        }

    def _make_renderer(self) -> OffscreenRenderer:
        model, (height, width) = self._sim.model, self._spec.image_size
        screen = model.vis.global_
        screen.offwidth = max(width, screen.offwidth)
        screen.offheight = max(height, screen.offheight)
        share = ("libero", self._spec.task, screen.offwidth, screen.offheight)
        return OffscreenRenderer(
            model,
            self._spec.image_size,
            hidden_groups=(_COLLISION_GROUP,),
            share=share if self._spec.options["share_gl"] else None,
        )

    def _draw(self, renderer: OffscreenRenderer, camera: str, out: NDArray[np.uint8]) -> None:
        sampler = self._sim.sampler
        sampler.swap_colours()
        try:
            resized = self._spec.options["resize"] is not None
            target = self._rendered if resized else out
            index = self._sim.model.camera(camera).id
            renderer.draw(sampler.shown, index, target, self._steps_of_frame)
        finally:
            sampler.swap_colours()
        if resized:
            out[:] = _resize_with_padding(self._rendered, out.shape[0])


def _resize_with_padding(frame: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Bilinear, aspect kept, centred on black, as openpi's client does."""
    from PIL import Image

    height, width = frame.shape[:2]
    ratio = max(width / side, height / side)
    size = (int(width / ratio), int(height / ratio))
    resized = Image.fromarray(frame).resize(size, resample=Image.Resampling.BILINEAR)
    square = Image.new("RGB", (side, side), 0)
    square.paste(resized, (max(0, (side - size[0]) // 2), max(0, (side - size[1]) // 2)))
    return np.asarray(square)
