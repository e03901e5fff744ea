"""RIPT-VLA's environment runners on polyarm's engine: the same calls, other processes below.

`LiberoRunner` stands in for ``OpenVLAOFTLiberoRunner`` and ``LiberoRunner`` of RIPT-VLA,
`PI0LiberoRunner` for the runner of its PI0 flavour, and `create_env_runner` chooses by the same
configuration. `OFTPolicy` and `PI0Policy` are the adapters that they use, for use elsewhere.
``docs/ript.md`` has recipes, and what differs from the originals and why.
"""

from __future__ import annotations

from polyarm.compat.ript.config import create_env_runner, example_config
from polyarm.compat.ript.pi0 import PI0LiberoRunner
from polyarm.compat.ript.policies import OFTPolicy, PI0Policy
from polyarm.compat.ript.runner import LiberoRunner

__all__ = [
    "LiberoRunner",
    "OFTPolicy",
    "PI0LiberoRunner",
    "PI0Policy",
    "create_env_runner",
    "example_config",
]
