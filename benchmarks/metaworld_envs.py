"""Meta-World as its own users build it, and as ours do, for the benchmarks to compare.

Both play episodes of 500 steps, whatever succeeds. The simulator is imported inside the functions:
this module is imported again in every process that a peer starts.
"""

from __future__ import annotations

from typing import Any

import gymnasium

TASK = "reach-v3"
OPTIONS = {"terminate_on_success": False}


class PlainEnv:
    """A zero-argument constructor of Meta-World's own env class, its cheapest documented form.

    ``gymnasium.make("Meta-World/MT1", ...)`` would draw 50 tasks first, which takes longer.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self) -> gymnasium.Env[Any, Any]:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE

        env: gymnasium.Env[Any, Any]
        env = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{TASK}-goal-observable"](seed=self.seed)
        return env


def suite_env(cameras: tuple[str, ...] = ()) -> gymnasium.Env[Any, Any]:
    """The env of our suite, in this process; with cameras, ready to render."""
    from polyarm import registry
    from polyarm.contracts import EnvSpec

    suite = registry.load("metaworld")
    env = suite.make(suite.check(EnvSpec("metaworld", TASK, cameras, options=OPTIONS)))
    if cameras:
        suite.attach_display(env)
    return env
