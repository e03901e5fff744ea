"""Hands a policy the last few observations of each episode instead of the last one.

What is kept belongs to an `EpisodeKey`; rows of a batch share nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, Policy, PolicyOutput, map_leaves, stack_leaves
from polyarm.errors import InvalidCall
from polyarm.policies.fingerprints import policy_fingerprint


class History:
    """Stacks the last ``n_obs_steps`` observations that were seen at decisions, oldest first.

    A leaf ``(B, …)`` becomes ``(B, n_obs_steps, …)``. At the start of an episode the first
    observation is repeated. A policy that returns chunks is asked once per chunk, so consecutive
    observations lie a chunk apart.

    Args:
        policy: The policy that wants the history.
        n_obs_steps: Observations per decision.
    """

    def __init__(self, policy: Policy, n_obs_steps: int) -> None:
        if n_obs_steps < 1:
            raise InvalidCall(f"a history holds at least 1 observation, not {n_obs_steps}")
        self._policy = policy
        self._length = n_obs_steps
        self._seen: dict[EpisodeKey, deque[Any]] = {}
        self.row_independent: bool = getattr(policy, "row_independent", False)
        self.needs_frames: bool = getattr(policy, "needs_frames", True)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The policy's own, and the length of the history."""
        inner = policy_fingerprint(self._policy)
        return {"policy": "history", "n_obs_steps": self._length, "of": inner}

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin, maybe again; what was seen of them is forgotten."""
        self._forget(episodes)
        self._policy.begin(episodes)

    def act(self, batch: Batch) -> NDArray[Any] | PolicyOutput:
        """The policy's actions on the stacked observations."""
        stories: list[Any] = []
        for row, key in enumerate(batch.keys):
            # In memory of its own: observations are views that the next step overwrites.
            obs = map_leaves(partial(_copied, row), batch.obs)
            step = int(batch.steps[row])
            # Appending to a story full of the first observation changes nothing.
            story = self._seen.setdefault(key, deque([(step, obs)] * self._length, self._length))
            if story[-1][0] != step:  # else it is being asked again, in a smaller batch
                story.append((step, obs))
            stories.append(stack_leaves([seen for _, seen in story]))
        return self._policy.act(replace(batch, obs=stack_leaves(stories)))

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes are over; what was seen of them is dropped."""
        self._forget(episodes)
        end = getattr(self._policy, "end", None)
        if end is not None:
            end(episodes)

    def _forget(self, episodes: Sequence[EpisodeKey]) -> None:
        for key in episodes:
            self._seen.pop(key, None)


def _copied(row: int, leaf: Any) -> NDArray[Any]:
    return np.array(np.asarray(leaf[row]))
