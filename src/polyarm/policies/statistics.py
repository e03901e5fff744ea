"""Normalisation statistics from the files that openpi, OpenVLA and LeRobot leave behind.

Files are read where they lie; nothing is downloaded. Sources, besides those of `transforms`:
openpi's src/openpi/shared/normalize.py and training/config.py, openvla-oft's
experiments/robot/libero/run_libero_eval.py and prismatic/vla/constants.py, lerobot's
src/lerobot/datasets/io_utils.py and configs/types.py, at the commits named there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm.errors import PolicyError, UnknownName
from polyarm.policies.transforms import (
    Chain,
    LerobotMeanStd,
    LerobotRange,
    LiberoGripper,
    OpenpiQuantiles,
    OpenpiZScore,
    OpenvlaBounds,
    Transform,
)

_LOG = logging.getLogger(__name__)

_OPENPI_MODELS = ("pi0", "pi05", "pi0_fast")
_OPENVLA_VARIANTS = ("oft", "openvla")
_OPENVLA_BOUNDS = {"bounds_q99": ("q01", "q99"), "bounds": ("min", "max")}
_LEROBOT_MODES = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
    "IDENTITY": (),
}
_SHOWN = 8


@dataclass(frozen=True)
class Normalization:
    """What a checkpoint's statistics say.

    Attributes:
        state: For states, or None if the model takes them as they are, or none at all.
        actions: For actions, or None if the model returns them as they are.
    """

    state: Transform | None
    actions: Transform | None


def load_openpi(
    checkpoint: str | Path, asset_id: str | None = None, *, model: str
) -> Normalization:
    """What openpi's ``norm_stats.json`` says: z-scores for pi0, quantiles for other models.

    Args:
        checkpoint: The file itself, or a folder: its root is looked at first, then
            ``assets/<asset_id>``.
        asset_id: Such as ``"physical-intelligence/libero"``.
        model: ``"pi0"``, ``"pi05"`` or ``"pi0_fast"``.

    Raises:
        UnknownName: There is no such model, asset or statistic; with the closest.
        PolicyError: There is no such file, or it holds no usable statistics.
    """
    _check_name("openpi model", model, _OPENPI_MODELS)
    file = _openpi_file(Path(checkpoint), asset_id)
    groups = _entry(_read(file), "norm_stats", "key", file)

    def transform(name: str) -> Transform:
        group = _entry(groups, name, "statistics", file)
        if model == "pi0":
            return OpenpiZScore(*_numbers(group, ("mean", "std"), name, file))
        return OpenpiQuantiles(*_numbers(group, ("q01", "q99"), name, file))

    return Normalization(transform("state"), transform("actions"))


def load_openvla(
    checkpoint: str | Path,
    unnorm_key: str | None = None,
    *,
    variant: str = "oft",
    bounds: str = "bounds_q99",
    libero_gripper: bool | None = None,
) -> Normalization:
    """What OpenVLA's ``dataset_statistics.json`` says, or ``norm_stats`` in its ``config.json``.

    Args:
        checkpoint: The folder, or one of these files.
        unnorm_key: The dataset, such as ``"libero_spatial"``; ``"libero_spatial_no_noops"`` is
            taken if only that is there. None if there is only one.
        variant: ``"oft"`` for OpenVLA-OFT; ``"openvla"`` for OpenVLA, which sees no state and
            whose actions are computed without epsilon.
        bounds: ``"bounds_q99"`` as for LIBERO and Bridge, or ``"bounds"`` (minimum and maximum) as
            OpenVLA-OFT has it for ALOHA.
        libero_gripper: Whether the last action is made fit for LIBERO (`LiberoGripper`); by
            default for datasets whose name begins with ``libero``.

    Raises:
        UnknownName: There is no such variant, key or statistic; with the closest.
        PolicyError: There is no such file, or it holds no usable statistics.
    """
    _check_name("OpenVLA variant", variant, _OPENVLA_VARIANTS)
    _check_name("bounds", bounds, _OPENVLA_BOUNDS)
    file, datasets = _openvla_datasets(Path(checkpoint))
    key = _openvla_key(unnorm_key, datasets, file)
    groups = _entry(datasets, key, "unnorm_key", file)

    def transform(name: str) -> Transform:
        group = _entry(groups, name, f"statistics of {key}", file)
        low, high = _numbers(group, _OPENVLA_BOUNDS[bounds], name, file)
        return OpenvlaBounds(low, high, group.get("mask"), oft=variant == "oft")

    actions = transform("action")
    if libero_gripper or (libero_gripper is None and key.startswith("libero")):
        actions = Chain((LiberoGripper(), actions))
    return Normalization(transform("proprio") if variant == "oft" else None, actions)


def load_lerobot(
    dataset: str | Path,
    *,
    state: str = "MEAN_STD",
    actions: str = "MEAN_STD",
    state_key: str = "observation.state",
    action_key: str = "action",
) -> Normalization:
    """What the ``meta/stats.json`` of a LeRobotDataset says.

    Which mode a policy was trained with is in its config, as ``normalization_mapping``.

    Args:
        dataset: The dataset's folder, or the file.
        state: The mode for states: ``"MEAN_STD"``, ``"MIN_MAX"``, ``"QUANTILES"``,
            ``"QUANTILE10"`` or ``"IDENTITY"``.
        actions: The mode for actions, likewise.
        state_key: The feature that is the state.
        action_key: The feature that is the action.

    Raises:
        UnknownName: There is no such mode, feature or statistic; with the closest.
        PolicyError: There is no such file, or it holds no usable statistics.
    """
    for mode in (state, actions):
        _check_name("normalisation mode", mode, _LEROBOT_MODES)
    file = _existing(
        [Path(dataset)] if Path(dataset).is_file() else [Path(dataset, "meta/stats.json")]
    )
    features = _read(file)

    def transform(key: str, mode: str) -> Transform | None:
        if mode == "IDENTITY":
            return None
        group = _entry(features, key, "feature", file)
        low, high = _numbers(group, _LEROBOT_MODES[mode], key, file)
        return LerobotMeanStd(low, high) if mode == "MEAN_STD" else LerobotRange(low, high, mode)

    return Normalization(transform(state_key, state), transform(action_key, actions))


def _openpi_file(checkpoint: Path, asset_id: str | None) -> Path:
    if checkpoint.is_file():
        return checkpoint
    name, assets = "norm_stats.json", checkpoint / "assets"
    candidates = [checkpoint / name, *([assets / asset_id / name] if asset_id else [])]
    found = [str(file.parent.relative_to(assets)) for file in assets.rglob(name)]
    if found and not any(file.is_file() for file in candidates):
        looked = f"Looked for {' and then '.join(map(str, candidates))}."
        if asset_id is None:
            looked += " Name one of these assets."
        raise UnknownName("asset_id", str(asset_id), found, looked)
    return _existing(candidates)


def _openvla_datasets(checkpoint: Path) -> tuple[Path, Mapping[str, Any]]:
    names = ("dataset_statistics.json", "config.json")
    candidates = [checkpoint] if checkpoint.is_file() else [checkpoint / name for name in names]
    file = _existing(candidates)
    content = _read(file)
    if file.name == "config.json" or "norm_stats" in content:
        content = _entry(content, "norm_stats", "key", file)
    return file, content


def _openvla_key(asked: str | None, datasets: Mapping[str, Any], file: Path) -> str:
    if asked is None:
        if len(datasets) != 1:
            raise PolicyError(
                f"{file} holds statistics of {len(datasets)} datasets; choose one with unnorm_key:"
                f" {_listed(datasets)}"
            )
        return next(iter(datasets))
    fallback = f"{asked}_no_noops"
    if asked not in datasets and fallback in datasets:
        _LOG.info("%s has no statistics of %s; taking those of %s", file, asked, fallback)
        return fallback
    if asked not in datasets:
        hint = f"Looked for {asked} and then {fallback} in {file}."
        raise UnknownName("unnorm_key", asked, datasets, hint)
    return asked


def _existing(candidates: Sequence[Path]) -> Path:
    """The first of these files that there is."""
    for file in candidates:
        if file.is_file():
            return file
    folder = candidates[0].parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    raise PolicyError(
        f"there are no normalisation statistics: looked for"
        f" {' and then '.join(map(str, candidates))}; {folder} holds"
        f" {_listed(file.name for file in folder.iterdir())}"
    )


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise PolicyError(f"{file} cannot be read as JSON: {error}") from error
    return _mapping(content, "the content", file)


def _entry(parent: Mapping[str, Any], key: str, kind: str, file: Path) -> Mapping[str, Any]:
    if parent.get(key) is None:
        there = [name for name in parent if parent[name] is not None]
        raise UnknownName(kind, key, there, f"Looked in {file}.")
    return _mapping(parent[key], key, file)


def _numbers(group: Mapping[str, Any], names: Sequence[str], of: str, file: Path) -> list[Any]:
    """The named statistics of one feature."""
    there = [name for name in group if group[name] is not None]
    for name in names:
        if name not in there:
            raise UnknownName(f"statistic of {of!r}", name, there, f"Looked in {file}.")
    return [group[name] for name in names]


def _mapping(value: Any, what: str, file: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PolicyError(f"{what} of {file} is {type(value).__name__}, expected an object by name")
    return value


def _check_name(kind: str, name: str, valid: Any) -> None:
    if name not in valid:
        raise UnknownName(kind, name, valid)


def _listed(names: Any) -> str:
    ordered = sorted(names)
    more = f", … ({len(ordered)} in all)" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more if ordered else "nothing"
