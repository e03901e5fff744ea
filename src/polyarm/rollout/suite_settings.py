"""What a command tells its suites, checked, and what they say about the envs that come of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol

from polyarm import registry
from polyarm.contracts import EnvSpec, PoseActions
from polyarm.errors import InvalidCall, UnknownName
from polyarm.rollout.options import read_settings
from polyarm.vector.make import make_vec, specify
from polyarm.vector.tasks import TaskLike, expand_tasks

FAST = {"arm_mode": "ik", "idle_fps": 0}
"""Options of suites that the preset ``fast`` stands for, where a suite has them."""


class SuiteOptions(Protocol):
    """Options of a command that passes some of them on to its suites."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def tasks(self) -> list[str]:
        """Names of tasks and sets."""

    @property
    def suite_options(self) -> tuple[str, ...]:
        """Each as NAME=VALUE."""


def suite_settings(options: SuiteOptions) -> dict[str, Any]:
    """What the suites are told: ``suite_options``, and the command's options that are `OF_SUITE`.

    Raises:
        UnknownName: A suite has no such option.
        InvalidCall: One of them is no suite's, or not given as NAME=VALUE.
    """
    settings = read_settings(options.suite_options)
    refuse_own_options(settings)
    names = [field.name for field in fields(options) if field.metadata.get("of_suite")]
    given = {name: getattr(options, name) for name in names}
    named = {name: value for name, value in given.items() if value is not None}
    # Not every suite refuses what it does not know: Gymnasium's passes it on to the env.
    for spec in specs(options.tasks) if named else ():
        for name in named:
            if name not in spec.options:
                valid = [option for option in spec.options if not option.startswith("_")]
                raise UnknownName(f"option of {spec.suite}", name, valid)
    return {**settings, **named}


def refuse_own_options(settings: Mapping[str, Any]) -> None:
    """Refuse options of suites that are polyarm's own.

    Raises:
        InvalidCall: The command, or `make_vec`, has such an option itself.
    """
    for name in settings:
        if name in inspect.signature(make_vec).parameters:
            raise InvalidCall(f"{name!r} is an option of the command, not of a suite")


def specs(tasks: Sequence[TaskLike], settings: Mapping[str, Any] | None = None) -> list[EnvSpec]:
    """What is built for each task, without cameras.

    Raises:
        UnknownName: For a suite, task or option that does not exist.
    """
    return [specify(task, (), None, dict(settings or {})) for task in expand_tasks(tasks)]


def check_fast(built: Sequence[EnvSpec]) -> None:
    """Refuse what contradicts the preset ``fast``.

    Raises:
        InvalidCall: An option of a suite is not as in `FAST`.
    """
    for spec in built:
        for name, value in FAST.items():
            if (found := spec.options.get(name, value)) != value:
                raise InvalidCall(
                    f"--fast means {name}={value}, found {found!r}; leave out one of them"
                )


def pose_actions(built: Sequence[EnvSpec]) -> PoseActions | None:
    """How the actions of all these envs are poses; None where they are not, or differ."""
    kinds = {_pose_actions(spec) for spec in built}
    return kinds.pop() if len(kinds) == 1 else None


def _pose_actions(spec: EnvSpec) -> PoseActions | None:
    ask = getattr(registry.load(spec.suite), "pose_actions", None)
    kind: PoseActions | None = None if ask is None else ask(spec)
    return kind
