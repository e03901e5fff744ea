"""Episodes of random actions, compared bit for bit: the part of the kit that steps envs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from polyarm.contracts import FRAME_KEYS

Frames = Callable[[int], bool]
"""Whether the observation of a step (0: the reset) shall carry frames."""


@dataclass
class Trajectory:
    """What an episode delivered.

    Attributes:
        observations: One per observation, the reset's first.
        results: Reward, terminated, truncated and success of every step.
        terminal: What ``terminal_frame()`` gave after the last step.
    """

    observations: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    results: list[tuple[float, bool, bool, bool]] = field(default_factory=list)
    terminal: Mapping[str, NDArray[np.uint8]] | None = None


def check_episodes(
    first: gymnasium.Env[Any, Any], make_second: Callable[[], gymnasium.Env[Any, Any]], steps: int
) -> None:
    """Check that episodes depend on their index alone, and frames on nothing but the step."""
    reference = run_episode(first, 3, steps)
    run_episode(first, 5, steps)
    assert_equal(reference, run_episode(first, 3, steps), "an episode depends on those before it")
    second = make_second()
    run_episode(second, 8, 1)
    again = run_episode(second, 3, steps)
    assert_equal(reference, again, "two envs made from one spec behave differently")
    rare = run_episode(second, 3, steps, lambda step: step % 4 == 0)
    assert_equal(reference, rare, "turning frames off changes the episode")
    never = run_episode(second, 3, steps, lambda step: False)
    assert_equal(reference, never, "turning frames off changes the episode")
    _check_terminal(reference, never)
    if hasattr(second, "bind"):
        bound = run_bound(second, 3, steps)
        assert_equal(reference, bound, "bind() changes the episode")


def check_seeds(
    first: gymnasium.Env[Any, Any], make_second: Callable[[], gymnasium.Env[Any, Any]], steps: int
) -> None:
    """Check that episodes of plain Gymnasium envs depend on their seed alone."""
    reference = run_seed(first, 3, steps)
    run_seed(first, 5, steps)
    found = run_seed(first, 3, steps)
    same = data_equivalence(reference, found, exact=True)
    assert same, "an episode depends on those before it although reset(seed=) was given"
    found = run_seed(make_second(), 3, steps)
    same = data_equivalence(reference, found, exact=True)
    assert same, "two envs made from one spec behave differently after the same reset(seed=)"


def run_seed(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> list[Any]:
    """What a plain env delivers after ``reset(seed=seed)``, up to its episode's end."""
    env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    delivered = [copy.deepcopy(obs)]
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        delivered.append(copy.deepcopy((obs, float(reward), bool(terminated), bool(truncated))))
        if terminated or truncated:
            break
        inside = env.observation_space.contains(obs)
        assert inside, f"step {len(delivered) - 1} gave {obs}, not in {env.observation_space}"
    return delivered


def run_episode(
    env: gymnasium.Env[Any, Any], episode: int, steps: int, frames: Frames = lambda step: True
) -> Trajectory:
    """Run up to ``steps`` steps of an episode; the actions depend on its index alone."""
    suite_env: Any = env
    trajectory = Trajectory()
    env.action_space.seed(episode)
    suite_env.frames_enabled = frames(0)
    obs, info = env.reset(options={"episode": episode})
    assert isinstance(info, dict), f"reset() returned {type(info).__name__} as info"
    _record(trajectory, env, obs, frames=frames(0))
    for step in range(1, steps + 1):
        suite_env.frames_enabled = frames(step)
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        _record(trajectory, env, obs, frames=frames(step))
        success = info.get("is_success")
        assert isinstance(success, bool | np.bool_), (
            f"info['is_success'] must be a bool at every step; at step {step} it is {success!r}"
        )
        result = (float(reward), bool(terminated), bool(truncated), bool(success))
        trajectory.results.append(result)
        if terminated or truncated:
            break
    trajectory.terminal = suite_env.terminal_frame()
    return trajectory


def run_bound(env: gymnasium.Env[Any, Any], episode: int, steps: int) -> Trajectory:
    """Run an episode with observations written in place into buffers of our own."""
    suite_env: Any = env
    space: Any = env.observation_space
    buffers = {key: np.zeros(part.shape, part.dtype) for key, part in space.items()}
    suite_env.bind(buffers=buffers)
    suite_env.frames_enabled = True
    obs, _ = env.reset(options={"episode": episode})
    strangers = [key for key in buffers if obs[key] is not buffers[key]]
    assert not strangers, f"after bind() the observation does not return the buffers {strangers}"
    return run_episode(env, episode, steps)


def assert_equal(expected: Trajectory, found: Trajectory, broken: str) -> None:
    """Fail with ``broken`` unless both delivered the same bits wherever both delivered some."""
    assert expected.results == found.results, (
        f"{broken}: rewards, ends or success differ at step "
        f"{_first_difference(expected.results, found.results) + 1}"
    )
    for step, (left, right) in enumerate(
        zip(expected.observations, found.observations, strict=True)
    ):
        for key in left.keys() & right.keys():
            same = left[key].tobytes() == right[key].tobytes()
            assert same, f"{broken}: {key!r} differs at step {step}"


def _record(
    trajectory: Trajectory,
    env: gymnasium.Env[Any, Any],
    obs: dict[str, NDArray[Any]],
    *,
    frames: bool,
) -> None:
    space: Any = env.observation_space
    wanted = {key for key in space if frames or not key.startswith(FRAME_KEYS)}
    step = len(trajectory.observations)
    assert set(obs) == wanted, (
        f"with frames_enabled={frames} the observation of step {step} has keys "
        f"{sorted(obs)}, not {sorted(wanted)}"
    )
    for key, value in obs.items():
        part = space[key]
        same_kind = getattr(value, "shape", None) == part.shape and value.dtype == part.dtype
        fits = same_kind and part.contains(value)
        assert fits, (
            f"{key!r} at step {step} is not in {part}: shape {np.shape(value)}, "
            f"dtype {getattr(value, 'dtype', type(value).__name__)}"
        )
    trajectory.observations.append({key: np.array(value) for key, value in obs.items()})


def _check_terminal(reference: Trajectory, without_frames: Trajectory) -> None:
    for trajectory in (reference, without_frames):
        if trajectory.terminal is None:
            continue
        last = reference.observations[-1]
        expected = {key for key in last if key.startswith(FRAME_KEYS)}
        assert set(trajectory.terminal) == expected, (
            f"terminal_frame() has {sorted(trajectory.terminal)}, not {sorted(expected)}"
        )
        for key in expected:
            same = np.array_equal(trajectory.terminal[key], last[key])
            assert same, f"terminal_frame() is not the frame that step delivered: {key!r}"


def _first_difference(left: list[Any], right: list[Any]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))
