"""The conformance kit for suites: what the engine leans on, checked on one task.

An author of a suite calls `check_suite` in a test. Every failure is an AssertionError that says
which promise was broken and what was found.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces

from polyarm.contracts import EnvDescription, EnvSpec, ForkMode, Suite, SuiteEnv, Task
from polyarm.errors import UnknownName
from polyarm.testing.trajectories import check_episodes, check_seeds

SIMULATORS = (
    "coppeliasim", "dm_control", "genesis", "glfw", "isaacgym", "libero", "maniskill", "metaworld",
    "mujoco", "OpenGL", "pybullet", "pyrep", "ray", "rlbench", "robosuite", "sapien", "torch",
)  # fmt: skip
"""Modules that must not be imported by the parts of a suite that run in the trainer."""

_NOT_A_NAME = "no-such-name"


def check_suite(
    suite: Suite,
    *,
    task: str | None = None,
    cameras: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    steps: int = 20,
    plain: bool = False,
) -> None:
    """Check that ``suite`` keeps every promise of `polyarm.contracts.Suite`.

    Builds the env twice in this process and runs a handful of episodes of random actions.

    Args:
        suite: The suite.
        task: The task to build, without the suite's prefix; by default the first one listed.
        cameras: Cameras to turn on, to check the frames too (at 64 × 64 pixels).
        options: Suite options that differ from their defaults.
        steps: Env steps to take in each episode.
        plain: The suite hands over other people's Gymnasium envs as they are, with any
            observation space, seeds instead of episode indices and whatever options they take.

    Raises:
        AssertionError: With the first promise that was found broken.
    """
    tasks = _check_names(suite)
    task = task or tasks[0].name.partition("/")[2]
    asked = EnvSpec(suite.name, task, tuple(cameras), (64, 64), options or {})
    _check_light(suite, asked)
    spec = _check_specs(suite, asked, tasks)
    _check_rejected(suite, "task", replace(spec, task=_NOT_A_NAME))
    _check_rejected(suite, "camera", replace(spec, cameras=(*spec.cameras, _NOT_A_NAME)))
    if not plain:
        _check_rejected(suite, "option", spec.with_options(**{_NOT_A_NAME: 1}))
    suite.preload(spec)
    with contextlib.ExitStack() as envs:
        first = envs.enter_context(_built(suite, spec))

        def make_second() -> gymnasium.Env[Any, Any]:
            if getattr(suite, "one_per_process", False):
                envs.close()
            return envs.enter_context(_built(suite, spec))

        if not plain:
            _check_suite_env(spec, first)
        _check_description(suite, spec, first)
        check = check_seeds if plain else check_episodes
        check(first, make_second, steps)


def _check_names(suite: Suite) -> Sequence[Task]:
    assert re.fullmatch(r"[a-z][a-z0-9_-]*", suite.name), (
        f"a suite's name is lower case and has no slash: {suite.name!r}"
    )
    assert suite.fork in get_args(ForkMode), (
        f"fork must be one of {get_args(ForkMode)}: {suite.fork!r}"
    )
    tasks = suite.tasks()
    assert tasks, "tasks() lists no task"
    names = [task.name for task in tasks]
    assert len(set(names)) == len(names), f"tasks() repeats {_repeated(names)}"
    for task in tasks:
        assert re.fullmatch(rf"{suite.name}/.+", task.name), (
            f"task {task.name!r} should be named '{suite.name}/<task>'"
        )
        assert task.max_steps is None or task.max_steps > 0, (
            f"task {task.name!r} has max_steps {task.max_steps}"
        )
    for set_name, members in suite.sets().items():
        unknown = [member for member in members if f"{suite.name}/{member}" not in names]
        assert not unknown, f"set {set_name!r} has members that tasks() does not list: {unknown}"
    return tasks


def _check_light(suite: Suite, asked: EnvSpec) -> None:
    """Run the trainer's part in a fresh interpreter and look for simulators there."""
    module = sys.modules[type(suite).__module__]
    by_reference = cloudpickle.dumps(suite)
    with _pickled_by_value(module):
        by_value = cloudpickle.dumps(suite)
    child = subprocess.run(
        [sys.executable, "-c", _LIGHT_PROBE],
        input=pickle.dumps((sys.path, by_reference, by_value, asked, SIMULATORS)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    errors = child.stderr.decode(errors="replace")
    assert child.returncode == 0, f"the suite does not work in a fresh interpreter:\n{errors}"
    found = child.stdout.decode().split()
    assert not found, (
        f"tasks(), sets(), check(), describe() and requirements() run in the trainer and must not "
        f"import {', '.join(found)}; import it inside make() or preload()"
    )


_LIGHT_PROBE = """
import pickle, sys
path, by_reference, by_value, asked, simulators = pickle.load(sys.stdin.buffer)
sys.path[:] = path
try:
    suite = pickle.loads(by_reference)
except ModuleNotFoundError:
    suite = pickle.loads(by_value)  # defined in a script or a test module
suite.tasks(), suite.sets(), suite.requirements()
suite.describe(suite.check(asked))
sys.stdout.write(" ".join(name for name in simulators if name in sys.modules))
"""


def _check_specs(suite: Suite, asked: EnvSpec, tasks: Sequence[Task]) -> EnvSpec:
    spec = suite.check(asked)
    kept = (asked.suite, asked.task, asked.cameras, asked.image_size)
    assert (spec.suite, spec.task, spec.cameras, spec.image_size) == kept, (
        f"check() may only fill in options; it made {spec} of {asked}"
    )
    changed = [key for key, value in asked.options.items() if spec.options.get(key) != value]
    assert not changed, f"check() changed the options {changed} that were given"
    assert suite.check(spec) == spec, "check() changes a spec that it has already completed"
    assert pickle.loads(pickle.dumps(spec)) == spec, "the spec does not survive pickling"
    for task in tasks:
        suite.check(EnvSpec(suite.name, task.name.partition("/")[2]))
    return spec


def _check_rejected(suite: Suite, kind: str, spec: EnvSpec) -> None:
    with contextlib.suppress(UnknownName):
        suite.check(spec)
        raise AssertionError(f"check() accepts an unknown {kind}; it should raise UnknownName")


def _check_suite_env(spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> None:
    assert isinstance(env, SuiteEnv), (
        f"{type(env).__name__} lacks {_missing(env)}; see polyarm.contracts.SuiteEnv"
    )
    assert env.max_steps > 0, f"max_steps is {env.max_steps}"
    space = env.observation_space
    assert isinstance(space, spaces.Dict), f"the observation space must be a Dict: {space}"
    nested = [key for key, part in space.items() if isinstance(part, spaces.Dict | spaces.Tuple)]
    assert not nested, f"the observation space must be flat; nested: {nested}"
    pixels = spaces.Box(0, 255, (*spec.image_size, 3), np.uint8)
    frames = {key: part for key, part in space.items() if key.startswith("pixels/")}
    assert frames == {f"pixels/{camera}": pixels for camera in spec.cameras}, (
        f"with cameras {spec.cameras} the observation space has the frames {frames}; "
        f"each must be {pixels}"
    )


def _check_description(suite: Suite, spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> None:
    description = suite.describe(spec)
    if description is None:
        return
    assert isinstance(description, EnvDescription)
    for kind in ("observation_space", "action_space"):
        described, built = getattr(description, kind), getattr(env, kind)
        assert described == built, f"describe() gives {kind} {described}, the env has {built}"


@contextlib.contextmanager
def _built(suite: Suite, spec: EnvSpec) -> Iterator[gymnasium.Env[Any, Any]]:
    env = suite.make(spec)
    try:
        if spec.cameras:
            suite.attach_display(env)
        yield env
    finally:
        env.close()


@contextlib.contextmanager
def _pickled_by_value(module: Any) -> Iterator[None]:
    if module.__name__ == "__main__":
        yield  # already pickled by value
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _missing(env: gymnasium.Env[Any, Any]) -> list[str]:
    wanted = ("frames_enabled", "instruction", "max_steps", "terminal_frame")
    return [name for name in wanted if not hasattr(env, name)]
