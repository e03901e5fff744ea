"""Copies of a policy for threads: one set of weights, everything else apart."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, TypeVar

from polyarm.errors import InvalidCall

T = TypeVar("T")


def policy_copies(policy: T, count: int) -> list[T]:
    """Copies that threads can use at once, for what a policy remembers belongs to each alone.

    Parameters and buffers are the very same tensors: they are in memory once, and a change of them
    in place is seen by all. Everything else is copied through and through: queues of actions,
    histories, and objects inside of the policy such as ACT's temporal ensembler, which a shallow
    copy would share. Copies begin with empty queues; the policy itself is left as it is.

    LeRobot's processors keep what they are working on, too, and the one behind a policy may look
    into the one before it (relative actions are added to the state that was seen last): threads
    need copies of them as well, made together.

    Args:
        policy: A LeRobot ``PreTrainedPolicy``, a processor, or a tuple of what belongs together.
        count: How many.

    Raises:
        InvalidCall: ``count`` is less than 1.
    """
    if count < 1:
        raise InvalidCall(f"at least 1 copy can be made, not {count}")
    tensors = [
        getattr(part, name)()
        for part in _parts(policy)
        for name in ("parameters", "buffers")
        if hasattr(part, name)
    ]
    shared = {id(tensor): tensor for tensor in chain.from_iterable(tensors)}
    copies = [copy.deepcopy(policy, dict(shared)) for _ in range(count)]
    for part in chain.from_iterable(map(_parts, copies)):
        if hasattr(part, "reset"):
            part.reset()
    return copies


def _parts(policy: Any) -> tuple[Any, ...]:
    return policy if isinstance(policy, tuple) else (policy,)
