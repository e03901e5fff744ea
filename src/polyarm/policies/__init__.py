"""Policies that come with polyarm, and the names they have on the command line.

Importing this room imports no deep-learning framework.
"""

from __future__ import annotations

from polyarm.policies.basic import (
    ExpertPolicy,
    FunctionPolicy,
    RandomPolicy,
    ReplayPolicy,
    ZeroPolicy,
)
from polyarm.policies.history import History
from polyarm.policies.loading import expand_policies, load_policy
from polyarm.policies.torch import TorchPolicy

__all__ = [
    "ExpertPolicy",
    "FunctionPolicy",
    "History",
    "RandomPolicy",
    "ReplayPolicy",
    "TorchPolicy",
    "ZeroPolicy",
    "expand_policies",
    "load_policy",
]
