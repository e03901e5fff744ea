"""From options to what is run: tasks in groups that share a batch, episode keys, the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from polyarm import __version__, registry
from polyarm.contracts import STREAM, EnvSpec, EpisodeKey
from polyarm.errors import InvalidCall
from polyarm.policies.fingerprints import function_fingerprint
from polyarm.report.encoding import plain
from polyarm.rollout.options import EvalOptions
from polyarm.vector.make import describe_display, specify
from polyarm.vector.tasks import TaskLike, expand_tasks


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Tasks that share a vector env, because their spaces agree.

    Attributes:
        tasks: As `make_vec` takes them.
        specs: What is built for each.
    """

    tasks: tuple[TaskLike, ...]
    specs: tuple[EnvSpec, ...]

    def keys(self, options: EvalOptions) -> list[EpisodeKey]:
        """The episodes of all its tasks, task by task."""
        first, last, repeats = self.planned(options)
        return [
            EpisodeKey(spec.suite, spec.task, index, repeat)
            for spec in self.specs
            for index in range(first, last)
            for repeat in range(repeats)
        ]

    def planned(self, options: EvalOptions) -> list[int]:
        """Of each task: the first episode, the one after the last, and repeats."""
        first = options.seed * STREAM + options.start
        usual = registry.defaults(self.specs[0].suite, options.suite_settings())["episodes"]
        return [first, first + (options.episodes or usual), options.repeats]


def group_tasks(tasks: Sequence[TaskLike], options: EvalOptions) -> list[Group]:
    """Tasks by what can share a batch: a suite's, or each alone where spaces may differ.

    Raises:
        UnknownName: For a suite, task, camera or option that does not exist.
    """
    groups: dict[str, list[tuple[TaskLike, EnvSpec]]] = {}
    for task in expand_tasks(tasks):
        spec = _spec(task, options)
        alone = not registry.load(spec.suite).episodic
        groups.setdefault(spec.name if alone else spec.suite, []).append((task, spec))
    for members in groups.values():
        names = [spec.name for _, spec in members]
        if doubled := {name for name in names if names.count(name) > 1}:
            raise InvalidCall(f"tasks are named twice: {', '.join(sorted(doubled))}")
    return [
        Group(tuple(task for task, _ in members), tuple(spec for _, spec in members))
        for members in groups.values()
    ]


def protocol(groups: Sequence[Group], options: EvalOptions) -> dict[str, Any]:
    """Everything that shapes an episode, whoever runs it; runs that differ here don't mix.

    The policies' fingerprints are added when they are known.
    """
    tasks = {
        spec.name: _provenance(spec, task)
        for group in groups
        for task, spec in zip(group.tasks, group.specs, strict=True)
    }
    protocol: dict[str, Any] = plain(
        {
            "polyarm": __version__,
            "tasks": tasks,
            "seed": options.seed,
            "repeats": options.repeats,
            "chunk": options.chunk,
            "execute": options.execute,
            "ensemble": options.ensemble,
            "cameras": list(options.cameras),
            "image_size": list(groups[0].specs[0].image_size) if options.cameras else None,
            "renderer": _renderer(groups, options),
        }
    )
    return protocol


def _renderer(groups: Sequence[Group], options: EvalOptions) -> str | None:
    suites = sorted({spec.suite for group in groups for spec in group.specs})
    return describe_display(options.display, suites) if options.cameras else None


def condensed(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol for people: what all tasks of a suite have in common is said once."""
    suites: dict[str, dict[str, Any]] = {}
    for name, about in protocol.get("tasks", {}).items():
        suites.setdefault(name.partition("/")[0], {})[name] = about
    told: dict[str, Any] = {}
    for suite, tasks in suites.items():
        common = _common(list(tasks.values()))
        apart = {
            name: {key: value for key, value in about.items() if key not in common}
            for name, about in tasks.items()
        }
        told[suite] = {**common, "tasks": apart if any(apart.values()) else list(apart)}
    return {**{key: value for key, value in protocol.items() if key != "tasks"}, "suites": told}


def planned_ranges(groups: Sequence[Group], options: EvalOptions) -> dict[str, list[int]]:
    """By task: the first episode, the one after the last, and repeats."""
    return {spec.name: group.planned(options) for group in groups for spec in group.specs}


def _provenance(spec: EnvSpec, task: TaskLike) -> dict[str, Any]:
    description = registry.load(spec.suite).describe(spec)
    if description is not None:
        about = dict(description.provenance)
    else:
        carried = ("factory", "_registration")
        settings = {key: value for key, value in spec.options.items() if key not in carried}
        about = {"gymnasium": gymnasium.__version__, **settings}
    if callable(task):
        about["env"] = function_fingerprint(task)["source"]
    return {key: value for key, value in about.items() if key not in ("task", "instruction")}


def _common(described: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = described
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def _spec(task: TaskLike, options: EvalOptions) -> EnvSpec:
    return specify(task, options.cameras, options.image_size, options.suite_settings())
