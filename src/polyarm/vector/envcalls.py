"""Reaching into an env through its wrappers: attributes, methods, rendering."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import gymnasium

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


def binder(env: gymnasium.Env[Any, Any]) -> Callable[..., Any] | None:
    """An env's ``bind(buffers)``, or None; a ``bind`` that takes something else is its own."""
    bind = getattr(holder(env, "bind"), "bind", None)
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
        set_attribute(env, name, args)
        return None
    value = env.get_wrapper_attr(name)
    return value(*args, **kwargs) if callable(value) else value


def set_attribute(env: gymnasium.Env[Any, Any], name: str, value: Any) -> None:
    """Set an attribute where the env has it, else on the env itself."""
    setattr(holder(env, name) or env, name, value)


def check_callable(name: str) -> None:
    """Refuse calls that would go behind the engine's back."""
    if name in _RESERVED:
        raise InvalidCall(f"call({name!r}) would bypass the engine; use the vector env's {name}()")
