"""Any Gymnasium env: by its registered id, or from a callable.

Envs are handed over as they are: their own observations, their own seeding.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import load_env_creator, parse_env_id

from polyarm.contracts import EnvDescription, EnvSpec, ForkMode, Requirement, Task
from polyarm.errors import BuildError, InvalidCall, UnknownName


class GymnasiumSuite:
    """Envs that `gymnasium.make` knows: ``"gym/CartPole-v1"``, ``"gym/module:EnvId-v0"``.

    Options are passed to `gymnasium.make` as keyword arguments.
    """

    name = "gym"
    fork: ForkMode = "imports"
    episodic = False

    def tasks(self) -> Sequence[Task]:
        """All ids registered in this process; their modules are not imported."""
        return [
            Task(name=f"gym/{env_id}", max_steps=spec.max_episode_steps)
            for env_id, spec in sorted(gymnasium.registry.items())
        ]

    def sets(self) -> Mapping[str, Sequence[str]]:
        """None: Gymnasium names no sets."""
        return {}

    def check(self, spec: EnvSpec) -> EnvSpec:
        """Look the id up, unless it names a module that has yet to register it.

        What is found travels with the spec: a script may have registered it, and workers have not.

        Raises:
            UnknownName: No such id, or cameras were asked for.
        """
        _refuse_cameras(spec)
        if ":" in spec.task:
            return spec
        if (registered := _registered(spec.task)) is None:
            raise _unknown(spec)
        packed = _packed(registered)
        return spec.with_options(**{_CARRIED: (os.getpid(), packed)}) if packed else spec

    def describe(self, spec: EnvSpec) -> EnvDescription | None:
        """None: spaces are known once the env is built."""
        return None

    def renders(self, spec: EnvSpec) -> bool:
        """Whether the env may use OpenGL off screen: any but Gymnasium's own, which are known."""
        registered = _registration(spec)
        entry_point = "" if registered is None else str(registered.entry_point)
        if registered is None or not entry_point.startswith("gymnasium.envs."):
            return _uses_opengl()
        mode = spec.options.get("render_mode", registered.kwargs.get("render_mode"))
        return entry_point.startswith("gymnasium.envs.mujoco.") and mode not in (None, "human")

    def takes(self, spec: EnvSpec, option: str) -> bool:
        """Whether the id is registered with this option, or its class, if loaded, names it."""
        registered = _registration(spec)
        return registered is not None and (
            option in registered.kwargs or option in _parameters(registered.entry_point)
        )

    def requirements(self) -> Sequence[Requirement]:
        """Gymnasium itself; what a particular env needs is up to that env."""
        return [_GYMNASIUM]

    def preload(self, spec: EnvSpec) -> None:
        """Import the module that registers the env, and the one that holds its class."""
        if module := spec.task.rpartition(":")[0]:
            importlib.import_module(module)
        registered = _registration(spec)
        if registered is not None and isinstance(registered.entry_point, str):
            importlib.import_module(registered.entry_point.partition(":")[0])

    def make(self, spec: EnvSpec) -> gymnasium.Env[Any, Any]:
        """Build the env with `gymnasium.make`, with the wrappers it brings.

        Raises:
            UnknownName: This process does not know the id.
        """
        # Each env has its own: slots of one process would share what they hold.
        options = {name: _own(value) for name, value in spec.options.items() if name != _CARRIED}
        if ":" in spec.task:
            return gymnasium.make(spec.task, **options)
        if (registered := _registration(spec)) is None:
            raise _unknown(spec)
        return gymnasium.make(registered, **options)

    def attach_display(self, env: gymnasium.Env[Any, Any]) -> None:
        """Nothing to do: a Gymnasium env sets up its own rendering."""


class CallableSuite:
    """Envs from a zero-argument callable; the task's name is for display only.

    ``options["factory"]`` is the callable as cloudpickle bytes, or a ``"module:callable"`` string.
    """

    name = "callable"
    fork: ForkMode = "imports"
    episodic = False

    def tasks(self) -> Sequence[Task]:
        """None: a callable has no name that could be looked up."""
        return []

    def sets(self) -> Mapping[str, Sequence[str]]:
        """None."""
        return {}

    def check(self, spec: EnvSpec) -> EnvSpec:
        """Check the form of ``options["factory"]``; the callable itself is not touched.

        Raises:
            InvalidCall: There is no factory, or it is neither bytes nor ``"module:callable"``.
            UnknownName: Cameras or options beside the factory were given.
        """
        _refuse_cameras(spec)
        factory = spec.options.get("factory")
        if not isinstance(factory, bytes) and not (isinstance(factory, str) and ":" in factory):
            raise InvalidCall(
                f"task {spec.task!r} needs a factory as cloudpickle bytes or as a "
                f"'module:callable' string, got {factory!r}. "
                "Pass make_vec a zero-argument callable."
            )
        for option in spec.options:
            if option != "factory":
                hint = "A callable takes no arguments: bind options inside it."
                raise UnknownName("option", option, (), hint)
        return spec

    def describe(self, spec: EnvSpec) -> EnvDescription | None:
        """None: spaces are known once the env is built."""
        return None

    def renders(self, spec: EnvSpec) -> bool:
        """Whether the env may use OpenGL: nobody knows before it does."""
        return _uses_opengl()

    def requirements(self) -> Sequence[Requirement]:
        """Gymnasium itself."""
        return [_GYMNASIUM]

    def preload(self, spec: EnvSpec) -> None:
        """Import the callable's module, if it is named."""
        factory = spec.options["factory"]
        if isinstance(factory, str):
            importlib.import_module(factory.partition(":")[0])

    def make(self, spec: EnvSpec) -> gymnasium.Env[Any, Any]:
        """Call the factory.

        Raises:
            BuildError: The factory returned something that is not a Gymnasium env.
            UnknownName: The named module has no such callable.
        """
        env = _load_factory(spec.options["factory"])()
        if not isinstance(env, gymnasium.Env):
            raise BuildError(
                f"the factory of task {spec.task!r} returned {type(env).__name__}, "
                "not a gymnasium.Env; return the env that it builds."
            )
        return env

    def attach_display(self, env: gymnasium.Env[Any, Any]) -> None:
        """Nothing to do: the env sets up its own rendering."""


_CARRIED = "_registration"
"""Option with which an id's registration travels: of which process it is, and as pickled bytes."""
_LATEST: deque[bytes] = deque(maxlen=4)
"""Registrations that were packed last, so that specs of one id share its bytes, which may be many.
They are packed anew each time, as what a registration holds may have changed."""
_GYMNASIUM = Requirement("gymnasium", version("gymnasium"), "pip install gymnasium")


def _refuse_cameras(spec: EnvSpec) -> None:
    for camera in spec.cameras:
        hint = "Gymnasium envs deliver their own observations: leave cameras empty."
        raise UnknownName(f"camera of {spec.name}", camera, (), hint)


def _registered(env_id: str) -> GymnasiumSpec | None:
    """What `gymnasium.make` finds under the id; one without a version means the newest."""
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    try:
        namespace, name, env_version = parse_env_id(env_id)
    except gymnasium.error.Error:
        return None
    versions = [
        spec
        for spec in gymnasium.registry.values()
        if env_version is None and (spec.namespace, spec.name) == (namespace, name)
    ]
    return max(versions, key=lambda spec: spec.version or 0, default=None)


def _unknown(spec: EnvSpec) -> UnknownName:
    hint = "An id from a module that is not imported yet is written 'gym/module:EnvId-v0'."
    return UnknownName("task", spec.name, [f"gym/{env_id}" for env_id in gymnasium.registry], hint)


def _registration(spec: EnvSpec) -> GymnasiumSpec | None:
    """What the trainer knew under the id, or else this process does."""
    registered = _registered(spec.task.rpartition(":")[2])
    pid, packed = spec.options.get(_CARRIED, (os.getpid(), None))
    if packed is None or (registered is not None and pid == os.getpid()):
        return registered
    unpacked: GymnasiumSpec = pickle.loads(packed)
    return unpacked


def _parameters(entry_point: Any) -> Collection[str]:
    """Names of an entry point's parameters; none if its module has not been imported."""
    if isinstance(entry_point, str):
        module, _, name = entry_point.partition(":")
        entry_point = getattr(sys.modules.get(module), name, None)
    try:
        return inspect.signature(entry_point).parameters
    except (TypeError, ValueError):  # it is no callable, or of C
        return ()


def _packed(registered: GymnasiumSpec) -> bytes | None:
    """A registration that another process can use; None if it holds what cannot be pickled."""
    import cloudpickle

    try:
        if str(registered.entry_point).startswith("__main__:"):
            found: Any = load_env_creator(str(registered.entry_point))
            registered = copy.copy(registered)
            registered.entry_point = found
        packed: bytes = cloudpickle.dumps(registered)
    except Exception:  # noqa: BLE001  objects may raise anything when they are pickled
        return None
    for one in _LATEST:
        if one == packed:
            return one
    _LATEST.append(packed)
    return packed


def _own(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  objects may raise anything when they are copied
        return value


def _uses_opengl() -> bool:
    """Whether something is installed that renders as a display's variables say."""
    return any(importlib.util.find_spec(name) for name in ("mujoco", "OpenGL"))


def _load_factory(factory: bytes | str) -> Callable[[], object]:
    loaded: Callable[[], object]
    if isinstance(factory, bytes):
        loaded = pickle.loads(factory)
        return loaded
    module_name, _, attribute = factory.partition(":")
    module = importlib.import_module(module_name)
    try:
        loaded = getattr(module, attribute)
    except AttributeError:
        names = [name for name, value in vars(module).items() if callable(value)]
        raise UnknownName(f"callable of module {module_name}", attribute, names) from None
    return loaded
