"""Results on the dashboards people already have: Weights & Biases, Trackio, TensorBoard."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm.errors import MissingExtra, UnknownName
from polyarm.report.encoding import plain
from polyarm.report.results import Results, TaskSummary, policy_step
from polyarm.report.stats import Rate

PROJECT = "polyarm"

_Values = dict[str, float]


def report_to(sink: str, results: Results, *, run_name: str, folder: Path) -> None:
    """Log success rates with their intervals, returns and steps, overall and per task.

    Several policies are several points, at the training steps in their names.

    Args:
        sink: ``wandb``, ``trackio`` or ``tensorboard``.
        results: What is logged.
        run_name: What the run is called there.
        folder: The run's folder; wandb and TensorBoard keep their files in it.

    Raises:
        UnknownName: If there is no such sink.
        MissingExtra: If its package is not installed.
    """
    log = open_log(sink, run_name=run_name, folder=folder, config=_config(results))
    try:
        for step, values in _points(results):
            log.log(values, step)
    finally:
        log.close()


@dataclass(frozen=True, slots=True)
class ScalarLog:
    """A run on a dashboard.

    Attributes:
        log: Takes numbers by name, and the step they belong to; steps rise.
        close: To be called in the end.
    """

    log: Callable[[Mapping[str, float], int], None]
    close: Callable[[], None]


def open_log(sink: str, *, run_name: str, folder: Path, config: Mapping[str, Any]) -> ScalarLog:
    """Begin a run on a dashboard.

    Args:
        sink: ``wandb``, ``trackio`` or ``tensorboard``.
        run_name: What the run is called there.
        folder: The run's folder; wandb and TensorBoard keep their files in it.
        config: What is said about the run.

    Raises:
        UnknownName: If there is no such sink.
        MissingExtra: If its package is not installed.
    """
    require_sink(sink)
    return _SINKS[sink](run_name, Path(folder), dict(config))


def require_sink(sink: str) -> None:
    """Check that there is such a sink and that its package is installed.

    Raises:
        UnknownName: If there is no such sink.
        MissingExtra: If its package is not installed.
    """
    if sink not in _SINKS:
        raise UnknownName("sink", sink, _SINKS)
    _import(sink, sink)


def metrics(results: Results) -> _Values:
    """All numbers worth a curve, by name; what is not known is left out."""
    values = {"overall/errors": float(results.errors), "overall/missing": float(results.missing)}
    values |= _rate("overall/success_rate", results.micro)
    values |= _rate("overall/macro_success_rate", results.macro)
    values["overall/episodes"] = float(results.micro.episodes)
    for task in results.tasks:
        values |= _task(f"task/{task.name}", task)
    return values


def _points(results: Results) -> list[tuple[int, _Values]]:
    """One point per policy; steps rise, as wandb demands, even where names do not tell them."""
    points: list[tuple[int, _Values]] = []
    for name, part in results.by_policy().items():
        least = points[-1][0] + 1 if points else 0
        points.append((max(least, policy_step(name) or 0), metrics(part)))
    return points


def _config(results: Results) -> dict[str, Any]:
    return {"options": plain(results.options), "provenance": plain(results.provenance)}


def _to_wandb(run_name: str, folder: Path, config: dict[str, Any]) -> ScalarLog:
    wandb = _import("wandb", "wandb")
    run = wandb.init(project=PROJECT, name=run_name, dir=str(folder), config=config)
    return ScalarLog(lambda values, step: run.log(dict(values), step=step), run.finish)


def _to_trackio(run_name: str, folder: Path, config: dict[str, Any]) -> ScalarLog:
    del folder  # Trackio keeps its files in a place of its own.
    trackio = _import("trackio", "trackio")
    trackio.init(project=PROJECT, name=run_name, config=config)
    return ScalarLog(lambda values, step: trackio.log(dict(values), step=step), trackio.finish)


def _to_tensorboard(run_name: str, folder: Path, config: dict[str, Any]) -> ScalarLog:
    del config  # TensorBoard has no place for it but the hyper-parameters' own tab.
    # The package's own writer needs neither TensorFlow nor torch.
    summary = _import("tensorboard.summary", "tensorboard")
    writer = summary.Writer(str(folder / "tensorboard" / run_name))

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return ScalarLog(log, writer.close)


_SINKS: Mapping[str, Callable[[str, Path, dict[str, Any]], ScalarLog]] = {
    "wandb": _to_wandb,
    "trackio": _to_trackio,
    "tensorboard": _to_tensorboard,
}


def _rate(name: str, rate: Rate) -> _Values:
    if rate.rate is None or rate.low is None or rate.high is None:
        return {}
    return {name: rate.rate, f"{name}_low": rate.low, f"{name}_high": rate.high}


def _task(name: str, task: TaskSummary) -> _Values:
    means = {
        "mean_return": task.mean_return,
        "mean_steps": task.mean_steps,
        "mean_seconds": task.mean_seconds,
    }
    known = {f"{name}/{key}": value for key, value in means.items() if value is not None}
    return {
        **_rate(f"{name}/success_rate", task.rate), **known, f"{name}/errors": float(task.errors)
    }  # fmt: skip


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"reporting to {package} needs a package that is not installed: pip install {package}"
        ) from error
