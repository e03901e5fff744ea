"""A Gymnasium env in which a hand reaches for a goal, as a package that LeRobot's configs name."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

ENV_ID = "lerobot_toys/Reach-v0"


class ReachEnv(gymnasium.Env):
    """Like Meta-World's reach: the hand moves by a centimetre a step, the goal is not seen.

    Args:
        obs_type: ``"state"``, or ``"pixels_agent_pos"`` with a frame that shows the step.
        fails_at: The goal's seed whose episode breaks down at its second step, every time.
        render_mode: Gymnasium's.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    task = "reach"
    task_description = "reach the goal"

    def __init__(self, obs_type="state", fails_at=None, render_mode="rgb_array"):
        self.render_mode = render_mode
        self._fails_at = fails_at
        spaces = {"agent_pos": Box(-10, 10, (4,), np.float32)}
        if obs_type == "pixels_agent_pos":
            spaces["pixels"] = Dict({"top": Box(0, 255, (8, 8, 3), np.uint8)})
        self.observation_space = Dict(spaces)
        self.action_space = Box(-1, 1, (4,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._seed = seed
        low, high = (-0.1, 0.8, 0.05), (0.1, 0.9, 0.3)
        self._goal = self.np_random.uniform(low, high)
        self._hand = np.array([0.0, 0.6, 0.2])
        self._steps = 0
        return self._observe(), {"is_success": False}

    def step(self, action):
        self._steps += 1
        if self._steps == 2 and self._fails_at is not None and self._seed == self._fails_at:
            raise RuntimeError("the simulator has lost its mind")
        self._hand += 0.01 * np.asarray(action[:3], np.float64)
        distance = float(np.linalg.norm(self._hand - self._goal))
        success = distance < 0.05
        return self._observe(), 1 - distance, success, False, {"is_success": success}

    def render(self):
        return np.full((16, 16, 3), self._steps, np.uint8)

    def _observe(self):
        obs = {"agent_pos": np.array([*self._hand, 1.0], np.float32)}
        if "pixels" in self.observation_space.spaces:
            obs["pixels"] = {"top": np.full((8, 8, 3), self._steps, np.uint8)}
        return obs


gymnasium.register(ENV_ID, ReachEnv, max_episode_steps=60)
