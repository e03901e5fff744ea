"""What the rooms of polyarm agree on: tasks, env specs, suites and the envs they make.

Nothing here imports a simulator, and everything here pickles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import gymnasium
import numpy as np
from numpy.typing import NDArray

ForkMode = Literal["built", "imports", "never"]
"""How a worker for a suite comes to life.

``built``: forked from a process that has built the env without any GL context.
``imports``: forked after the imports; the env is built in the worker.
``never``: a fresh interpreter, for simulators that do not survive a fork.
"""

STREAM = 2**32
"""Episode indices of stream ``seed`` start at ``seed * STREAM``; two seeds never share an index."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a suite, known without importing its simulator.

    Attributes:
        name: Full name, ``"<suite>/<task>"``, as users type it.
        instruction: What a language-conditioned policy is told.
        max_steps: The episode's horizon in env steps, if the suite fixes one.
    """

    name: str
    instruction: str = ""
    max_steps: int | None = None


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Everything a worker needs to build one env; picklable, comparable, free of live objects.

    Attributes:
        suite: The suite's name in the registry.
        task: The task's name inside the suite (no ``"<suite>/"`` prefix).
        cameras: Cameras whose frames the observation carries, in order.
        image_size: ``(height, width)`` of each frame in pixels.
        options: Suite options, complete: what the user left out is filled in by `Suite.check`.
    """

    suite: str
    task: str
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The task's full name, ``"<suite>/<task>"``."""
        return f"{self.suite}/{self.task}"

    def with_options(self, **options: Any) -> EnvSpec:
        """A copy with ``options`` added or replaced."""
        return replace(self, options={**self.options, **options})


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """What the trainer must know of an env it never holds.

    Attributes:
        observation_space: Space of a single env's observation.
        action_space: Space of a single env's action.
        metadata: The env's Gymnasium metadata.
        provenance: Versions and settings that shape the episodes; recorded with results.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something a suite needs on this machine.

    Attributes:
        name: What is needed, in a user's words.
        found: The version or path found, or None when it is missing.
        fix: The command or step that provides it.
    """

    name: str
    found: str | None
    fix: str


class Suite(Protocol):
    """A family of tasks behind one simulator; one file in ``suites/``, one entry point.

    Methods marked *trainer* run in the trainer's process and must import no simulator;
    those marked *worker* run in a worker or builder process only.
    """

    name: str
    fork: ForkMode
    episodic: bool
    """Whether ``reset(options={"episode": index})`` starts exactly that episode; plain Gymnasium
    envs only know seeds."""

    def tasks(self) -> Sequence[Task]:
        """All tasks (*trainer*)."""
        ...

    def sets(self) -> Mapping[str, Sequence[str]]:
        """Named sets of tasks, such as ``{"mt10": ("reach-v3", ...)}`` (*trainer*)."""
        ...

    def check(self, spec: EnvSpec) -> EnvSpec:
        """Validate task, cameras and options; return the spec with defaults filled in (*trainer*).

        Raises:
            polyarm.errors.UnknownName: With the closest valid names.
        """
        ...

    def describe(self, spec: EnvSpec) -> EnvDescription | None:
        """Spaces, if they are known without building an env (*trainer*)."""
        ...

    def requirements(self) -> Sequence[Requirement]:
        """What must be installed, and whether it is (*trainer*)."""
        ...

    def preload(self, spec: EnvSpec) -> None:
        """Import what `make` needs; no env, no GL (*worker*)."""
        ...

    def make(self, spec: EnvSpec) -> gymnasium.Env[Any, Any]:
        """Build the env; no GL context yet when ``fork == "built"`` (*worker*)."""
        ...

    def attach_display(self, env: gymnasium.Env[Any, Any]) -> None:
        """Create GL contexts; called once, after the fork, when cameras are on (*worker*)."""
        ...


@runtime_checkable
class SuiteEnv(Protocol):
    """What an env made by a suite offers besides the Gymnasium API.

    Its observation space is a flat Dict: ``"pixels/<camera>"`` uint8 (H, W, 3),
    ``"state"`` float32 (n,), and suite extras by name. ``reset(options={"episode": index})``
    starts exactly that episode, and ``info["is_success"]`` is a bool at every step.
    Optional extras, used where present:

    - ``expert_action()``: the scripted expert's action for the current state.
    - ``bind(buffers)``: write the next observations straight into ``buffers`` (key → array) and
      return those very arrays.
    - ``frame_seconds``: seconds spent rendering since the env was built.
    """

    frames_enabled: bool
    """Whether the next observation carries frames; setting it changes nothing else."""
    instruction: str
    max_steps: int

    def terminal_frame(self) -> Mapping[str, NDArray[np.uint8]] | None:
        """The frames (``"pixels/<camera>"`` → image) the last step would have given, or None."""
        ...
