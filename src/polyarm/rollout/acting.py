"""The policies of an evaluation: loaded once, one at a time, and asked what they were made for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium

from polyarm import registry
from polyarm.contracts import EnvSpec, Policy
from polyarm.errors import StoppedEarly
from polyarm.policies.fingerprints import files_digest, policy_fingerprint
from polyarm.policies.loading import (
    as_policy,
    checkpoint_path,
    fits_any_space,
    identity,
    load_policy,
    source_digest,
)
from polyarm.policies.remote import RemotePolicy
from polyarm.rollout.plan import Group

PolicyLike = Policy | str | Callable[..., Any]

_ANY_SPACE: gymnasium.Space[Any] = gymnasium.Space()


class _LoadingStops(BaseException):
    """Passes through whatever a policy's own loading catches."""


class Policies:
    """Makes policies of whatever stands for one, and keeps the last that was loaded by its name.

    Args:
        chunk: Actions per decision of the built-in ones.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._loaded: tuple[str, gymnasium.Space[Any], Policy] | None = None
        self._loader: int | None = None

    def get(self, policy: PolicyLike, space: gymnasium.Space[Any]) -> Policy:
        """The policy for an action space."""
        if not isinstance(policy, str):
            return as_policy(policy)
        if fits_any_space(policy):
            space = _ANY_SPACE  # so that it is loaded once for envs of all kinds
        if self._loaded is None or self._loaded[:2] != (policy, space):
            self.unload()  # first: two may not fit into a GPU's memory
            self._loaded = (policy, space, self._load(policy, space))
        return self._loaded[2]

    def _load(self, policy: str, space: gymnasium.Space[Any]) -> Policy:
        self._loader = threading.get_ident()
        try:
            loaded = load_policy(policy, space, chunk=self._chunk)
            if isinstance(loaded, RemotePolicy):
                _connect(loaded)
            return loaded
        except _LoadingStops:
            raise StoppedEarly(f"stopped while {policy} was loaded; nothing was begun") from None
        finally:
            self._loader = None

    def stop_loading(self) -> None:
        """Cut short what this very thread is loading: for a signal's handler, which may not wait.

        A server may not answer for minutes, and nothing has been begun that could be lost.
        """
        if self._loader == threading.get_ident():
            raise _LoadingStops

    def suited(self, policy: PolicyLike, space: gymnasium.Space[Any], group: Group) -> Policy:
        """The policy, if it does not refuse the envs of a group.

        Raises:
            PolicyError: It was not made for them.
        """
        acting = self.get(policy, space)
        check_specs(acting, group.specs)
        return acting

    def looks(self, policy: PolicyLike, group: Group) -> bool:
        """Whether a policy may look at frames."""
        if isinstance(policy, str):
            if checkpoint_path(policy) is not None or (space := known_space(group)) is None:
                return True
            policy = self.get(policy, space)
        return bool(getattr(policy, "needs_frames", True))

    def fingerprint(self, policy: PolicyLike, group: Group) -> Any:
        """What tells a policy from others; checkpoints by their bytes, without loading them."""
        if not isinstance(policy, str):
            return policy_fingerprint(as_policy(policy))
        about: dict[str, Any] = {"name": identity(policy), "source": source_digest(policy)}
        if (path := checkpoint_path(policy)) is not None:
            about["checkpoint"] = files_digest(path)
            return about
        space = _ANY_SPACE if fits_any_space(policy) else known_space(group)
        if space is not None:
            about["policy"] = policy_fingerprint(self.get(policy, space))
        return about

    def unload(self) -> None:
        """Forget what was loaded by its name."""
        if self._loaded is not None and isinstance(self._loaded[2], RemotePolicy):
            self._loaded[2].close()
        self._loaded = None


def _connect(policy: RemotePolicy) -> None:
    """Wait here for its servers, not in its first decision."""
    try:
        policy.connect()
    except BaseException:
        policy.close()
        raise


def check_specs(policy: Policy, specs: Iterable[EnvSpec]) -> None:
    """Let a policy refuse envs that it was not made for.

    Raises:
        PolicyError: It does.
    """
    if (check := getattr(policy, "check_spec", None)) is not None:
        for spec in specs:
            check(spec)


def own_execute(policy: Policy) -> int | None:
    """How many actions a policy itself wants to be executed before it is asked again."""
    own = getattr(policy, "execute", None)
    return own if isinstance(own, int) else None


def known_space(group: Group) -> gymnasium.Space[Any] | None:
    """The action space of a group's envs, if it is known without building one."""
    spec = group.specs[0]
    description = registry.load(spec.suite).describe(spec)
    return None if description is None else description.action_space
