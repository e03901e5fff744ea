"""For authors of plug-ins and for our own tests: a conformance kit and toy envs.

The toys are named for what they do. `check_suite` and `check_policy` check a suite and a policy
against their contracts.
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
from polyarm.testing.policies import (
    CountingPolicy,
    HangingPolicy,
    NanPolicy,
    RaisingPolicy,
    SleepyPolicy,
    WrongShapePolicy,
    check_policy,
)
from polyarm.testing.suite_checks import check_suite
from polyarm.testing.toy_suite import ToySuite

__all__ = [
    "BindingEnv",
    "BindingNullEnv",
    "ChatteringEnv",
    "CountingEnv",
    "CountingPolicy",
    "CrashingEnv",
    "DictActionEnv",
    "FailingEnv",
    "ForkingEnv",
    "HangingEnv",
    "HangingPolicy",
    "InfoEnv",
    "LeakingEnv",
    "NanPolicy",
    "NoisyEnv",
    "NullEnv",
    "RaisingPolicy",
    "SegfaultingEnv",
    "SleepyPolicy",
    "SlowEnv",
    "ToySuite",
    "WrongShapePolicy",
    "check_policy",
    "check_suite",
]
