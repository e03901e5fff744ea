"""The configuration that chooses a runner: a mapping, OmegaConf's, or a YAML file.

Only the keys in `KEYS` are ours. All others belong to the trainer and are ignored, unless one looks
like a misspelt one of ours.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyarm.compat.ript.pi0 import PI0LiberoRunner
from polyarm.errors import InvalidCall, MissingExtra, StorageError, UnknownName

log = logging.getLogger("polyarm.compat.ript")

KEYS: dict[str, tuple[str, ...]] = {
    "features": ("use_ript_vla_runner", "enable_parallel_envs", "enable_true_parallel_envs"),
    "task": ("benchmark_name", "num_parallel_envs", "max_episode_length", "task_names_to_use"),
    "algo": ("rollouts_per_env", "num_parallel_envs", "max_episode_length"),
    "test": ("debug_mode", "verbose_logging"),
}
"""Our keys by section."""
_PATHS = ("norm_stats_path", "policy_path")
"""Our keys outside of sections."""
_BORROWED = "rloo_batch_size"
"""The trainer's own, read where there is no ``rollouts_per_env``; it resembles others of its."""
_NEAR = 0.84
"""From this likeness on, an unknown key is a misspelt one."""


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What a configuration says about the runner.

    Attributes:
        use_ript_vla_runner: Whether polyarm's runner is to be used at all.
        benchmark_name: One of LIBERO's suites.
        rollouts_per_env: Episodes of each task.
        num_parallel_envs: Episodes that run at once.
        max_episode_length: Policy steps of an episode, or None for the protocol's.
        task_names_to_use: Tasks, or none for all.
        norm_stats: Where openpi's statistics are, if the configuration says.
        debug_mode: Tell about every step of the way.
        verbose_logging: Tell about every episode.
        parallel: The older switches for parallel envs that are set, by name.
    """

    use_ript_vla_runner: bool
    benchmark_name: str = ""
    rollouts_per_env: int = 0
    num_parallel_envs: int = 0
    max_episode_length: int | None = None
    task_names_to_use: tuple[str, ...] = ()
    norm_stats: str | None = None
    debug_mode: bool = False
    verbose_logging: bool = False
    parallel: Mapping[str, bool] = field(default_factory=dict)


def example_config() -> Path:
    """The configuration that ships with polyarm: small, for a first check."""
    return Path(__file__).with_name("ript_vla_test.yaml")


def create_env_runner(
    config: Any, policy: Any, rank: int = 0, world_size: int = 1, fallback: Any = None
) -> Any:
    """The runner that a configuration asks for.

    Args:
        config: A mapping, an OmegaConf configuration, an object with attributes, or the path of a
            YAML file.
        policy: What acts; see `PI0LiberoRunner`.
        rank: Of this process.
        world_size: How many processes there are.
        fallback: What to use where ``features.use_ript_vla_runner`` is false: a runner, which is
            returned, or a function, which is called as
            ``fallback(config, policy, rank=rank, world_size=world_size)``.

    Raises:
        UnknownName: A key, benchmark or task does not exist; with the closest.
        InvalidCall: A value is missing or wrong, or there is no fallback where one is needed.
    """
    asked = read_config(config)
    if not asked.use_ript_vla_runner:
        if fallback is None:
            raise InvalidCall(
                "features.use_ript_vla_runner is false, and there is no fallback: set it to true,"
                " or give create_env_runner(fallback=...) the runner to use instead"
            )
        if callable(fallback):
            return fallback(config, policy, rank=rank, world_size=world_size)
        return fallback
    return make_runner(asked, policy, rank, world_size)


def make_runner(
    asked: RunnerConfig, policy: Any, rank: int = 0, world_size: int = 1
) -> PI0LiberoRunner:
    """The runner of a configuration that was read."""
    _set_up_logging(asked)
    for name, value in asked.parallel.items():
        log.info("features.%s=%s: envs run in worker processes either way", name, value)
    return PI0LiberoRunner(
        policy,
        asked.benchmark_name,
        asked.rollouts_per_env,
        asked.num_parallel_envs,
        asked.max_episode_length,
        asked.task_names_to_use,
        rank,
        world_size=world_size,
        norm_stats=asked.norm_stats,
    )


def read_config(config: Any) -> RunnerConfig:
    """What a configuration says about the runner, checked.

    Raises:
        UnknownName: A key is a misspelt one of ours.
        InvalidCall: A value is missing or wrong.
        StorageError: The file cannot be read.
    """
    whole = _whole(config)
    _check_names(whole, "", (*KEYS, *_PATHS))
    sections = {name: _section(whole, name) for name in KEYS}
    for name, keys in KEYS.items():
        _check_names(sections[name], f"{name}.", keys)
    features, task = sections["features"], sections["task"]
    algo, test = sections["algo"], sections["test"]
    parallel = {
        name: _flag(features, "features", name)
        for name in ("enable_parallel_envs", "enable_true_parallel_envs")
        if features.get(name) is not None
    }
    if not _flag(features, "features", "use_ript_vla_runner"):
        return RunnerConfig(use_ript_vla_runner=False, parallel=parallel)
    both = (("task", task), ("algo", algo))
    return RunnerConfig(
        use_ript_vla_runner=True,
        benchmark_name=_text(task, "task", "benchmark_name"),
        rollouts_per_env=_count((("algo", algo),), ("rollouts_per_env", _BORROWED), required=True),
        num_parallel_envs=_count(both, ("num_parallel_envs",), required=True),
        max_episode_length=_count(both, ("max_episode_length",), required=False) or None,
        task_names_to_use=_names(task.get("task_names_to_use")),
        norm_stats=next((str(whole[name]) for name in _PATHS if whole.get(name)), None),
        debug_mode=_flag(test, "test", "debug_mode"),
        verbose_logging=_flag(test, "test", "verbose_logging"),
        parallel=parallel,
    )


def _whole(config: Any) -> Mapping[str, Any]:
    if not isinstance(config, str | Path):
        return _mapping(config, "the configuration")
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra(f"{config} needs PyYAML: pip install 'polyarm[report]'") from error
    try:
        return _mapping(yaml.safe_load(Path(config).read_text()), str(config))
    except OSError as error:
        raise StorageError(f"{config} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidCall(f"{config} is no YAML file: {error}") from error


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    # OmegaConf's configurations are mappings, and resolve only the values that are looked at.
    if isinstance(value, Mapping):
        return value
    if value is None or isinstance(value, str | int | float | Sequence):
        raise InvalidCall(
            f"{what} holds {value!r}, expected sections such as features, task and algo"
        )
    # Not vars(): what a class says for all of its objects, and slots, count as well.
    return {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}


def _section(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = whole.get(name)
    return {} if value is None else _mapping(value, name)


def _check_names(given: Mapping[str, Any], where: str, ours: Sequence[str]) -> None:
    """Refuse misspelt keys.

    Raises:
        UnknownName: With the right name.
    """
    for name in map(str, given):
        if name not in ours and difflib.get_close_matches(name, ours, n=1, cutoff=_NEAR):
            hint = "Keys of the trainer's own are ignored, but this one looks like one of these."
            valid = [f"{where}{known}" for known in ours]
            raise UnknownName("configuration key", f"{where}{name}", valid, hint)


def _flag(section: Mapping[str, Any], where: str, name: str) -> bool:
    value = section.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidCall(f"{where}.{name} is true or false, found {value!r}")
    return bool(value)


def _text(section: Mapping[str, Any], where: str, name: str) -> str:
    value = section.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidCall(f"{where}.{name} must be a name, found {value!r}")
    return value


def _count(
    sections: Sequence[tuple[str, Mapping[str, Any]]], names: Sequence[str], *, required: bool
) -> int:
    """The first of these values that is given; 0 for none that is not required."""
    places = [
        (f"{where}.{name}", section.get(name)) for where, section in sections for name in names
    ]
    for place, value in places:
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidCall(f"{place} must be a whole number from 1 on, found {value!r}")
        return value
    if required:
        raise InvalidCall(f"the configuration has no {' or '.join(place for place, _ in places)}")
    return 0


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidCall(f"task.task_names_to_use is a list of task names, found {value!r}")
    return tuple(map(str, value))


def _set_up_logging(asked: RunnerConfig) -> None:
    """Let the runner's messages through, to stderr unless the program has its own ideas."""
    if not (asked.debug_mode or asked.verbose_logging):
        return
    log.setLevel(logging.DEBUG if asked.debug_mode else logging.INFO)
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
