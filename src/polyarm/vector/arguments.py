"""What `make_vec` is given, checked before anything is looked up or started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, get_args

from polyarm.errors import InvalidCall, UnknownName
from polyarm.vector.settings import Autoreset, Frames, Infos

Start = Literal["auto", "built", "imports", "fresh"]

_COUNTS = {"num_envs": 1, "ring": 2, "max_restarts": 0}
_OPTIONAL_COUNTS = {"num_workers": 0, "memory_limit": 1}
_DURATIONS = ("step_timeout_s", "reset_timeout_s", "build_timeout_s")
_CHOICES = {
    "frames": get_args(Frames),
    "autoreset": get_args(Autoreset),
    "infos": get_args(Infos),
    "start": get_args(Start),
}
_HOSTS = ("local", "ray")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse what no vector env can be made with, whatever its tasks are.

    Raises:
        InvalidCall: A count or a duration that is none, or out of range.
        UnknownName: A choice that is not among the valid ones.
    """
    for name, least in _COUNTS.items():
        _check_count(name, arguments[name], least)
    for name, least in _OPTIONAL_COUNTS.items():
        if arguments[name] is not None:
            _check_count(name, arguments[name], least, "None or ")
    for name in _DURATIONS:
        value = arguments[name]
        if isinstance(value, bool) or not (isinstance(value, Real) and float(value) > 0):
            raise InvalidCall(f"{name} must be a number of seconds above 0, found {value!r}")
    for name, valid in _CHOICES.items():
        if arguments[name] not in valid:
            raise UnknownName(name, str(arguments[name]), valid)
    hosts = str(arguments["hosts"])
    if hosts not in _HOSTS and not hosts.startswith("ray:"):
        raise UnknownName("hosts", hosts, (*_HOSTS, "ray:HOST:PORT"))


def _check_count(name: str, value: Any, least: int, otherwise: str = "") -> None:
    if not _is_int(value) or int(value) < least:
        raise InvalidCall(f"{name} must be {otherwise}an int of at least {least}, found {value!r}")


def _is_int(value: Any) -> bool:
    """Whether this is a whole number; Python takes True for one, and nobody means it."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def camera_names(cameras: Any) -> tuple[str, ...]:
    """The names of cameras; a single one need not be in a list.

    Raises:
        InvalidCall: Something else than names.
    """
    names = (cameras,) if isinstance(cameras, str) else cameras
    if not isinstance(names, Iterable):
        raise InvalidCall(f"cameras must be a list of names, found {cameras!r}")
    names = tuple(names)
    if not all(isinstance(name, str) for name in names):
        raise InvalidCall(f"cameras must be a list of names, found {list(names)!r}")
    return names


def frame_size(image_size: Any) -> tuple[int, int]:
    """``(height, width)``; one int stands for both.

    Raises:
        InvalidCall: Something else than one or two sizes in pixels.
    """
    pair = (image_size, image_size) if _is_int(image_size) else image_size
    sizes = tuple(pair) if isinstance(pair, Iterable) else ()
    if len(sizes) != 2 or not all(_is_int(size) and int(size) > 0 for size in sizes):
        raise InvalidCall(
            f"image_size must be (height, width) in pixels, or one int, found {image_size!r}"
        )
    height, width = sizes
    return int(height), int(width)
