"""A suite without a simulator, so that the engine's suite path is tested in milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium

from polyarm.contracts import EnvDescription, EnvSpec, ForkMode, Requirement, Task
from polyarm.errors import UnknownName
from polyarm.testing.counting import BindingEnv, CountingEnv, counting_spaces

_LENGTHS = {"count-3": 3, "count-10": 10, "count-50": 50}
_CAMERAS = ("front", "wrist")
_NO_DISPLAY = -1


class ToySuite:
    """Counts: tasks ``toy/count-3``, ``toy/count-10`` and ``toy/count-50``.

    Its cameras are ``front`` and ``wrist``. As with a GL context, an env renders only in the
    process that called `attach_display`. Options: ``binding`` (bool) makes envs that write in
    place, ``truncate`` (bool) makes episodes end by truncation.
    """

    name = "toy"
    fork: ForkMode = "built"
    episodic = True
    default_cameras = ("front",)

    def tasks(self) -> Sequence[Task]:
        """The three tasks."""
        return [
            Task(f"{self.name}/{task}", f"count to {length}", length)
            for task, length in _LENGTHS.items()
        ]

    def sets(self) -> Mapping[str, Sequence[str]]:
        """``short``: the two tasks that end soon."""
        return {"short": ("count-3", "count-10")}

    def check(self, spec: EnvSpec) -> EnvSpec:
        """Fill in the options."""
        defaults = {"binding": False, "truncate": False}
        _require("task", [spec.task], _LENGTHS)
        _require("camera", spec.cameras, _CAMERAS)
        _require("option", spec.options, defaults)
        return replace(spec, options={**defaults, **spec.options})

    def describe(self, spec: EnvSpec) -> EnvDescription | None:
        """The spaces, which follow from the cameras."""
        observation_space, action_space = counting_spaces(spec.cameras, spec.image_size)
        provenance = {"task": spec.name, **spec.options}
        return EnvDescription(observation_space, action_space, CountingEnv.metadata, provenance)

    def requirements(self) -> Sequence[Requirement]:
        """Nothing."""
        return []

    def preload(self, spec: EnvSpec) -> None:
        """Nothing to import."""

    def make(self, spec: EnvSpec) -> gymnasium.Env[Any, Any]:
        """Build an env that cannot render yet."""
        env_class: Callable[..., CountingEnv] = (
            BindingEnv if spec.options["binding"] else CountingEnv
        )
        env = env_class(
            length=_LENGTHS[spec.task],
            cameras=spec.cameras,
            image_size=spec.image_size,
            truncate=spec.options["truncate"],
        )
        env.display_pid = _NO_DISPLAY
        return env

    def attach_display(self, env: gymnasium.Env[Any, Any]) -> None:
        """Let ``env`` render in this process."""
        assert isinstance(env.unwrapped, CountingEnv)
        env.unwrapped.display_pid = os.getpid()


def _require(kind: str, names: Sequence[str] | Mapping[str, Any], valid: Any) -> None:
    for name in names:
        if name not in valid:
            raise UnknownName(kind, name, valid)
