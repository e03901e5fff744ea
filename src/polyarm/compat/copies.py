"""Copies of a policy for threads: one set of weights, everything else apart."""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

from polyarm.errors import InvalidCall

T = TypeVar("T")


def policy_copies(policy: T, count: int) -> list[T]:
    """Copies that threads can use at once, for what a policy remembers belongs to each alone.

    Parameters and buffers are the very same tensors: they are in memory once, and a change of them
    in place is seen by all. Everything else is copied through and through: queues of actions,
    histories, and objects inside of the policy such as ACT's temporal ensembler, which a shallow
    copy would share. Copies begin with empty queues; the policy itself is left as it is.

    LeRobot's processors keep what they are working on, too: threads need copies of them as well,
    and this function makes those just the same.

    Args:
        policy: A LeRobot ``PreTrainedPolicy``, or a processor.
        count: How many.

    Raises:
        InvalidCall: ``count`` is less than 1.
    """
    if count < 1:
        raise InvalidCall(f"at least 1 copy can be made, not {count}")
    tensors = [
        getattr(policy, name)() for name in ("parameters", "buffers") if hasattr(policy, name)
    ]
    shared = {id(tensor): tensor for tensor in chain.from_iterable(tensors)}
    copies = [copy.deepcopy(policy, dict(shared)) for _ in range(count)]
    for one in copies:
        if hasattr(one, "reset"):
            one.reset()
    return copies
