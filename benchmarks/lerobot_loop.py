"""LeRobot's own evaluation loop against ours: the same policy, the same episodes.

Meta-World with one camera (corner2) at 256², episodes of fixed length, a policy that predicts
chunks of eight. LeRobot's `eval_policy` steps Gymnasium's AsyncVectorEnv: frames at every step,
`select_action` at every step. Its sub-envs are ours, because LeRobot's own play other episodes and
render 480² whatever size they are asked for. Ours is the runner with the same policy object. Envs
are built and have played before anything is timed. `dropin.py` runs it with a small network.

    python benchmarks/lerobot_loop.py --policy act --device cuda --num-envs 16
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium
import measure
import numpy as np
from gymnasium.vector import AsyncVectorEnv

import polyarm
from polyarm.contracts import EnvSpec
from polyarm.display import select
from polyarm.rollout.evaluate import close_kept_envs
from polyarm.vector.host import thread_limits

TASK = "reach-v3"
CAMERA = "corner2"
SIZE = 256


class LeRobotEnv(gymnasium.Env[Any, Any]):
    """Our Meta-World env in the clothes of LeRobot's: its observations, its attributes."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}
    task = TASK
    render_mode = "rgb_array"

    def __init__(self, steps: int) -> None:
        from polyarm import registry

        suite = registry.load("metaworld")
        options = {"terminate_on_success": False, "max_steps": steps}
        spec = suite.check(EnvSpec("metaworld", TASK, (CAMERA,), (SIZE, SIZE), options))
        self._env = suite.make(spec)
        suite.attach_display(self._env)
        self.task_description = self._env.unwrapped.instruction
        self._max_episode_steps = steps
        self.action_space = self._env.action_space
        self.observation_space = gymnasium.spaces.Dict(
            {
                "pixels": self._env.observation_space[f"pixels/{CAMERA}"],
                "agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self._env.reset(options={"episode": seed or 0})
        return self._seen(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self._env.step(np.asarray(action, np.float32))
        return self._seen(obs), *rest

    def close(self) -> None:
        self._env.close()

    def _seen(self, obs: Any) -> dict[str, Any]:
        return {"pixels": obs[f"pixels/{CAMERA}"].copy(), "agent_pos": obs["state"][:4].copy()}


class AsyncEnvs(AsyncVectorEnv):
    """With `envs`, where LeRobot 0.4 looks for the task; newer versions ask through `call`."""

    @property
    def envs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(task=TASK, task_description=TASK)] * self.num_envs


Evaluation = Callable[[], tuple[float, list[float]]]
"""Plays all episodes; returns episodes per second and the return of each."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared.

    Attributes:
        policy: ``cnn``, ``act`` or ``vla``.
        num_envs: Envs that run at once, on both sides.
        episodes: Episodes per round.
        steps: Steps of each.
        device: Where the policy runs.
    """

    policy: str = "cnn"
    num_envs: int = 4
    episodes: int = 8
    steps: int = 80
    device: str = "cpu"

    def rounds(self, count: int) -> measure.Rounds:
        """Episodes per second of both sides, after a round that is not counted.

        It refuses to compare sides that play different episodes.
        """
        with self._sides() as sides:
            returns = {side: play()[1] for side, play in sides.items()}
            # Batches differ in size, so the last bits of actions may differ.
            if not np.allclose(returns["lerobot"], returns["polyarm"], rtol=1e-2):
                raise SystemExit(f"the two sides played different episodes: {returns}")
            timed = {side: (lambda play=play: play()[0]) for side, play in sides.items()}
            return measure.interleave(timed, count)

    @contextmanager
    def _sides(self) -> Iterator[dict[str, Evaluation]]:
        from lerobot_policies import make_policy

        policy = make_policy(self.policy, self.device)
        # As our workers have it: without a screen, and no more threads than cores.
        limits = thread_limits(self.num_envs, forked=False)
        os.environ.update({**limits, **select("auto", frames=True).env})
        upstream = AsyncEnvs([lambda: LeRobotEnv(self.steps)] * self.num_envs, context="spawn")
        try:
            yield {
                "lerobot": lambda: self._theirs(upstream, policy),
                "polyarm": lambda: self._ours(policy),
            }
        finally:
            upstream.close()
            close_kept_envs()

    def _theirs(self, envs: AsyncEnvs, policy: Any) -> tuple[float, list[float]]:
        from lerobot.scripts.lerobot_eval import eval_policy

        began = time.perf_counter()
        told = eval_policy(
            envs,
            policy,
            env_preprocessor=_same,
            env_postprocessor=_same,
            preprocessor=self._on_device,
            postprocessor=_same,
            n_episodes=self.episodes,
            start_seed=0,
        )
        spent = time.perf_counter() - began
        return self.episodes / spent, [one["sum_reward"] for one in told["per_episode"]]

    def _ours(self, policy: Any) -> tuple[float, list[float]]:
        from polyarm.policies.lerobot import LeRobotPolicy

        began = time.perf_counter()
        results = polyarm.evaluate(
            LeRobotPolicy(policy, preprocessor=self._on_device),
            f"metaworld/{TASK}",
            episodes=self.episodes,
            num_envs=self.num_envs,
            cameras=(CAMERA,),
            suite_options={"terminate_on_success": False, "max_steps": self.steps},
            keep_envs=True,
        )
        spent = time.perf_counter() - began
        returns = {one.key.index: one.total_reward for one in results.episodes}
        return self.episodes / spent, [returns[index] for index in range(self.episodes)]

    def _on_device(self, observation: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value.to(self.device) if hasattr(value, "to") else value
            for key, value in observation.items()
        }


def _same(value: Any) -> Any:
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policy", choices=("cnn", "act", "vla"), default="cnn")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    asked = vars(parser.parse_args())
    rounds = asked.pop("rounds")
    results = Comparison(**asked).rounds(rounds)
    medians = measure.medians(results)
    ratio = measure.ratio(results, "polyarm", "lerobot")
    rows = [(f"{name}, episodes/s", f"{value:.3f}") for name, value in medians.items()]
    measure.print_table("LeRobot's loop and ours", [*rows, ("ratio", f"{ratio:.1f}x")])
    figures = {"ratio_lerobot_eval": ratio, "episodes_per_s": medians, "rounds": rounds}
    measure.print_json({"benchmark": "lerobot_loop", **asked, **figures})


if __name__ == "__main__":
    main()
