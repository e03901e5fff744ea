"""From what a policy returns to what an env executes: checked chunks, and a queue per episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from polyarm.contracts import PolicyOutput, to_host
from polyarm.errors import InvalidCall, PolicyError, UnsupportedSpace
from polyarm.vector.actions import discrete_limits

Array = NDArray[Any]


class ActionQueue:
    """One episode's way from decisions to executed actions, by receding horizon.

    After a decision its K predicted actions are offered, the next ``min(execute, K)`` are taken
    and executed as one chunk, and the policy is asked again. What was predicted beyond them is
    dropped, or, with temporal ensembling, kept: then an executed action is the weighted average of
    all predictions made for its time step, in the order they were made with the weights
    exp(-m i), i = 0 for the *oldest* (as in ACT, https://arxiv.org/abs/2304.13705). With m > 0 old
    predictions weigh more, with m < 0 new ones.

    Predictions overlap, and ensembling does something, only where ``execute`` is less than K; ACT
    executes 1.

    Args:
        execute: Actions executed per decision at most; None for all of them.
        ensemble: The m of the weights, or None for no ensembling.
    """

    def __init__(self, execute: int | None = None, ensemble: float | None = None) -> None:
        if execute is not None and execute < 1:
            raise InvalidCall(f"at least 1 action is executed per decision, not {execute}")
        if ensemble is not None and not np.isfinite(ensemble):
            raise InvalidCall(f"the weight of temporal ensembling is a finite number: {ensemble}")
        self._execute = execute
        self._ensemble = ensemble
        self._taken = 0
        self._offers: list[tuple[int, Array]] = []
        self._ready = False

    @property
    def taken(self) -> int:
        """Actions taken since the episode began: the time step of the next one."""
        return self._taken

    @property
    def ready(self) -> bool:
        """Whether a decision has been offered and not yet taken."""
        return self._ready

    def offer(self, actions: Array) -> None:
        """Hand over a decision; the actions are copied.

        Args:
            actions: ``(K, …)``, predicted for the time steps from `taken` on.

        Raises:
            InvalidCall: The last decision was not taken yet, or these actions cannot be used.
        """
        if self._ready:
            raise InvalidCall("a decision was offered before the last one was taken")
        if actions.ndim == 0 or len(actions) == 0:
            raise InvalidCall(f"a decision holds at least 1 action, not shape {actions.shape}")
        if self._ensemble is not None and actions.dtype.kind != "f":
            raise InvalidCall(
                f"temporal ensembling averages actions, which {actions.dtype} actions cannot be;"
                f" turn it off for this action space"
            )
        # A prediction that reaches no further than the present is of no more use.
        useful = [(start, kept) for start, kept in self._offers if start + len(kept) > self._taken]
        if any(kept.shape[1:] != actions.shape[1:] for _, kept in useful):
            raise InvalidCall(
                f"actions of shape {actions.shape[1:]} were offered after {useful[0][1].shape[1:]}"
            )
        self._offers = useful if self._ensemble is not None else []
        self._offers.append((self._taken, np.array(actions)))
        self._ready = True

    def take(self) -> Array:
        """The actions to execute now, ``(k, …)`` in the dtype they were offered in.

        Raises:
            InvalidCall: No decision has been offered since the last call.
        """
        if not self._ready:
            raise InvalidCall("there is no decision to take actions from")
        newest = self._offers[-1][1]
        count = min(self._execute or len(newest), len(newest))
        if self._ensemble is None:
            actions = newest[:count]
        else:
            steps = range(self._taken, self._taken + count)
            actions = np.stack([self._average(step) for step in steps])
        self._taken += count
        self._ready = False
        return actions

    def _average(self, step: int) -> Array:
        predictions = np.stack(
            [kept[step - start] for start, kept in self._offers if step < start + len(kept)]
        )
        # Shifted so that the largest weight is 1: no m can overflow.
        exponents = -(self._ensemble or 0.0) * np.arange(len(predictions))
        weights = np.exp(exponents - exponents.max())
        average = np.tensordot(weights / weights.sum(), predictions.astype(np.float64), axes=1)
        return np.asarray(average, predictions.dtype)


def as_chunks(
    output: Any, batch_len: int, space: gymnasium.Space[Any]
) -> tuple[Array, dict[str, Array]]:
    """What a policy returned, checked and in one form.

    Args:
        output: A `PolicyOutput`, or actions as an array, a tensor or nested lists: ``(B, K, …)``,
            or ``(B, …)`` for single steps.
        batch_len: B, the rows the policy was asked about.
        space: Action space of a single env: Box, Discrete, MultiDiscrete or MultiBinary.

    Returns:
        The actions ``(B, K, …)`` in the space's dtype, and the extras ``(B, …)`` by name. Box
        actions outside of the bounds are left as they are.

    Raises:
        PolicyError: With what was expected and found, and the row if one is at fault.
        UnsupportedSpace: The space is none of these.
    """
    if not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise UnsupportedSpace(
            f"policies act in Box, Discrete, MultiDiscrete and MultiBinary spaces, not in {space}"
        )
    extras: Mapping[str, Any] = {}
    if isinstance(output, PolicyOutput):
        output, extras = output.actions, output.extras
    actions = _chunked(_array(output, "actions"), batch_len, space)
    _check_values(actions, space)
    return actions, {name: _extra(name, extras[name], batch_len) for name in extras}


def _array(value: Any, what: str) -> Array:
    try:
        array = np.asarray(to_host(value))
    except ValueError as error:
        raise PolicyError(f"the policy's {what} are not an array: {error}") from error
    if array.dtype == object:
        raise PolicyError(
            f"the policy's {what} are not an array but {type(value).__qualname__}; return an array,"
            f" or a PolicyOutput(actions, extras)"
        )
    return array


def _chunked(array: Array, batch_len: int, space: gymnasium.Space[Any]) -> Array:
    """The actions as ``(B, K, …)`` in the space's dtype."""
    tail = space.shape or ()
    if array.ndim == len(tail) + 1:
        array = array[:, np.newaxis]
        found: tuple[int, ...] = (len(array), *array.shape[2:])
    else:
        found = array.shape
    if array.shape[2:] != tail or array.ndim != len(tail) + 2 or len(array) != batch_len:
        inner = "".join(f", {size}" for size in tail)
        raise PolicyError(
            f"the policy's actions have shape {found}, expected ({batch_len}, K{inner}) or"
            f" ({batch_len}{inner or ','}): {batch_len} rows of {space}"
        )
    if array.shape[1] == 0:
        raise PolicyError("the policy returned chunks of no actions; expected K of at least 1")
    dtype = np.dtype(space.dtype)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise PolicyError(
            f"the policy's actions have dtype {array.dtype}, the space says {dtype}; only casts"
            f" within a kind are made"
        )
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    if dtype.kind in "iu" and (wrapped := cast != array).any():
        raise _refusal(array, wrapped, f"does not fit in {dtype}")
    return cast


def _check_values(actions: Array, space: gymnasium.Space[Any]) -> None:
    if actions.dtype.kind == "f":
        finite = np.isfinite(actions)
        if not finite.all():
            raise _refusal(actions, ~finite, "is not finite")
    if isinstance(space, spaces.Box):
        return
    low, high = discrete_limits(space)
    outside = (actions < low) | (actions > high)
    if outside.any():
        raise _refusal(actions, outside, f"is outside of {space}")


def _refusal(actions: Array, bad: Array, why: str) -> PolicyError:
    place = tuple(int(index) for index in np.argwhere(bad)[0])
    row, step, *rest = place
    where = f"[{', '.join(map(str, rest))}]" if rest else ""
    return PolicyError(
        f"row {row}: the policy's action{where} = {actions[place]!s} at step {step} of the chunk"
        f" {why}",
        row=row,
    )


def _extra(name: str, value: Any, batch_len: int) -> Array:
    array = _array(value, f"extras {name!r}")
    if array.ndim == 0 or len(array) != batch_len:
        raise PolicyError(
            f"the policy's extras {name!r} have shape {array.shape}, expected one entry per row:"
            f" ({batch_len}, …)"
        )
    return array
