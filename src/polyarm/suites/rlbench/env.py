"""An RLBench task as a Gymnasium env."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import STREAM, EnvSpec
from polyarm.errors import DisplayError, InvalidCall, InvalidObservation
from polyarm.suites.rlbench.actions import Target, action_space, checked, keyframes, towards
from polyarm.suites.rlbench.catalogue import find
from polyarm.suites.rlbench.demos import stored_demos
from polyarm.suites.rlbench.simulator import (
    CHANNELS,
    ActionRefused,
    RandomStates,
    Simulator,
    channels,
)
from polyarm.suites.rlbench.suite import METADATA, demo_root, observation_space
from polyarm.suites.simulated_env import Observation, SimulatedEnv

_STATE = (
    "gripper_open",
    "gripper_pose",
    "gripper_joint_positions",
    "joint_positions",
    "joint_velocities",
    "joint_forces",
)
_EXPERT_MODES = ("ik", "planning", "joint_position")


class RLBenchEnv(SimulatedEnv):
    """A task; see `RLBench` for its options.

    Args:
        spec: What is wanted, complete.
        root: CoppeliaSim's folder.
    """

    metadata = METADATA

    def __init__(self, spec: EnvSpec, root: Path) -> None:
        super().__init__(spec, "", spec.options["max_steps"])
        self.observation_space = observation_space(spec)
        self.action_space = action_space(spec)
        task, self._variation = find(spec.task)
        dataset = demo_root(spec)
        self._demos = stored_demos(dataset, task, self._variation) if dataset else []
        self._sim = Simulator(spec, root)
        try:
            self._check_room(self._sim.observe())
        except InvalidObservation:
            self._sim.close()
            raise
        self._latest: Any = None
        self._random_states = RandomStates.current()
        self._steps = 0
        self._invalid_actions = 0
        self._expert_plan: list[Target] | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Starts the stream ``seed`` at its first episode, unless an episode is given.
            options: ``{"episode": index}`` starts that episode. With neither, the episode after
                the last one is started.
        """
        super().reset(seed=seed)
        episode = self._begin(seed, options)
        entropy = np.random.SeedSequence(episode)
        # RLBench and its tasks draw from the global generators alone.
        np.random.seed(entropy.generate_state(8))
        random.seed(episode)
        self._steps = self._invalid_actions = 0
        self._expert_plan = None
        number = episode % STREAM
        if self._demos:
            demo, variation = self._demo(number)
            self._random_states = RandomStates(demo.random_seed, random.getstate())
            descriptions, self._latest = self._sim.reset_to(demo, variation)
        else:
            variation = self._variation_of(number)
            self._random_states = RandomStates.current()
            descriptions, self._latest = self._sim.reset(variation)
        chosen = np.random.default_rng(entropy.spawn(1)[0])
        self.instruction = str(chosen.choice(descriptions))
        info = {
            "is_success": False,
            "invalid_actions": 0,
            "variation": variation,
            "instruction": self.instruction,
        }
        return self._observe(), info

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action: a simulator step, or as many as it takes to get there.

        Args:
            action: Float32, as the action space says.
        """
        if self._latest is None:
            raise InvalidCall("step() needs an episode: call reset() first.")
        values, complaint = checked(action, self._spec, self.action_space.shape[0])  # type: ignore[index]
        self._steps += 1
        truncated = self._steps >= self.max_steps
        if not complaint:
            try:
                self._latest, reward, terminated, success = self._sim.step(values)
                info = {"is_success": success, "invalid_actions": self._invalid_actions}
                return self._observe(), reward, terminated, truncated and not terminated, info
            except ActionRefused as error:
                complaint = str(error)
        return self._refused(complaint, truncated=truncated)

    def expert_action(self) -> NDArray[np.float32]:
        """What RLBench's own waypoints do next in this episode.

        The first call of an episode has them play it through, then starts it again.
        """
        mode = self._spec.options["arm_mode"]
        if self._latest is None:
            raise InvalidCall("expert_action() needs an episode: call reset() first.")
        if mode not in _EXPERT_MODES:
            raise InvalidCall(f"arm_mode={mode!r} has no expert; {', '.join(_EXPERT_MODES)} have")
        if self._expert_plan is None:
            if self._steps:
                raise InvalidCall("expert_action() plays an episode from its start, or not at all")
            played = self._sim.demonstrate(self._random_states)
            if mode == "planning":
                self._expert_plan = keyframes(played.targets, played.speeds)
            else:
                self._expert_plan = played.targets[1:] or played.targets
            self._latest = self._sim.observe()
        target = self._expert_plan[min(self._steps, len(self._expert_plan) - 1)]
        pose, joints = self._latest.gripper_pose, self._latest.joint_positions
        return towards(target, np.asarray(pose), np.asarray(joints), self._spec)

    def render(self) -> NDArray[np.uint8]:
        """A frame of the first camera, uint8 (H, W, 3)."""
        if not self._spec.cameras:
            raise DisplayError(
                f"{self._spec.name} was made without cameras, and RLBench removes those that are "
                "not chosen at the start; name some when the env is made."
            )
        frame: NDArray[np.uint8] = getattr(self._sim.draw(), f"{self._spec.cameras[0]}_rgb")
        return frame

    def close(self) -> None:
        """End the simulator."""
        self._sim.close()

    def _variation_of(self, number: int) -> int:
        if self._variation is not None:
            return self._variation
        return number % self._sim.variation_count

    def _demo(self, number: int) -> tuple[Any, int]:
        if number >= len(self._demos):
            raise InvalidCall(
                f"{self._spec.name} has {len(self._demos)} stored demonstrations, so there is no "
                f"episode {number}; evaluate fewer episodes"
            )
        return self._demos[number].load()

    def _refused(
        self, complaint: str, *, truncated: bool
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """The answer to an action that was not executed."""
        self._invalid_actions += 1
        reaction = self._spec.options["on_invalid_action"]
        self._latest = self._sim.observe()
        failed = reaction == "fail"
        info: dict[str, Any] = {
            "is_success": self._sim.is_success and not failed,
            "invalid_actions": self._invalid_actions,
        }
        if reaction != "skip":
            info["invalid_action"] = complaint
        return self._observe(), 0.0, failed, not failed and (truncated or reaction == "end"), info

    def _observe(self) -> Observation:
        observation = {"state": self._state()}
        if size := self._spec.options["task_state"]:
            observation["task_state"] = self._task_state(size)
        if self.frames_enabled:
            observation.update(self._frames())
        return observation

    def _state(self) -> NDArray[np.float32]:
        values = np.concatenate([np.ravel(getattr(self._latest, name)) for name in _STATE])
        state = self._array("state", self.observation_space["state"].shape, np.float32)  # type: ignore[index]
        if values.shape != state.shape:
            raise InvalidObservation(
                f"the state of {self._spec.name} has {len(values)} numbers instead of {len(state)}"
            )
        state[:] = values
        return state

    def _task_state(self, size: int) -> NDArray[np.float32]:
        self._check_room(self._latest)
        values: Sequence[float] = self._latest.task_low_dim_state
        state = self._array("task_state", (size,), np.float32)
        state[: len(values)] = values
        state[len(values) :] = 0.0
        return state

    def _check_room(self, observation: Any) -> None:
        room = self._spec.options["task_state"]
        needed = len(observation.task_low_dim_state) if room else 0
        if needed > room:
            raise InvalidObservation(
                f"the task's own state of {self._spec.name} has {needed} numbers; "
                f"give task_state={needed} instead of {room}"
            )

    def _frames(self) -> Observation:
        began = time.perf_counter()
        drawn = self._sim.draw()
        frames = {}
        for prefix in channels(self._spec):
            for camera in self._spec.cameras:
                key = f"{prefix}/{camera}"
                space = self.observation_space[key]  # type: ignore[index]
                frames[key] = self._array(key, space.shape, space.dtype.type)
                frames[key][:] = getattr(drawn, f"{camera}_{CHANNELS[prefix]}")
        self.frame_seconds += time.perf_counter() - began
        return frames
