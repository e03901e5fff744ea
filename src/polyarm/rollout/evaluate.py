"""`evaluate`: an evaluation in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyarm.errors import InvalidCall
from polyarm.report.html import write_report
from polyarm.report.results import Results
from polyarm.rollout.acting import PolicyLike
from polyarm.rollout.evaluator import Evaluator
from polyarm.rollout.options import EvalOptions
from polyarm.vector.tasks import TaskLike

_KEPT: dict[tuple[tuple[TaskLike, ...], EvalOptions], Evaluator] = {}
"""Envs kept alive for the next call of `evaluate`; one set at a time."""


def evaluate(
    policy: PolicyLike,
    tasks: TaskLike | Sequence[TaskLike],
    *,
    episodes: int | None = None,
    num_envs: int | None = None,
    out: str | Path | None = None,
    keep_envs: bool = False,
    **options: Any,
) -> Results:
    """Evaluate a policy.

    In a training loop, ``keep_envs=True`` leaves the envs running for the next call with the same
    arguments; an `Evaluator` does the same with results on disk, one label per checkpoint.

    Args:
        policy: A `Policy`, an ``nn.Module``, a function of a `Batch`, or a name as on the command
            line.
        tasks: Tasks or sets of tasks (``"metaworld/mt10"``), callables that build envs, or a list.
        episodes: Episodes per task; by default the protocol's, or 10.
        num_envs: Envs that run at once; by default two per core, at least four.
        out: Folder for journal, results, report and videos; None keeps results in memory. The same
            call again goes on where an interrupted one was.
        keep_envs: Whether envs stay alive for the next call; only without ``out``.
        **options: Further fields of `EvalOptions`; ``suite_options`` may be a mapping.

    Returns:
        All results, with intervals; ``results.success_rate`` is the headline.

    Raises:
        PolicyError: The policy raised, hung or returned what no env can use.
        RunConflict: The folder holds another run.
    """
    listed = [tasks] if isinstance(tasks, str) or callable(tasks) else list(tasks)
    if isinstance(settings := options.get("suite_options"), Mapping):
        options["suite_options"] = tuple(f"{name}={value}" for name, value in settings.items())
    # Said in the results, like everything else that was asked for.
    options |= {"policy": _name(policy), "task": ",".join(_name(task) for task in listed)}
    given = EvalOptions(episodes=episodes, num_envs=num_envs, **options)
    folder = None if out is None else Path(out)
    if keep_envs and folder is not None:
        raise InvalidCall("keep_envs=True keeps results in memory; use an Evaluator with a folder")
    for name in ("num_envs_total", "ddp_bind_gpu", "policy_gpus", "render_gpus"):
        if getattr(given, name):
            raise InvalidCall(f"{name} is for the command line, where ranks share a run")
    if given.dry_run or (given.report_to is not None and folder is None):
        raise InvalidCall("dry_run is for the command line, and report_to needs out")
    evaluator = _KEPT.pop((tuple(listed), given), None) or Evaluator(listed, given, folder)
    close_kept_envs()
    try:
        results = evaluator.run({"": policy})
        if keep_envs:
            _KEPT[tuple(listed), given] = evaluator
    finally:
        if not keep_envs:
            evaluator.close()
    if folder is not None:
        results.write(folder)
        write_report(results, folder)
        if given.report_to is not None:
            from polyarm.report.sinks import report_to

            report_to(given.report_to, results, run_name=folder.name, folder=folder)
    return results


def _name(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def close_kept_envs() -> None:
    """Close envs that `evaluate` has kept alive."""
    while _KEPT:
        _KEPT.popitem()[1].close()
