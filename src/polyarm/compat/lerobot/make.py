"""`make_env`: LeRobot's function of that name, with our envs."""

from __future__ import annotations

from typing import Any

import gymnasium

from polyarm.compat.lerobot.plans import plan_envs
from polyarm.compat.lerobot.vector import LeRobotVectorEnv
from polyarm.errors import InvalidCall, MissingExtra, UnknownName

Envs = dict[str, dict[int, gymnasium.vector.VectorEnv[Any, Any, Any]]]


def make_env(
    cfg: Any,
    n_envs: int = 1,
    use_async_envs: bool = True,  # noqa: FBT001, FBT002  LeRobot's signature
    hub_cache_dir: str | None = None,
    trust_remote_code: bool = False,  # noqa: FBT001, FBT002  the same
) -> Envs:
    """Vector envs by group and task; no simulator runs before the first reset of each.

    Args:
        cfg: A LeRobot env config (LIBERO, Meta-World, or one with a ``gym_id``), the name of its
            type, or a repository of the Hugging Face hub, which LeRobot itself takes care of.
        n_envs: Envs per task. A single one runs in this process, more run in workers.
        use_async_envs: Without effect: episodes are the same in any process.
        hub_cache_dir: For hub envs.
        trust_remote_code: Consent to run a hub env's code.

    Returns:
        ``{group: {task_id: VectorEnv}}``.

    Raises:
        UnknownName: A type, group, task, camera or value that does not exist.
        InvalidCall: A field of the config that cannot be honoured, or no env at all.
        MissingExtra: LeRobot, or the package of a Gymnasium env, is not installed.
    """
    if n_envs < 1:
        raise InvalidCall(f"n_envs must be at least 1, found {n_envs}")
    if isinstance(cfg, str) and "/" not in cfg:
        cfg = _config(cfg)
    if isinstance(cfg, str) or getattr(cfg, "hub_path", None):
        return _hub_envs(
            cfg,
            n_envs=n_envs,
            use_async_envs=use_async_envs,
            hub_cache_dir=hub_cache_dir,
            trust_remote_code=trust_remote_code,
        )
    envs: Envs = {}
    for plan in plan_envs(cfg):
        envs.setdefault(plan.group, {})[plan.task_id] = LeRobotVectorEnv(plan, n_envs)
    return envs


def _config(env_type: str) -> Any:
    """A config of this type with LeRobot's defaults."""
    try:
        from lerobot.envs.configs import EnvConfig
    except ImportError as error:
        raise _missing(error) from error
    known = EnvConfig.get_known_choices()
    if env_type not in known:
        raise UnknownName("env type", env_type, known)
    return known[env_type]()


def _hub_envs(cfg: Any, **arguments: Any) -> Envs:
    try:
        from lerobot.envs.factory import make_env as lerobot_make_env
    except ImportError as error:
        raise _missing(error) from error
    envs: Envs = lerobot_make_env(cfg, **arguments)
    return envs


def _missing(error: ImportError) -> MissingExtra:
    return MissingExtra(f"LeRobot cannot be imported ({error}): pip install 'polyarm[lerobot]'")
