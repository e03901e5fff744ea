"""Statistics between an env and a policy: states on their way in, actions on their way out.

The formulas are in `transforms`; `statistics` reads them from the files of a checkpoint or dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, Policy, PolicyOutput
from polyarm.errors import InvalidCall, PolicyError
from polyarm.policies.fingerprints import policy_fingerprint
from polyarm.policies.transforms import Transform


class Normalized:
    """A policy that sees normalised states and returns normalised actions, made fit for an env.

    Args:
        policy: The policy.
        state: Its `forward` is applied to ``batch.obs["state"]``; None leaves it as it is.
        actions: Its `inverse` is applied to what the policy returns; None leaves it as it is.
            Extras are kept as they are.

    Raises:
        InvalidCall: There is nothing to do, or the policy is the env's expert.
    """

    def __init__(
        self, policy: Policy, *, state: Transform | None = None, actions: Transform | None = None
    ) -> None:
        if state is None and actions is None:
            raise InvalidCall("Normalized needs a transform for the state, the actions, or both")
        if getattr(policy, "expert_steps", 0):
            raise InvalidCall("the expert acts inside the worker; its actions need no transform")
        self._policy = policy
        self._state, self._actions = state, actions
        self.row_independent: bool = getattr(policy, "row_independent", False)
        self.needs_frames: bool = getattr(policy, "needs_frames", True)
        self.device: Any = getattr(policy, "device", "")

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The policy's own, with modes and digests of the statistics."""
        return {
            "policy": "normalized",
            "state": dict(self._state.fingerprint) if self._state else None,
            "actions": dict(self._actions.fingerprint) if self._actions else None,
            "of": policy_fingerprint(self._policy),
        }

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin, maybe again; the policy is told."""
        self._policy.begin(episodes)

    def act(self, batch: Batch) -> NDArray[Any] | PolicyOutput:
        """The policy's actions on the normalised state, in the env's numbers.

        Raises:
            PolicyError: There is no state, or the statistics do not fit.
        """
        if self._state is not None:
            if not isinstance(batch.obs, Mapping) or "state" not in batch.obs:
                keys = sorted(batch.obs) if isinstance(batch.obs, Mapping) else type(batch.obs)
                raise PolicyError(f"there is no 'state' to normalise; the observation has {keys}")
            # In memory of its own: the observation is a view of what the env wrote.
            state = _applied("state", self._state.forward, batch.obs["state"])
            batch = replace(batch, obs={**batch.obs, "state": state})
        output = self._policy.act(batch)
        if self._actions is None:
            return output
        if isinstance(output, PolicyOutput):
            actions = _applied("actions", self._actions.inverse, output.actions)
            return replace(output, actions=actions)
        return _applied("actions", self._actions.inverse, output)

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes are over; a policy that wants to know is told."""
        end = getattr(self._policy, "end", None)
        if end is not None:
            end(episodes)


def _applied(
    what: str, function: Callable[[Any], NDArray[np.float32]], x: Any
) -> NDArray[np.float32]:
    try:
        return function(x)
    except PolicyError as error:
        raise PolicyError(f"the {what} cannot be normalised: {error}") from error
