"""Where LeRobot's commands meet polyarm: two of its functions look at whose envs they are given.

Nothing changes for other envs than polyarm's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from lerobot.envs import factory
from lerobot.envs.configs import EnvConfig

from lerobot_env_polyarm.configs import MadeByPolyarm
from polyarm.compat.lerobot import eval_policy_all


def hook_into_lerobot() -> None:
    """Let our configs make envs, and our runner evaluate on them, where LeRobot's commands do."""
    if not hasattr(EnvConfig, "create_envs"):  # LeRobot 0.4 has a fixed list of envs instead
        _replace(factory.make_env, _made_by_polyarm, _create_envs)
    # Only where one of its commands runs: its module is there, or is the program itself.
    for name in ("lerobot.scripts.lerobot_eval", "__main__"):
        evaluation = getattr(sys.modules.get(name), "eval_policy_all", None)
        if evaluation is not None and evaluation.__module__ == name:
            _replace(evaluation, _played_by_polyarm, eval_policy_all)


def _made_by_polyarm(cfg: Any, *_: Any, **__: Any) -> bool:
    return isinstance(cfg, MadeByPolyarm)


def _create_envs(cfg: MadeByPolyarm, n_envs: int = 1, *_: Any, **__: Any) -> Any:
    return cfg.create_envs(n_envs)  # processes and the hub are not for our envs to ask about


def _played_by_polyarm(envs: Any, *_: Any, **__: Any) -> bool:
    every = [env for tasks in envs.values() for env in tasks.values()]
    return all(getattr(env, "runner", "") == "polyarm" for env in every)


def _replace(
    original: Callable[..., Any], ours: Callable[..., bool], replacement: Callable[..., Any]
) -> None:
    """Have a function of LeRobot's call ours where it is due, wherever it was imported to."""
    if getattr(original, "asks_polyarm", False):
        return

    @functools.wraps(original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        function = replacement if ours(*args, **kwargs) else original
        return function(*args, **kwargs)

    chosen.asks_polyarm = True
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(original.__name__) is original:
            setattr(module, original.__name__, chosen)
