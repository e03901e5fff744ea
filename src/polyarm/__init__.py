"""polyarm runs hundreds of simulated robot arms at once behind one shared block of memory.

The public API is the names exported here and by `polyarm.policies`, `polyarm.training`,
`polyarm.testing` and `polyarm.compat`. They load on first use, so that ``import polyarm``
stays light: the fork server starts through this package and must remain single-threaded, which
NumPy's thread pools would end.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyarm.contracts import (
        STREAM,
        Batch,
        EnvDescription,
        EnvSpec,
        EpisodeKey,
        EpisodeResult,
        Footprint,
        ForkMode,
        ObservedEpisode,
        Observer,
        Outcome,
        Policy,
        PolicyOutput,
        Requirement,
        Suite,
        SuiteEnv,
        Task,
    )
    from polyarm.distributed.ray.envs import RayVectorEnv
    from polyarm.errors import (
        BrokenSuite,
        BuildError,
        ClosedEnv,
        DisplayError,
        EnvCallError,
        ForkServerDied,
        HostLimit,
        InvalidAction,
        InvalidCall,
        InvalidObservation,
        MissingExtra,
        PolicyError,
        PolyarmError,
        RankLost,
        RunConflict,
        SlotError,
        StoppedEarly,
        StorageError,
        UnknownName,
        UnsupportedSpace,
        WireError,
        WorkerDied,
        WorkerError,
    )
    from polyarm.report.results import Results
    from polyarm.rollout.collect import Rollout, RolloutGroup, collect, is_informative
    from polyarm.rollout.evaluate import evaluate
    from polyarm.rollout.evaluator import Evaluator
    from polyarm.rollout.options import EvalOptions
    from polyarm.vector.asynchronous import Ready
    from polyarm.vector.env import VectorEnv
    from polyarm.vector.make import make_vec
    from polyarm.vector.torch_env import TorchVectorEnv

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BrokenSuite",
    "BuildError",
    "ClosedEnv",
    "DisplayError",
    "EnvCallError",
    "EnvDescription",
    "EnvSpec",
    "EpisodeKey",
    "EpisodeResult",
    "EvalOptions",
    "Evaluator",
    "Footprint",
    "ForkMode",
    "ForkServerDied",
    "HostLimit",
    "InvalidAction",
    "InvalidCall",
    "InvalidObservation",
    "MissingExtra",
    "ObservedEpisode",
    "Observer",
    "Outcome",
    "Policy",
    "PolicyError",
    "PolicyOutput",
    "PolyarmError",
    "RankLost",
    "RayVectorEnv",
    "Ready",
    "Requirement",
    "Results",
    "Rollout",
    "RolloutGroup",
    "RunConflict",
    "STREAM",
    "SlotError",
    "StoppedEarly",
    "StorageError",
    "Suite",
    "SuiteEnv",
    "Task",
    "TorchVectorEnv",
    "UnknownName",
    "UnsupportedSpace",
    "VectorEnv",
    "WireError",
    "WorkerDied",
    "WorkerError",
    "__version__",
    "collect",
    "evaluate",
    "is_informative",
    "make_vec",
]

_CONTRACTS = (
    *("Batch", "EnvDescription", "EnvSpec", "EpisodeKey", "EpisodeResult", "Footprint"),
    *("ForkMode", "ObservedEpisode", "Observer", "Outcome", "Policy", "PolicyOutput"),
    *("Requirement", "STREAM", "Suite", "SuiteEnv", "Task"),
)
_HOMES = {
    "VectorEnv": "polyarm.vector.env",
    "Ready": "polyarm.vector.asynchronous",
    "TorchVectorEnv": "polyarm.vector.torch_env",
    "RayVectorEnv": "polyarm.distributed.ray.envs",
    "make_vec": "polyarm.vector.make",
    "EvalOptions": "polyarm.rollout.options",
    "Evaluator": "polyarm.rollout.evaluator",
    "evaluate": "polyarm.rollout.evaluate",
    "Rollout": "polyarm.rollout.collect",
    "RolloutGroup": "polyarm.rollout.collect",
    "collect": "polyarm.rollout.collect",
    "is_informative": "polyarm.rollout.collect",
    "Results": "polyarm.report.results",
}


def _home(name: str) -> str:
    """The module that defines the exported ``name``."""
    if name in _HOMES:
        return _HOMES[name]
    return "polyarm.contracts" if name in _CONTRACTS else "polyarm.errors"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_home(name)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
