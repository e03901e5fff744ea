"""Episodes of random actions, compared bit for bit: the part of the kit that steps envs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from polyarm.contracts import FRAME_KEYS, STREAM, EnvSpec
from polyarm.testing.promises import doing

EPISODE = 3
"""The episode that is played over and over."""
_STEP = ("observation", "reward", "terminated", "truncated", "info")
_NEAR = 200
"""Episodes of so many steps are played to their end."""

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
    first: gymnasium.Env[Any, Any],
    make_second: Callable[[], gymnasium.Env[Any, Any]],
    steps: int,
    *,
    varied: bool,
) -> Trajectory:
    """Check that episodes depend on their index alone, and frames on nothing but the step.

    Returns:
        Episode `EPISODE`.
    """
    reference = run_episode(first, EPISODE, steps)
    run_episode(first, 5, steps)
    again = run_episode(first, EPISODE, steps)
    assert_equal(reference, again, "an episode depends on those before it")
    far = run_episode(first, EPISODE + STREAM, steps, actions=EPISODE)
    if varied:
        near = run_episode(first, 5, steps, actions=EPISODE)
        for index, found in ((5, near), (EPISODE + STREAM, far)):
            assert not same_bits(reference, found), (
                f"episodes {EPISODE} and {index} are the same, with the same actions: every bit of"
                f" options['episode'] (an int64) chooses the episode. If that is as it should be,"
                f" say varied=False"
            )
    _check_horizon(first)
    second = make_second()
    run_episode(second, 8, 1)
    again = run_episode(second, EPISODE, steps)
    assert_equal(reference, again, "two envs made from one spec behave differently")
    rare = run_episode(second, EPISODE, steps, lambda step: step % 4 == 0)
    assert_equal(reference, rare, "turning frames off changes the episode")
    never = run_episode(second, EPISODE, steps, lambda step: False)
    assert_equal(reference, never, "turning frames off changes the episode")
    _check_terminal(reference, never)
    if hasattr(second, "bind"):
        bound = run_bound(second, EPISODE, steps)
        assert_equal(reference, bound, "bind() changes the episode")
    return reference


def check_in_worker(spec: EnvSpec, reference: Trajectory) -> None:
    """Check that `EPISODE` is the same when the engine plays it in a worker, frames aside."""
    from polyarm.vector.make import make_vec

    with (
        doing("playing the env in a worker"),
        make_vec(
            spec.name,
            num_envs=1,
            cameras=spec.cameras,
            image_size=spec.image_size,
            autoreset="disabled",
            max_restarts=0,
            **spec.options,
        ) as envs,
    ):
        space = envs.single_action_space
        space.seed(EPISODE)
        obs, _ = envs.reset(options={"episodes": [EPISODE]})
        found = Trajectory([_numbers(obs)])
        for _ in reference.results:
            empty: Any = create_empty_array(space, 1)
            actions = concatenate(space, [space.sample()], empty)
            obs, rewards, terminated, truncated, info = envs.step(actions)
            if "error" in info:
                raise AssertionError(f"in a worker, the env fails: {info['error'][0]}")
            found.observations.append(_numbers(obs))
            ends = bool(terminated[0]), bool(truncated[0])
            found.results.append((float(rewards[0]), *ends, bool(info["is_success"][0])))
    assert_equal(reference, found, "the env behaves differently in a worker")


def _numbers(obs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What is no frame, of the only slot: frames may be drawn by another renderer."""
    return {key: value[0].copy() for key, value in obs.items() if not key.startswith(FRAME_KEYS)}


def _check_horizon(env: gymnasium.Env[Any, Any]) -> None:
    """Play an episode to its end, if that is near."""
    horizon: int = env.max_steps  # type: ignore[attr-defined]
    if horizon <= _NEAR:
        made = run_episode(env, EPISODE, horizon)
        assert any(made.results[-1][1:3]), (
            f"an episode goes on after max_steps={horizon} steps; it ends there by truncation"
        )


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
    env: gymnasium.Env[Any, Any],
    episode: int,
    steps: int,
    frames: Frames = lambda step: True,
    *,
    actions: int | None = None,
) -> Trajectory:
    """Run up to ``steps`` steps of an episode; its index, or ``actions``, fixes the actions."""
    suite_env: Any = env
    trajectory = Trajectory()
    env.action_space.seed(episode % STREAM if actions is None else actions)
    suite_env.frames_enabled = frames(0)
    with doing(f"reset(options={{'episode': {episode}}})"):
        begun: Any = env.reset(options={"episode": episode})
    _require_values("reset()", begun, ("observation", "info"))
    obs, info = begun
    assert isinstance(info, dict), f"reset() returned {type(info).__name__} as info"
    _record(trajectory, env, obs, frames=frames(0))
    for step in range(1, steps + 1):
        suite_env.frames_enabled = frames(step)
        with doing(f"step {step}"):
            made: Any = env.step(env.action_space.sample())
        _require_values("step()", made, _STEP)
        obs, reward, terminated, truncated, info = made
        assert isinstance(info, dict), f"step() returned {type(info).__name__} as info"
        _record(trajectory, env, obs, frames=frames(step))
        success = info.get("is_success")
        assert isinstance(success, bool | np.bool_), (
            f"info['is_success'] must be a bool at every step; at step {step} it is {success!r}"
        )
        assert np.ndim(reward) == 0 and isinstance(reward, SupportsFloat), (
            f"the reward of step {step} is {reward!r}, expected a number"
        )
        assert np.isfinite(float(reward)), f"the reward of step {step} is {reward}"
        result = (float(reward), bool(terminated), bool(truncated), bool(success))
        trajectory.results.append(result)
        if terminated or truncated:
            break
    with doing("terminal_frame()"):
        trajectory.terminal = suite_env.terminal_frame()
    assert trajectory.terminal is None or isinstance(trajectory.terminal, Mapping), (
        f"terminal_frame() returned a {type(trajectory.terminal).__name__}, expected None or frames"
        f" by name"
    )
    return trajectory


def _require_values(what: str, found: Any, expected: Sequence[str]) -> None:
    values = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
    right = isinstance(found, tuple) and len(found) == len(expected)
    assert right, f"{what} returned {values}, expected ({', '.join(expected)})"


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


def same_bits(left: Trajectory, right: Trajectory) -> bool:
    """Whether two episodes cannot be told apart."""
    try:
        assert_equal(left, right, "")
    except AssertionError:
        return False
    return True


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
    assert isinstance(obs, Mapping), f"the observation is a {type(obs).__name__}, not a dict"
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
