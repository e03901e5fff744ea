"""LeRobot's processors: those of an env, and what tells one pipeline from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from polyarm.errors import MissingExtra
from polyarm.policies.fingerprints import function_fingerprint
from polyarm.policies.torch import weights_digest


def require_lerobot() -> None:
    """Import LeRobot.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import lerobot.envs.factory
        import lerobot.policies.factory  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"LeRobot's policies need LeRobot ({error}): pip install 'polyarm[lerobot]'"
        ) from error


def env_processors(suite: str, config: Any) -> tuple[Any, Any]:
    """What LeRobot does to a suite's observations and actions, for a policy's configuration."""
    from lerobot.envs import configs
    from lerobot.envs.factory import make_env_pre_post_processors

    # Of our suites LeRobot treats LIBERO alone in a way of its own.
    env = configs.LiberoEnv() if suite == "libero" else configs.MetaworldEnv()
    before, after = make_env_pre_post_processors(env, config)
    return before, after


def rename_map(preprocessor: Any) -> Mapping[str, str]:
    """New names of observations by their old ones, as a pipeline gives them."""
    steps = getattr(preprocessor, "steps", ())
    maps = [step.rename_map for step in steps if hasattr(step, "rename_map")]
    return {old: new for each in maps for old, new in each.items()}


def pipeline_digest(pipeline: Any) -> str:
    """A pipeline by the kinds, settings and statistics of its steps; not by its device."""
    if pipeline is None:
        return ""
    if not hasattr(pipeline, "steps"):
        return str(function_fingerprint(pipeline)["source"])
    digest = hashlib.sha256()
    for step in pipeline.steps:
        settings = {name: value for name, value in step.get_config().items() if name != "device"}
        told = json.dumps(settings, sort_keys=True, default=str)
        told += weights_digest(step.state_dict())
        digest.update(f"{type(step).__qualname__} {told}\n".encode())
    return digest.hexdigest()[:32]
