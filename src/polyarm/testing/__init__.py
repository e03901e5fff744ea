"""For authors of plug-ins and for our own tests: a conformance kit and toy envs.

The toys are named for what they do. `check_suite` checks a suite against its contract.
"""

from polyarm.testing.counting import (
    BindingEnv,
    BindingNullEnv,
    CountingEnv,
    NoisyEnv,
    NullEnv,
    SlowEnv,
)
from polyarm.testing.echoing import DictActionEnv, InfoEnv
from polyarm.testing.failing import (
    ChatteringEnv,
    CrashingEnv,
    FailingEnv,
    ForkingEnv,
    HangingEnv,
    LeakingEnv,
    SegfaultingEnv,
)
from polyarm.testing.suite_checks import check_suite
from polyarm.testing.toy_suite import ToySuite

__all__ = [
    "BindingEnv",
    "BindingNullEnv",
    "ChatteringEnv",
    "CountingEnv",
    "CrashingEnv",
    "DictActionEnv",
    "FailingEnv",
    "ForkingEnv",
    "HangingEnv",
    "InfoEnv",
    "LeakingEnv",
    "NoisyEnv",
    "NullEnv",
    "SegfaultingEnv",
    "SlowEnv",
    "ToySuite",
    "check_suite",
]
