"""One contender of libero.py in a process of its own; reads jobs from stdin, answers with seconds.

LIBERO's own envs render into whichever GL context is current, so contenders cannot share a process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from processes import descendants, proportional_memory

# This folder has a libero.py of its own, which must not hide LIBERO's package.
sys.path.sort(key=lambda path: Path(path) == Path(__file__).parent)

TASK = "libero_spatial/0"
SIZE = 256
CAMERAS = ("agentview", "robot0_eye_in_hand")
SETTLE = np.array([0.0] * 6 + [-1.0])
ENVS = 2


def libero_paths() -> tuple[str, Any]:
    """The task's definition and its initial states, after LIBERO was told where its files are."""
    from polyarm.suites.libero import assets, catalogue, init_states

    assets.prepare_libero_config()
    import libero.libero

    libero.libero._assets_path_cache = str(assets.checked_folder())
    task, folder = catalogue.find(TASK), assets.package_folder()
    states = init_states.read(folder / "init_files" / task.init_states_file)
    return str(folder / "bddl_files" / task.bddl_file), states


def libero_env(**options: Any) -> Any:
    from libero.libero.envs.env_wrapper import ControlEnv

    sizes = {"camera_heights": SIZE, "camera_widths": SIZE}
    return ControlEnv(bddl_file_name=libero_paths()[0], **sizes, **options)


def actions(*shape: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, (*shape, 7)).astype(np.float32)


class LiberoVector:
    """LIBERO's own SubprocVectorEnv."""

    def __init__(self) -> None:
        self._states = libero_paths()[1]
        from libero.libero.envs import SubprocVectorEnv

        self._envs = SubprocVectorEnv([libero_env] * ENVS)
        self._envs.seed(0)
        self.episode(0)

    def every(self, steps: int) -> None:
        for action in actions(steps, ENVS):
            self._envs.step(action)

    def episode(self, index: int) -> None:
        self._envs.reset()
        self._envs.set_init_state(self._states[[index % 50] * ENVS])
        for _ in range(10):
            self._envs.step(np.tile(SETTLE, (ENVS, 1)))


class LiberoBare:
    """One of LIBERO's envs with its cameras off."""

    def __init__(self) -> None:
        states = libero_paths()[1]
        self._env = libero_env(use_camera_obs=False, has_offscreen_renderer=False)
        self._env.seed(0)
        self._env.reset()
        self._env.set_init_state(states[0])

    def every(self, steps: int) -> None:
        self._env.env.timestep = 0
        for action in actions(steps):
            self._env.step(action)


class PolyarmVector:
    """The same two envs here."""

    def __init__(self) -> None:
        import polyarm

        self._envs = polyarm.make_vec(
            f"libero/{TASK}", num_envs=ENVS, cameras=CAMERAS, max_steps=10**6
        )
        self.episode(0)

    def every(self, steps: int) -> None:
        for action in actions(steps, ENVS):
            self._envs.step(action)

    def chunks(self, steps: int) -> None:
        for chunk in actions(steps // 8, ENVS, 8):
            self._envs.step_chunk(chunk)

    def episode(self, index: int) -> None:
        self._envs.reset(options={"episodes": [index] * ENVS})


class PolyarmBare:
    """One of our envs with its cameras off."""

    def __init__(self) -> None:
        from polyarm.contracts import EnvSpec
        from polyarm.suites.libero import Libero

        self._env = Libero().make(EnvSpec("libero", TASK, options={"max_steps": 10**6}))
        self._env.reset(options={"episode": 0})

    def every(self, steps: int) -> None:
        for action in actions(steps):
            self._env.step(action)


class LeRobotEnv(gymnasium.Env[Any, Any]):
    """A LIBERO env by the rules of LeRobot 0.6: built lazily, a frame at every step."""

    def __init__(self, index: int, stride: int, *, hard_reset: bool) -> None:
        frame = Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        state = Box(-np.inf, np.inf, (8,), np.float64)
        self.observation_space = Dict({"image": frame, "image2": frame, "state": state})
        self.action_space = Box(-1.0, 1.0, (7,), np.float32)
        self._next_state, self._stride = index, stride
        self._hard_reset = hard_reset
        self._env: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if self._env is None:
            self._states = libero_paths()[1]
            self._env = libero_env(hard_reset=self._hard_reset)
            self._env.reset()
        self._env.seed(seed)
        self._env.reset()
        self._env.set_init_state(self._states[self._next_state % 50])
        self._next_state += self._stride
        for _ in range(10):
            obs, *_ = self._env.step(SETTLE)
        return self._observation(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _ = self._env.step(action)
        done = bool(self._env.check_success())
        return self._observation(obs), reward, done, False, {"is_success": done}

    def _observation(self, obs: Any) -> dict[str, Any]:
        pose = (obs["robot0_eef_pos"], obs["robot0_eef_quat"][:3], obs["robot0_gripper_qpos"])
        images = (obs[f"{camera}_image"] for camera in CAMERAS)
        return dict(zip(("image", "image2", "state"), (*images, np.concatenate(pose)), strict=True))


def lerobot_episodes(episodes: int, steps: int, *, hard_reset: bool) -> None:
    """LeRobot's evaluation loop with its default asynchronous envs."""
    from gymnasium.vector import AsyncVectorEnv

    def make(index: int) -> Callable[[], LeRobotEnv]:
        return lambda: LeRobotEnv(index, ENVS, hard_reset=hard_reset)

    envs = AsyncVectorEnv([make(index) for index in range(ENVS)], context="forkserver")
    for batch in range(episodes // ENVS):
        seeds = [1000 + batch * ENVS + index for index in range(ENVS)]
        envs.reset(seed=seeds)
        for action in actions(steps, ENVS):
            envs.step(action)
    envs.close()


def polyarm_episodes(episodes: int, steps: int) -> None:
    import polyarm

    def policy(batch: Any) -> Any:
        assert all(batch.obs[f"pixels/{camera}"].any() for camera in CAMERAS)
        return actions(len(batch), 8)

    results = polyarm.evaluate(
        policy,
        f"libero/{TASK}",
        episodes=episodes,
        num_envs=ENVS,
        cameras=CAMERAS,
        protocol="lerobot",
        image_size=(SIZE, SIZE),
        suite_options={"max_steps": steps},
    )
    assert len(results.episodes) == episodes
    assert not any(one.outcome == "error" for one in results.episodes)


def startup(who: str, num_envs: int) -> dict[str, float]:
    """Seconds to the first observation of all envs, and the memory of all processes but this."""
    from gymnasium.vector import AsyncVectorEnv

    import polyarm

    began = time.perf_counter()
    envs: Any
    if who == "polyarm":
        envs = polyarm.make_vec(f"libero/{TASK}", num_envs=num_envs, cameras=CAMERAS)
        envs.reset(options={"episodes": list(range(num_envs))})
    else:
        makers = [
            (lambda index=index: LeRobotEnv(index, num_envs, hard_reset=True))
            for index in range(num_envs)
        ]
        envs = AsyncVectorEnv(makers, context="spawn")
        envs.reset(seed=list(range(num_envs)))
    seconds = time.perf_counter() - began
    nbytes = proportional_memory(descendants(os.getpid()))
    envs.close()
    return {"seconds": seconds, "pss_nbytes": nbytes}


CONTENDERS: dict[str, Callable[[], Any]] = {
    "libero": LiberoVector,
    "libero_bare": LiberoBare,
    "polyarm": PolyarmVector,
    "polyarm_bare": PolyarmBare,
}


def timed(job: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, float]:
    began = time.perf_counter()
    job(*arguments, **options)
    return {"seconds": time.perf_counter() - began}


def main() -> None:
    kind, *rest = sys.argv[1:]
    # Simulators write to stdout; answers go where only answers go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(found: dict[str, float]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    if kind == "startup":
        answer(startup(rest[0], int(rest[1])))
    elif kind == "episodes":
        who, episodes, steps = rest[0], int(rest[1]), int(rest[2])
        if who == "polyarm":
            answer(timed(polyarm_episodes, episodes, steps))
        else:
            answer(timed(lerobot_episodes, episodes, steps, hard_reset=who == "lerobot"))
    else:
        contender = CONTENDERS[kind]()
        contender.every(2)
        answer({"seconds": 0.0})
        for line in sys.stdin:
            name, count = json.loads(line)
            answer(timed(getattr(contender, name), count))


if __name__ == "__main__":
    main()
