"""The conformance kit for suites: what the engine leans on, checked on one task.

An author of a suite calls `check_suite` in a test. Every failure is an AssertionError that says
which promise was broken and what was found.
"""

from __future__ import annotations

import contextlib
import json
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

from polyarm import registry
from polyarm.contracts import (
    EnvDescription,
    EnvSpec,
    ForkMode,
    Requirement,
    Suite,
    SuiteEnv,
    Task,
)
from polyarm.errors import PolyarmError, UnknownName
from polyarm.testing.promises import doing
from polyarm.testing.trajectories import check_episodes, check_in_worker, check_seeds

SIMULATORS = (
    "coppeliasim", "dm_control", "genesis", "glfw", "isaacgym", "libero", "maniskill", "metaworld",
    "mujoco", "OpenGL", "pybullet", "pyrep", "ray", "rlbench", "robosuite", "sapien", "torch",
)  # fmt: skip
"""Modules that must not be imported by the parts of a suite that run in the trainer."""

_NOT_A_NAME = "no-such-name"


def check_suite(  # noqa: PLR0913  the whole kit, keyword-only
    suite: Suite,
    *,
    task: str | None = None,
    cameras: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    steps: int = 20,
    plain: bool = False,
    varied: bool = True,
) -> None:
    """Check that ``suite`` keeps the promises of `polyarm.contracts.Suite`.

    Builds the env twice in this process and runs a handful of episodes of random actions. A suite
    that is announced by an entry point is also played by the engine, in a worker.

    Args:
        suite: The suite.
        task: The task to build, without the suite's prefix; by default the first one listed.
        cameras: Cameras to turn on, to check the frames too (at 64 × 64 pixels).
        options: Suite options that differ from their defaults.
        steps: Env steps to take in each episode.
        plain: The suite hands over other people's Gymnasium envs as they are, with any
            observation space, seeds instead of episode indices and whatever options they take.
        varied: Whether episodes of other indices and seeds differ; False for a task that is always
            the same, or whose seeds change nothing that is seen at once.

    Raises:
        AssertionError: With the first promise that was found broken.
    """
    lacking = registry.lacking(suite)
    assert not lacking, f"the suite lacks {', '.join(lacking)}; see polyarm.contracts.Suite"
    tasks = _check_names(suite)
    _check_requirements(suite)
    task = task or tasks[0].name.partition("/")[2]
    asked = EnvSpec(suite.name, task, tuple(cameras), (64, 64), dict(options or {}))
    _check_light(suite, asked)
    spec = _check_specs(suite, asked, tasks)
    _check_rejected(suite, "task", replace(spec, task=_NOT_A_NAME))
    _check_rejected(suite, "camera", replace(spec, cameras=(*spec.cameras, _NOT_A_NAME)))
    if not plain:
        _check_rejected(suite, "option", spec.with_options(**{_NOT_A_NAME: 1}))
    with doing("preload()"):
        suite.preload(spec)
    with contextlib.ExitStack() as envs:
        first = envs.enter_context(_built(suite, spec))

        def make_second() -> gymnasium.Env[Any, Any]:
            if getattr(suite, "one_per_process", False):
                envs.close()
            return envs.enter_context(_built(suite, spec))

        if not plain:
            listed = [each.max_steps for each in tasks if each.name == spec.name and not options]
            _check_suite_env(spec, first, listed)
        _check_description(suite, spec, first)
        if plain:
            check_seeds(first, make_second, steps)
            return
        reference = check_episodes(first, make_second, steps, varied=varied)
    if _is_announced(suite):
        check_in_worker(spec, reference)


def _check_names(suite: Suite) -> Sequence[Task]:
    assert re.fullmatch(r"[a-z][a-z0-9_-]*", suite.name), (
        f"a suite's name is lower case and has no slash: {suite.name!r}"
    )
    assert suite.fork in get_args(ForkMode), (
        f"fork must be one of {get_args(ForkMode)}: {suite.fork!r}"
    )
    with doing("tasks()"):
        tasks: Any = suite.tasks()
    assert isinstance(tasks, Sequence), f"tasks() gives a {type(tasks).__name__}, not a list"
    assert tasks, "tasks() lists no task"
    strangers = [task for task in tasks if not isinstance(task, Task)]
    assert not strangers, f"tasks() gives {strangers[0]!r}, expected polyarm.Task"
    names = [task.name for task in tasks]
    assert len(set(names)) == len(names), f"tasks() repeats {_repeated(names)}"
    for task in tasks:
        assert re.fullmatch(rf"{suite.name}/.+", task.name), (
            f"task {task.name!r} should be named '{suite.name}/<task>'"
        )
        assert task.max_steps is None or task.max_steps > 0, (
            f"task {task.name!r} has max_steps {task.max_steps}"
        )
    with doing("sets()"):
        sets = suite.sets()
    assert isinstance(sets, Mapping), f"sets() gives a {type(sets).__name__}, not a mapping"
    for set_name, members in sets.items():
        assert f"{suite.name}/{set_name}" not in names, f"{set_name!r} is both a set and a task"
        unknown = [member for member in members if f"{suite.name}/{member}" not in names]
        assert not unknown, f"set {set_name!r} has members that tasks() does not list: {unknown}"
    return tasks


def _check_requirements(suite: Suite) -> None:
    with doing("requirements()"):
        needs: Any = suite.requirements()
    right = isinstance(needs, Sequence) and all(isinstance(need, Requirement) for need in needs)
    assert right, f"requirements() gives {needs!r}, expected a list of polyarm.Requirement"


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
    given = dict(asked.options)
    with doing(f"check() of {asked}"):
        spec = suite.check(asked)
    assert isinstance(spec, EnvSpec), f"check() gives {spec!r}; it returns the completed EnvSpec"
    assert dict(asked.options) == given, "check() writes into the options that it is given"
    kept = (asked.suite, asked.task, asked.cameras, asked.image_size)
    assert (spec.suite, spec.task, spec.cameras, spec.image_size) == kept, (
        f"check() may only fill in options; it made {spec} of {asked}"
    )
    changed = [key for key, value in asked.options.items() if spec.options.get(key) != value]
    assert not changed, f"check() changed the options {changed} that were given"
    with doing("check() of the spec that it has completed"):
        assert suite.check(spec) == spec, "check() changes a spec that it has already completed"
    with doing("pickling the spec"):
        assert pickle.loads(pickle.dumps(spec)) == spec, "the spec does not survive pickling"
    for task in tasks:
        with doing(f"check() of the listed task {task.name}"):
            suite.check(EnvSpec(suite.name, task.name.partition("/")[2]))
    return spec


def _check_rejected(suite: Suite, kind: str, spec: EnvSpec) -> None:
    with doing(f"check() of an unknown {kind}, which should be an UnknownName,"):
        try:
            suite.check(spec)
        except UnknownName:
            return
    raise AssertionError(f"check() accepts an unknown {kind}; it should raise UnknownName")


def _check_suite_env(
    spec: EnvSpec, env: gymnasium.Env[Any, Any], listed: Sequence[int | None]
) -> None:
    assert isinstance(env, SuiteEnv), (
        f"{type(env).__name__} lacks {_missing(env)}; see polyarm.contracts.SuiteEnv"
    )
    horizon: Any = env.max_steps
    whole = isinstance(horizon, int) and horizon > 0
    assert whole, f"max_steps is {horizon!r}, expected an int above 0"
    assert all(steps in (None, horizon) for steps in listed), (
        f"the env's max_steps is {horizon}, and tasks() says {listed[0]}"
    )
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
    with doing("describe()"):
        description = suite.describe(spec)
    if description is None:
        return
    assert isinstance(description, EnvDescription), (
        f"describe() gives {description!r}, expected a polyarm.EnvDescription or None"
    )
    try:
        json.dumps(dict(description.provenance), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the provenance cannot be written as JSON: {error}") from error
    for kind in ("observation_space", "action_space"):
        described, built = getattr(description, kind), getattr(env, kind, None)
        assert described == built, f"describe() gives {kind} {described}, the env has {built}"


@contextlib.contextmanager
def _built(suite: Suite, spec: EnvSpec) -> Iterator[gymnasium.Env[Any, Any]]:
    with doing("make()"):
        env = suite.make(spec)
    assert isinstance(env, gymnasium.Env), f"make() gives {env!r}, expected a gymnasium.Env"
    try:
        if spec.cameras:
            with doing("attach_display()"):
                suite.attach_display(env)
        yield env
    finally:
        with doing("close()"):
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


def _is_announced(suite: Suite) -> bool:
    """Whether a worker finds this suite by its name."""
    try:
        return type(registry.load(suite.name)) is type(suite)
    except PolyarmError:
        return False


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _missing(env: gymnasium.Env[Any, Any]) -> list[str]:
    wanted = ("frames_enabled", "instruction", "max_steps", "terminal_frame")
    return [name for name in wanted if not hasattr(env, name)]
