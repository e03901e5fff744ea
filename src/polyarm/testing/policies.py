"""The conformance kit for policies, and toy policies named for what they do.

An author of a policy calls `check_policy` in a test. Every failure is an AssertionError that says
which promise was broken and what was found.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, Policy, PolicyOutput, stack_leaves, to_host
from polyarm.testing.promises import doing

Array = NDArray[Any]
Decision = dict[str, Array]
"""One row's ``actions`` (K, …) and extras, by name."""

_DECISIONS = 4
_KEYS = tuple(EpisodeKey("toy", f"check-{index % 2}", index, index % 3) for index in range(5))


def check_policy(
    policy: Policy,
    space: gymnasium.Space[Any],
    obs_space: gymnasium.Space[Any] | None = None,
    *,
    keys: Sequence[EpisodeKey] = _KEYS,
) -> None:
    """Check that ``policy`` keeps every promise of `polyarm.contracts.Policy`.

    Plays short episodes of random observations, alone and side by side.

    Args:
        policy: The policy.
        space: Action space of a single env: Box, Discrete, MultiDiscrete or MultiBinary.
        obs_space: Observation space of a single env; by default ``{"state": float32 (4,)}``.
        keys: At least two episodes to play, for a policy that knows only some.

    Raises:
        AssertionError: With the first promise that was found broken.
    """
    assert len(set(keys)) >= 2, f"check_policy needs two different episodes, not {list(keys)}"
    _check_attributes(policy)
    if hasattr(policy, "expert_steps"):
        return
    stage = _Stage(policy, space, obs_space, tuple(keys))
    everyone = range(len(keys))
    whole = stage.play(everyone)
    _assert_equal(whole, stage.play(everyone), "begun again, in the same batch,")
    if getattr(policy, "row_independent", False):
        for row in everyone:
            _assert_equal(whole, stage.play([row]), "in a batch of one instead of many")
        _assert_equal(whole, stage.play(everyone[::-1]), "in a batch of another order")
        _check_neighbour(stage, whole)
    else:
        stage.play([0])
    if hasattr(policy, "end"):
        with doing("end()"):
            policy.end(keys)
        _assert_equal(whole, stage.play(everyone), "begun again after end()")


def _check_attributes(policy: Policy) -> None:
    assert not isinstance(policy, type), f"check_policy needs a policy, not the class {policy!r}"
    for name in ("act", "begin"):
        assert callable(getattr(policy, name, None)), f"the policy has no method {name}()"
    for name in ("row_independent", "needs_frames"):
        value = getattr(policy, name, True)
        assert isinstance(value, bool), f"{name} is {value!r}, expected True or False"
    steps = getattr(policy, "expert_steps", 1)
    assert isinstance(steps, int) and steps >= 1, f"expert_steps is {steps!r}, expected 1 or more"
    fingerprint = getattr(policy, "fingerprint", "")
    assert isinstance(fingerprint, str | Mapping), (
        f"fingerprint is a {type(fingerprint).__qualname__}, expected a mapping or a string"
    )
    try:
        json.dumps(fingerprint)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"fingerprint cannot be written as JSON: {error}") from error


class _Stage:
    """Plays the same episodes over and over: what is observed depends on key and decision alone."""

    def __init__(
        self,
        policy: Policy,
        space: gymnasium.Space[Any],
        obs_space: gymnasium.Space[Any] | None,
        keys: tuple[EpisodeKey, ...],
    ) -> None:
        self.policy = policy
        self.keys = keys
        self._space = space
        obs_space = copy.deepcopy(obs_space or spaces.Dict(state=spaces.Box(-1, 1, (4,))))
        obs_space.seed(0)
        self._obs = [[self._sample(obs_space) for _ in keys] for _ in range(_DECISIONS)]

    def _sample(self, obs_space: gymnasium.Space[Any]) -> Any:
        obs = obs_space.sample()
        if getattr(self.policy, "needs_frames", True) or not isinstance(obs, Mapping):
            return obs
        return {name: value for name, value in obs.items() if not name.startswith("pixels/")}

    def play(self, rows: Sequence[int]) -> dict[EpisodeKey, list[Decision]]:
        """Begin these episodes and decide a few times on all of them."""
        with doing("begin()"):
            self.policy.begin([self.keys[row] for row in rows])
        generators = {row: self.keys[row].generator() for row in rows}
        steps = dict.fromkeys(rows, 0)
        played: dict[EpisodeKey, list[Decision]] = {self.keys[row]: [] for row in rows}
        for number in range(_DECISIONS):
            for row, decision in zip(
                rows, self.decide(rows, number, generators, steps), strict=True
            ):
                played[self.keys[row]].append(decision)
                steps[row] += len(decision["actions"])
        return played

    def decide(
        self,
        rows: Sequence[int],
        number: int,
        generators: Mapping[int, np.random.Generator],
        steps: Mapping[int, int],
    ) -> list[Decision]:
        """The decisions of one call of ``act``, one per row, checked."""
        obs = stack_leaves([self._obs[number][row] for row in rows])
        batch = Batch(
            copy.deepcopy(obs),
            tuple(self.keys[row] for row in rows),
            tuple(f"do task {self.keys[row].task}" for row in rows),
            np.array([steps[row] for row in rows], np.int64),
            tuple(generators[row] for row in rows),
        )
        with doing(f"act() of a batch of {len(rows)}"):
            output = self.policy.act(batch)
        decisions = _decisions(output, len(rows), self._space)
        assert _flat(batch.obs) == _flat(obs), "act() wrote into the observations"
        return decisions


def _check_neighbour(stage: _Stage, whole: Mapping[EpisodeKey, list[Decision]]) -> None:
    rows = [0, 1]
    stage.policy.begin([stage.keys[row] for row in rows])
    generators = {row: stage.keys[row].generator() for row in rows}
    first = stage.decide(rows, 0, generators, dict.fromkeys(rows, 0))
    stage.policy.begin([stage.keys[1]])
    second = stage.decide([0], 1, generators, {0: len(first[0]["actions"])})
    played = {stage.keys[0]: [first[0], second[0]]}
    _assert_equal(whole, played, "while another episode began")


def _decisions(output: Any, rows: int, space: gymnasium.Space[Any]) -> list[Decision]:
    extras: Mapping[str, Any] = {}
    if isinstance(output, PolicyOutput):
        output, extras = output.actions, output.extras
    with doing(f"making an array of the {type(output).__name__} that act() returned"):
        returned = actions = np.array(to_host(output))
    tail = space.shape or ()
    if actions.ndim == len(tail) + 1:
        actions = actions[:, np.newaxis]
    fits = actions.ndim == len(tail) + 2 and actions.shape[2:] == tail
    assert fits and len(actions) == rows and actions.shape[1] > 0, (
        f"for {rows} rows of {space} act() returned shape {returned.shape}, expected"
        f" {(rows, *tail)} or {(rows, 'K', *tail)}"
    )
    assert space.dtype is None or np.can_cast(actions.dtype, space.dtype, "same_kind"), (
        f"act() returned {actions.dtype}, which does not become {space.dtype} within its kind"
    )
    if actions.dtype.kind == "f":
        bad = np.argwhere(~np.isfinite(actions))
        assert not len(bad), f"act() returned {actions[tuple(bad[0])]} in row {bad[0][0]}"
    if not isinstance(space, spaces.Box):
        for row, step in np.ndindex(actions.shape[:2]):
            action = actions[row, step].astype(space.dtype)
            assert space.contains(action), f"row {row}: the action {action} is outside of {space}"
    arrays = {name: np.array(to_host(value)) for name, value in extras.items()}
    for name, value in arrays.items():
        assert value.ndim > 0 and len(value) == rows, (
            f"for {rows} rows act() returned extras {name!r} of shape {value.shape}, expected one"
            f" entry per row"
        )
    return [
        {"actions": actions[row], **{name: value[row] for name, value in arrays.items()}}
        for row in range(rows)
    ]


def _assert_equal(
    expected: Mapping[EpisodeKey, list[Decision]],
    found: Mapping[EpisodeKey, list[Decision]],
    when: str,
) -> None:
    for key, decisions in found.items():
        for number, decision in enumerate(decisions):
            for name, value in expected[key][number].items():
                other = decision.get(name)
                same = other is not None and _flat(value) == _flat(other)
                assert same, (
                    f"{when} episode {key} got other {name} at decision {number}: first {value},"
                    f" then {other}. begin() must forget what is kept for its keys and no others,"
                    f" noise must come from batch.generators, and a policy whose rows depend on the"
                    f" rest of the batch, if only in the last bits, says row_independent = False."
                )


def _flat(tree: Any) -> Any:
    """Something that is equal for trees that are equal bit for bit."""
    if isinstance(tree, Mapping):
        return {key: _flat(value) for key, value in tree.items()}
    array = np.asarray(tree)
    return array.shape, array.dtype.str, array.tobytes()


class CountingPolicy:
    """Returns zeros, and counts what it is asked.

    Args:
        shape: Shape of an action; by default that of a `CountingEnv`.
        chunk: Actions per decision.

    Attributes:
        batch_sizes: Rows of every batch.
        keys: Episodes of every batch.
        steps: Steps the episodes of every batch had made.
        begun: Episodes that began, in order.
        ended: Episodes that ended, in order.
    """

    row_independent = True
    needs_frames = False

    def __init__(self, shape: tuple[int, ...] = (2,), chunk: int = 1) -> None:
        self.shape = shape
        self.chunk = chunk
        self.batch_sizes: list[int] = []
        self.keys: list[tuple[EpisodeKey, ...]] = []
        self.steps: list[tuple[int, ...]] = []
        self.begun: list[EpisodeKey] = []
        self.ended: list[EpisodeKey] = []

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Its class."""
        return {"policy": type(self).__qualname__}

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """Note that these episodes begin."""
        self.begun.extend(episodes)

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """Note that these episodes are over."""
        self.ended.extend(episodes)

    def act(self, batch: Batch) -> Array:
        """Zeros, float32 ``(B, chunk, *shape)``."""
        self.batch_sizes.append(len(batch))
        self.keys.append(batch.keys)
        self.steps.append(tuple(batch.steps.tolist()))
        return np.zeros((len(batch), self.chunk, *self.shape), np.float32)


class SleepyPolicy(CountingPolicy):
    """Takes its time, in proportion to the batch.

    Args:
        seconds_per_row: What a row costs.
        shape: Shape of an action.
        chunk: Actions per decision.
    """

    def __init__(
        self, seconds_per_row: float, shape: tuple[int, ...] = (2,), chunk: int = 1
    ) -> None:
        super().__init__(shape, chunk)
        self.seconds_per_row = seconds_per_row

    def act(self, batch: Batch) -> Array:
        """Zeros, later."""
        time.sleep(self.seconds_per_row * len(batch))
        return super().act(batch)


class _TurningPolicy(CountingPolicy):
    """Goes wrong after some decisions.

    Args:
        after: Decisions that are still right.
        shape: Shape of an action.
        chunk: Actions per decision.
    """

    def __init__(self, after: int = 0, shape: tuple[int, ...] = (2,), chunk: int = 1) -> None:
        super().__init__(shape, chunk)
        self.after = after

    def act(self, batch: Batch) -> Array:
        """Zeros, until it goes wrong."""
        actions = super().act(batch)
        return actions if len(self.batch_sizes) <= self.after else self.fail(actions)

    def fail(self, actions: Array) -> Array:
        """What happens instead of returning ``actions``."""
        raise NotImplementedError


class RaisingPolicy(_TurningPolicy):
    """Raises a RuntimeError from decision ``after`` on."""

    def fail(self, actions: Array) -> Array:
        """Raise."""
        raise RuntimeError(f"the policy raises at decision {len(self.batch_sizes) - 1}")


class NanPolicy(_TurningPolicy):
    """Returns NaN in the last row of every batch from decision ``after`` on."""

    def fail(self, actions: Array) -> Array:
        """Spoil the last row."""
        actions[-1] = np.nan
        return actions


class WrongShapePolicy(_TurningPolicy):
    """Returns actions with one dimension too many from decision ``after`` on."""

    def fail(self, actions: Array) -> Array:
        """Add a dimension."""
        return actions[..., np.newaxis]


class HangingPolicy(_TurningPolicy):
    """Does not return from decision ``after`` on, until `release` is set or an hour has passed.

    Attributes:
        hanging: Set as soon as it hangs.
        release: Set it to let it go on.
    """

    def __init__(self, after: int = 0, shape: tuple[int, ...] = (2,), chunk: int = 1) -> None:
        super().__init__(after, shape, chunk)
        self.hanging = threading.Event()
        self.release = threading.Event()

    def fail(self, actions: Array) -> Array:
        """Wait."""
        self.hanging.set()
        self.release.wait(3600)
        return actions
