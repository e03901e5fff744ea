"""What `eval_policy_all` returns: LeRobot's dictionary, from the outcomes of single episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Metrics = dict[str, list[Any]]
"""Of one task: ``sum_rewards``, ``max_rewards``, ``successes`` and paths of videos."""

_AVERAGED = {
    "avg_sum_reward": ("sum_rewards", 1.0),
    "avg_max_reward": ("max_rewards", 1.0),
    "pc_success": ("successes", 100.0),
}


def summarise(
    tasks: Sequence[tuple[str, int, Metrics]], names: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Per task, per group and over all of them.

    Args:
        tasks: Group, task id and metrics of each.
        names: LeRobot's names of the metrics; those that end in ``_paths`` are lists of files.
        seconds: How long it took.
    """
    groups: dict[str, list[Metrics]] = {}
    for group, _, metrics in tasks:
        groups.setdefault(group, []).append(metrics)
    overall = _aggregate([metrics for _, _, metrics in tasks], names)
    per_episode = seconds / max(1, overall["n_episodes"])
    return {
        "per_task": [
            {"task_group": group, "task_id": task_id, "metrics": metrics}
            for group, task_id, metrics in tasks
        ],
        "per_group": {group: _aggregate(members, names) for group, members in groups.items()},
        "overall": {**overall, "eval_s": seconds, "eval_ep_s": per_episode},
    }


def _aggregate(members: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    every = {name: [value for one in members for value in one.get(name, ())] for name in names}
    means = {name: _mean(every[source]) * scale for name, (source, scale) in _AVERAGED.items()}
    paths = {name: values for name, values in every.items() if name.endswith("_paths")}
    return {**means, "n_episodes": len(every["sum_rewards"]), **paths}


def _mean(values: Sequence[float]) -> float:
    return float(np.nanmean(np.array(values, dtype=float))) if values else float("nan")
