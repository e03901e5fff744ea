"""Reaching into an env through its wrappers: attributes, methods, rendering."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
from gymnasium import wrappers

from polyarm.errors import InvalidCall

CallMode = Literal["call", "set", "render"]
_RESERVED = frozenset({"reset", "step", "close"})


def holder(env: gymnasium.Env[Any, Any], name: str) -> Any | None:
    """The outermost layer of a wrapped env that has ``name`` itself, or None."""
    layer: Any = env
    while True:
        if hasattr(layer, name):
            return layer
        if not isinstance(layer, gymnasium.Wrapper):
            return None
        layer = layer.env


_PASSING = (
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RecordEpisodeStatistics,
    wrappers.TimeLimit,
)


def source(env: gymnasium.Env[Any, Any], name: str) -> Any | None:
    """The layer that has ``name`` itself and whose observations come out as they are, or None.

    What a wrapper keeps or changes must not be written over by the next step, nor delivered
    unchanged, nor lack its frames.
    """
    layer: Any = env
    while not hasattr(layer, name):
        if not _hands_on_observations(layer):
            return None
        layer = layer.env
    return layer


def _hands_on_observations(layer: Any) -> bool:
    kind = type(layer)
    if kind in _PASSING:
        return True
    if not isinstance(layer, gymnasium.Wrapper) or kind.reset is not gymnasium.Wrapper.reset:
        return False
    steps = (gymnasium.Wrapper.step, gymnasium.ActionWrapper.step, gymnasium.RewardWrapper.step)
    return kind.step in steps


def expert_of(env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """The ``expert_action()`` of an env, or None; a wrapper of actions would change its answers."""
    layer: Any = env
    while not hasattr(layer, "expert_action"):
        if not isinstance(layer, gymnasium.Wrapper) or isinstance(layer, gymnasium.ActionWrapper):
            return None
        layer = layer.env
    found: Callable[[], Any] = layer.expert_action
    return found


def binder(env: gymnasium.Env[Any, Any]) -> Callable[..., Any] | None:
    """An env's ``bind(buffers)``, or None; a ``bind`` that takes something else is its own."""
    bind = getattr(source(env, "bind"), "bind", None)
    try:
        parameters = inspect.signature(bind).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it cannot be called, or does not say with what
        return None
    return bind if next(iter(parameters), "") == "buffers" else None


def call_env(
    env: gymnasium.Env[Any, Any], mode: CallMode, name: str, args: Any, kwargs: Any
) -> Any:
    """Serve one ``call``, ``get_attr``, ``set_attr`` or ``render``."""
    if mode == "render":
        return env.render()
    if mode == "set":
        set_attribute(env, name, args.copy())
        return None
    value = env.get_wrapper_attr(name)
    return value(*args, **kwargs) if callable(value) else value


def set_attribute(env: gymnasium.Env[Any, Any], name: str, value: Any) -> None:
    """Set an attribute where the env has it, else on the env itself."""
    found = holder(env, name)
    setattr(env if found is None else found, name, value)


def check_callable(name: str) -> None:
    """Refuse calls that would go behind the engine's back."""
    if name in _RESERVED:
        raise InvalidCall(f"call({name!r}) would bypass the engine; use the vector env's {name}()")
