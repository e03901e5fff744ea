"""What the rooms of polyarm agree on: tasks, suites and their envs; episodes, policies, observers.

Nothing here imports a simulator, and everything here pickles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
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

FRAME_KEYS = ("pixels/", "depth/", "point_cloud/", "mask/")
"""Prefixes of the observation keys that are rendered, and absent where nothing was."""

PoseActions = Literal["absolute", "delta"]
"""Actions that are poses of a hand, or displacements of it.

They begin with a position (3, metres), a unit quaternion (4: x, y, z, w) and the gripper, whose
upper bound is open. The suite has the option ``control`` that chooses between the two, and
``"state"`` begins with the gripper's opening (from 0 to 1) and the hand's pose (7).
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
        observer: ``"module:factory"`` of an `Observer` that watches the env's episodes in its
            worker, or nothing.
        observer_options: Keyword arguments of the factory.
    """

    suite: str
    task: str
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    options: Mapping[str, Any] = field(default_factory=dict)
    observer: str = ""
    observer_options: Mapping[str, Any] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory that one more env takes, roughly.

    Attributes:
        host: Bytes of main memory.
        graphics: Bytes for textures and framebuffers: the GPU's if one renders, else main memory.
    """

    host: int
    graphics: int = 0


class Suite(Protocol):
    """A family of tasks behind one simulator; one file in ``suites/``, one entry point.

    Methods marked *trainer* run in the trainer's process and must import no simulator;
    those marked *worker* run in a worker, or in a zygote that workers are forked from.

    A suite may also have:

    - ``default_cameras``: recorded when none is named.
    - ``defaults(options)``: ``episodes`` and ``image_size`` where the user gives none (*trainer*).
    - ``footprint(spec)``: a `Footprint`, what one more env takes (*trainer*).
    - ``pose_actions(spec)``: how its actions are `PoseActions`, or None where they are none
      (*trainer*).
    - ``setup(assets, progress, force=False)`` and ``check_setup(progress)``: what
      ``polyarm setup`` does (*trainer*).
    - ``needs_x``: True if its simulator cannot render without an X server.
    - ``renders(spec)``: whether its env may render although the spec names no cameras; without it,
      no cameras means no OpenGL (*trainer*).
    - ``one_per_process``: True if a process can hold one of its simulators only.
    - ``takes(spec, option)``: for suites that accept options of any name: whether the env certainly
      knows this one. What it does not know and resembles an argument of `make_vec` is refused as a
      misspelling (*trainer*).
    - ``environment(spec)``: variables its workers need when they start (*trainer*).
    - ``interpreter(spec)``: a Python of its own for its workers, or None (*trainer*).
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

    Its observation space is a flat Dict: ``"pixels/<camera>"`` uint8 (H, W, 3), maybe
    ``"depth/<camera>"``, ``"point_cloud/<camera>"`` and ``"mask/<camera>"``, which come and go with
    it, ``"state"`` float32 (n,), and suite extras by name. ``reset(options={"episode": index})``
    starts exactly that episode, and ``info["is_success"]`` is a bool at every step. Where an
    episode has an instruction of its own, the reset's ``info["instruction"]`` says so.
    Optional extras, used where present:

    - ``expert_action()``: the scripted expert's action for the current state.
    - ``bind(buffers)``: write the next observations straight into ``buffers`` (key → array) and
      return those very arrays. It is known by its parameter's name; any other ``bind`` is left
      alone.
    - ``frame_seconds``: seconds spent rendering since the env was built.
    - ``upright``: steps of rows and columns, ``(-1, 1)`` and the like, that turn a delivered frame
      into what a person would see; recordings use it.
    """

    frames_enabled: bool
    """Whether the next observation carries frames; setting it changes nothing else."""
    instruction: str
    max_steps: int

    def terminal_frame(self) -> Mapping[str, NDArray[np.uint8]] | None:
        """The frames (``"pixels/<camera>"`` → image) the last step would have given, or None."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class EpisodeKey:
    """Which episode: its key fixes everything about it, whoever runs it, wherever and whenever.

    Attributes:
        suite: The suite's name.
        task: The task's name inside the suite.
        index: Fixes initial state and env seed.
        repeat: Tells apart repeats of one initial state; with ``index`` it fixes the policy's
            noise.
    """

    suite: str
    task: str
    index: int
    repeat: int = 0

    @property
    def name(self) -> str:
        """The task's full name, ``"<suite>/<task>"``."""
        return f"{self.suite}/{self.task}"

    def __str__(self) -> str:
        return f"{self.name}#{self.index}" + (f".{self.repeat}" if self.repeat else "")

    def generator(self) -> np.random.Generator:
        """A new generator for the policy's noise, always the same for this key."""
        task = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "little")
        return np.random.default_rng([task, self.index, self.repeat])


@dataclass(frozen=True, slots=True)
class Batch:
    """What a policy decides on: one row per episode that waits for actions, of any tasks.

    Attributes:
        obs: Leaves ``(B, …)``, structured like the env's observation; only valid during ``act``.
        keys: The episodes.
        instructions: What a language-conditioned policy is told, per row.
        steps: Env steps each episode has made so far, int64 ``(B,)``.
        generators: Each episode's own source of noise; it goes on from decision to decision.
    """

    obs: Any
    keys: tuple[EpisodeKey, ...]
    instructions: tuple[str, ...]
    steps: NDArray[np.int64]
    generators: tuple[np.random.Generator, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, start: int, stop: int) -> Batch:
        """The rows from ``start`` to ``stop`` as a batch of their own."""
        part = slice(start, stop)
        return Batch(
            map_leaves(lambda leaf: leaf[part], self.obs),
            self.keys[part],
            self.instructions[part],
            self.steps[part],
            self.generators[part],
        )

    def noise(self, *shape: int) -> NDArray[np.float32]:
        """Standard normal noise, float32 ``(B, *shape)``, each row from its episode's generator."""
        rows = [one.standard_normal(shape, dtype=np.float32) for one in self.generators]
        return np.stack(rows)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf of an observation: an array, or nested mappings of them."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    return function(tree)


def to_host(value: Any) -> Any:
    """A tensor of any device and type as an array; anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    # NumPy has no bfloat16, and float32 holds every value of it.
    value = value.detach()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).cpu().numpy()


def stack_leaves(trees: Sequence[Any]) -> Any:
    """Observations of one structure as one, each leaf with a new first dimension."""
    if isinstance(trees[0], Mapping):
        return {key: stack_leaves([tree[key] for tree in trees]) for key in trees[0]}
    return np.stack(trees)


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """Actions with what is worth keeping about how they came about.

    Attributes:
        actions: ``(B, K, …)``, or ``(B, …)`` for single steps.
        extras: Log-probabilities, values, tokens, normalised actions …: ``(B, …)`` by name, kept
            per decision.
    """

    actions: Any
    extras: Mapping[str, Any] = field(default_factory=dict)


class Policy(Protocol):
    """What drives envs: one decision per row, for as many rows as are ready.

    Optional attributes, used where present:

    - ``end(episodes)``: these episodes are over; drop what is kept for them.
    - ``fingerprint``: a mapping or string that tells this policy from others in the results.
    - ``row_independent``: True promises that a row's actions do not depend on the rest of the
      batch, to the bit.
    - ``needs_frames``: False if observations may come without ``pixels/…``.
    - ``check_spec(spec)``: refuses envs that it was not made for, by a `PolicyError`.
    - ``execute``: actions executed before it is asked again, where the run does not say.
    - ``expert_steps``: run the env's own expert in the worker for so many steps per request;
      ``act`` is never called.
    """

    def act(self, batch: Batch) -> NDArray[Any] | PolicyOutput:
        """Actions for every row, ``(B, K, …)`` or ``(B, …)``.

        After running out of GPU memory it is asked again about the same steps, in smaller batches.
        """
        ...

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin, maybe again; forget what is kept for their keys."""
        ...


Outcome = Literal["success", "failure", "error"]


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """How an episode went; one line of the journal.

    Attributes:
        key: Which episode.
        outcome: ``success``, ``failure`` of the policy, or ``error`` of the simulator.
        steps: Env steps made.
        total_reward: Sum of the rewards.
        seconds: Wall time from the reset to the end.
        timings: Seconds by what they were spent on: ``sim``, ``frames``, ``obs`` (in the worker),
            ``policy`` (this episode's share) and ``waiting``.
        action_hash: Of all executed actions, hexadecimal.
        invalid_actions: Actions that the simulator did not execute, where its suite counts them.
        attempts: How often it was run, 1 if nothing went wrong.
        error: Of an errored episode: ``kind``, ``phase``, ``message`` and more, as text.
        videos: Paths relative to the output folder.
        trajectory: Path relative to the output folder, or "".
        policy: Which of several evaluated policies, or "".
        finished_at: Seconds since 1970.
    """

    key: EpisodeKey
    outcome: Outcome
    steps: int
    total_reward: float
    seconds: float
    timings: Mapping[str, float] = field(default_factory=dict)
    action_hash: str = ""
    invalid_actions: int = 0
    attempts: int = 1
    error: Mapping[str, str] = field(default_factory=dict)
    videos: tuple[str, ...] = ()
    trajectory: str = ""
    policy: str = ""
    finished_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ObservedEpisode:
    """What an observer is told when an episode begins.

    Attributes:
        key: Which episode.
        instruction: What the policy is told.
        max_steps: The horizon in env steps, or 0 if there is none.
        attempt: 1 for the first run of this episode, 2 for the second …
        policy: Which of several evaluated policies plays it, or "".
        upright: Steps of rows and columns that turn its frames upright.
    """

    key: EpisodeKey
    instruction: str
    max_steps: int
    attempt: int = 1
    policy: str = ""
    upright: tuple[int, int] = (1, 1)


class Observer(Protocol):
    """Watches one env's episodes inside its worker, to record them; never changes them.

    What it raises is an error of the slot, like an exception of the env.
    """

    def begin(self, episode: ObservedEpisode) -> None:
        """An episode is about to be reset; an unfinished one before it is void."""
        ...

    def wants_frames(self, step: int) -> bool:
        """Whether the observation after ``step`` steps (0: the reset's) must carry frames.

        The last observation of an episode whose first one carries frames carries them too.
        """
        ...

    def observe(self, step: int, obs: Any, reward: float, *, success: bool) -> None:
        """The observation after ``step`` steps; its arrays are only valid during the call."""
        ...

    def end(self, *, success: bool) -> Sequence[str]:
        """The episode is over; returns the files that now exist, relative to the output folder."""
        ...

    def close(self) -> None:
        """The env is closed."""
        ...
