"""LeRobot's checkpoints as policies, by a folder or by their name on the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from polyarm.errors import MissingExtra, PolicyError
from polyarm.policies.lerobot_policy import LeRobotPolicy
from polyarm.policies.lerobot_processors import require_lerobot

__all__ = ["LeRobotPolicy", "companions", "lerobot_policy", "split_name"]

_CONFIG = "config.json"
_ADAPTER = "adapter_config.json"


def split_name(name: str) -> tuple[str, str]:
    """A checkpoint and its rename map's file, or "", from ``<path or repo id>[@<file>.json]``."""
    checkpoint, at, file = name.rpartition("@")
    return (checkpoint, file) if at and file.endswith(".json") else (name, "")


def companions(name: str) -> list[Path]:
    """Files and folders besides the checkpoint's that the policy is made of.

    They are its rename map, and the folder of the policy that its adapters were made for.
    """
    checkpoint, file = split_name(name)
    found = [Path(file)] if file else []
    try:
        base = json.loads((Path(checkpoint) / _ADAPTER).read_text())["base_model_name_or_path"]
    except (OSError, ValueError, LookupError, TypeError):  # no adapters; loading says what is wrong
        return found
    return [*found, Path(base)] if isinstance(base, str) and Path(base).is_dir() else found


def lerobot_policy(name: str, rename_map: Mapping[str, str] | None = None) -> LeRobotPolicy:
    """The policy in a folder that LeRobot saved, or in a repository on the Hub.

    Its processors, with their statistics, come from the same place; adapters of PEFT are put onto
    the policy that they name as their base.

    Args:
        name: ``<path or repo id>[@<rename map>.json]``.
        rename_map: The policy's names of observations by the env's, instead of a file. Without
            any, the one that was saved with the policy holds.

    Raises:
        MissingExtra: LeRobot, or what this kind of policy needs besides, is not installed.
        PolicyError: There is no such checkpoint, it is none of LeRobot's, or it cannot be loaded.
    """
    require_lerobot()
    checkpoint, file = split_name(name)
    renamed = dict(rename_map or {}) or (_read_rename_map(Path(file)) if file else {})
    _check_folder(checkpoint)
    try:
        config = _config(checkpoint)
        policy = _policy(config, checkpoint)
        before, after = _processors(config, checkpoint, renamed)
    except ImportError as error:
        raise MissingExtra(
            f"the policy {checkpoint!r} needs more of LeRobot than is installed: {error}"
        ) from error
    except Exception as error:  # of LeRobot, of its configuration's parser, of the Hub …
        raise PolicyError(
            f"LeRobot could not load the policy {checkpoint!r}: {type(error).__name__}: {error}"
            f"{_suspicion(checkpoint, error)}"
        ) from error
    return LeRobotPolicy(policy, preprocessor=before, postprocessor=after)


def _suspicion(checkpoint: str, error: Exception) -> str:
    """What may be behind an error that does not say it itself."""
    if not Path(checkpoint).exists():
        return f" (there is no such folder in {Path.cwd()}, so it was looked for on the Hub)"
    if not isinstance(error, OSError | ValueError) and find_spec("transformers") is None:
        return " (the transformers library, which many of LeRobot's models need, is not installed)"
    return ""


def _check_folder(checkpoint: str) -> None:
    """Say what is wrong with a folder before LeRobot takes its name for one of the Hub's."""
    folder = Path(checkpoint)
    if folder.is_dir():
        if (folder / _CONFIG).is_file():
            return
        inner = folder / "pretrained_model"
        hint = f"; did you mean lerobot:{inner}?" if (inner / _CONFIG).is_file() else ""
        raise PolicyError(f"{folder} is no checkpoint of LeRobot's: there is no {_CONFIG}{hint}")
    if folder.exists() or checkpoint.count("/") != 1 or checkpoint.startswith((".", "/", "~")):
        raise PolicyError(
            f"there is no folder {checkpoint!r} in {Path.cwd()}, and it is no repository either,"
            f" such as lerobot/act_aloha_sim_transfer_cube_human"
        )


def _config(checkpoint: str) -> Any:
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.utils.import_utils import register_third_party_plugins

    register_third_party_plugins()
    config = PreTrainedConfig.from_pretrained(checkpoint)
    config.pretrained_path = checkpoint
    return config


def _policy(config: Any, checkpoint: str) -> Any:
    from lerobot.policies.factory import get_policy_class

    kind = get_policy_class(config.type)
    if not config.use_peft:
        return kind.from_pretrained(checkpoint, config=config)
    from peft import PeftConfig, PeftModel

    adapter = PeftConfig.from_pretrained(checkpoint)
    if not adapter.base_model_name_or_path:
        raise ValueError(f"{_ADAPTER} does not say which policy it was made for")
    base = kind.from_pretrained(adapter.base_model_name_or_path, config=config)
    return PeftModel.from_pretrained(base, checkpoint, config=adapter).to(config.device)


def _processors(config: Any, checkpoint: str, rename_map: Mapping[str, str]) -> tuple[Any, Any]:
    from lerobot.policies.factory import make_pre_post_processors

    overrides: dict[str, Any] = {"device_processor": {"device": str(config.device)}}
    if rename_map:
        overrides["rename_observations_processor"] = {"rename_map": dict(rename_map)}
    before, after = make_pre_post_processors(
        config, pretrained_path=checkpoint, preprocessor_overrides=overrides
    )
    return before, after


def _read_rename_map(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PolicyError(f"the rename map {file} cannot be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise PolicyError(f'the rename map {file} holds no {{"old key": "new key", …}}')
    return found
