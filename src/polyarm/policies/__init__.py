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
from polyarm.policies.normalization import Normalized
from polyarm.policies.statistics import Normalization, load_lerobot, load_openpi, load_openvla
from polyarm.policies.torch import TorchPolicy

__all__ = [
    "ExpertPolicy",
    "FunctionPolicy",
    "History",
    "Normalization",
    "Normalized",
    "RandomPolicy",
    "ReplayPolicy",
    "TorchPolicy",
    "ZeroPolicy",
    "expand_policies",
    "load_lerobot",
    "load_openpi",
    "load_openvla",
    "load_policy",
]
