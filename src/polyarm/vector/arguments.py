"""What `make_vec` is given, checked before anything is looked up or started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
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
        duration(name, arguments[name])
    if not isinstance(arguments["display"], str):
        raise InvalidCall(f"display must be a name, found {arguments['display']!r}")
    if not isinstance(arguments["observer_options"] or {}, Mapping):
        found = arguments["observer_options"]
        raise InvalidCall(f"observer_options must be a dict or None, found {found!r}")
    _check_slots("observed_slots", arguments["observed_slots"], int(arguments["num_envs"]))
    for name, valid in _CHOICES.items():
        if arguments[name] not in valid:
            raise UnknownName(name, str(arguments[name]), valid)
    hosts = str(arguments["hosts"])
    if hosts not in _HOSTS and not hosts.startswith("ray:"):
        raise UnknownName("hosts", hosts, (*_HOSTS, "ray:HOST:PORT"))


def duration(name: str, value: Any) -> float:
    """A duration in seconds, above 0.

    Raises:
        InvalidCall: Something else.
    """
    try:
        seconds = 0.0 if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if not seconds > 0:
        raise InvalidCall(f"{name} must be a number of seconds above 0, found {value!r}")
    return seconds


def _check_slots(name: str, slots: Any, num_envs: int) -> None:
    known = slots is None or (isinstance(slots, Iterable) and all(map(is_int, slots)))
    if not known or (slots is not None and not all(0 <= slot < num_envs for slot in slots)):
        raise InvalidCall(
            f"{name} must be None or numbers of slots, 0 to {num_envs - 1}, found {slots!r}"
        )


def _check_count(name: str, value: Any, least: int, otherwise: str = "") -> None:
    if not is_int(value) or int(value) < least:
        raise InvalidCall(f"{name} must be {otherwise}an int of at least {least}, found {value!r}")


def is_int(value: Any) -> bool:
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
    pair = (image_size, image_size) if is_int(image_size) else image_size
    sizes = tuple(pair) if isinstance(pair, Iterable) else ()
    if len(sizes) != 2 or not all(is_int(size) and int(size) > 0 for size in sizes):
        raise InvalidCall(
            f"image_size must be (height, width) in pixels, or one int, found {image_size!r}"
        )
    height, width = sizes
    return int(height), int(width)
