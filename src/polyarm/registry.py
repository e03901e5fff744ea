"""Names of suites and tasks, and what they stand for.

Importing this module imports no suite; a suite is imported when it is first asked for.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from polyarm.contracts import EnvSpec, Suite
from polyarm.errors import BrokenSuite, MissingExtra, PolyarmError, UnknownName

GROUP = "polyarm.suites"
"""Entry point group in which other distributions announce their suites."""

_BUILT_IN = {
    "gym": "polyarm.suites.gymnasium:GymnasiumSuite",
    "libero": "polyarm.suites.libero:Libero",
    "metaworld": "polyarm.suites.metaworld:MetaWorld",
    "rlbench": "polyarm.suites.rlbench:RLBench",
}

# Callables handed to make_vec have no tasks that a user could name, and toys are for tests.
_UNLISTED = {
    "callable": "polyarm.suites.gymnasium:CallableSuite",
    "toy": "polyarm.testing.toy_suite:ToySuite",
}


def suite_names() -> list[str]:
    """Names of all suites, built in and announced by entry points, sorted."""
    return sorted({*_BUILT_IN, *_announced()})


def locate(name: str) -> str:
    """Where the suite ``name`` lives, as ``"module:attribute"``.

    The location can be loaded in another process without scanning entry points again.

    Raises:
        UnknownName: There is no such suite.
        BrokenSuite: What is announced is no location.
    """
    # Built-in names come first: scanning entry points takes tens of milliseconds.
    location = _BUILT_IN.get(name) or _UNLISTED.get(name) or _announced().get(name)
    if location is None:
        raise UnknownName("suite", name, suite_names())
    if ":" not in location:
        raise BrokenSuite(
            f"the entry point {name!r} announces {location!r}, expected 'module:attribute'"
        )
    return location


@cache
def load(name: str) -> Suite:
    """The suite with this name or ``"module:attribute"`` location; one instance per process.

    Raises:
        UnknownName: There is no such suite.
        MissingExtra: The suite's module, or something it imports, is not installed.
        BrokenSuite: It cannot be loaded, or is no suite of this name.
    """
    if ":" in name:
        return _load_from(name)
    location = locate(name)
    suite = load(location)
    if suite.name != name:
        raise BrokenSuite(
            f"the entry point {name!r} announces {location!r}, a suite that calls itself"
            f" {suite.name!r}; its tasks could not be found by either name"
        )
    return suite


def _load_from(location: str) -> Suite:
    module_name, _, attribute = location.partition(":")
    with _told(location, "imported"):
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise MissingExtra(
                f"the suite at {location!r} cannot be imported: {error}. "
                f"Install what provides {error.name or module_name!r}."
            ) from error
    found = getattr(module, attribute, None)
    if found is None:
        names = [other for other in vars(module) if not other.startswith("_")]
        raise UnknownName(f"suite attribute of {module_name}", attribute, names)
    with _told(location, "made"):
        suite: Suite = found() if isinstance(found, type) else found
    if missing := lacking(suite):
        raise BrokenSuite(
            f"the suite at {location!r} lacks {', '.join(missing)}; see polyarm.contracts.Suite"
        )
    return suite


@contextlib.contextmanager
def _told(location: str, what: str) -> Iterator[None]:
    """Name the suite whose code raises."""
    try:
        yield
    except PolyarmError:
        raise
    except Exception as error:
        raise BrokenSuite(
            f"the suite at {location!r} cannot be {what}: {type(error).__name__}: {error}"
        ) from error


def lacking(suite: Any) -> list[str]:
    """What a suite must have and this one has not."""
    methods = [name for name, value in vars(Suite).items() if callable(value)]
    members = [*Suite.__annotations__, *(name for name in methods if not name.startswith("_"))]
    return [member for member in members if not hasattr(suite, member)]


def resolve(name: str) -> list[tuple[str, str]]:
    """Turn the name of a task or of a set of tasks into ``(suite, task)`` pairs.

    Args:
        name: ``"metaworld/reach-v3"``, ``"metaworld/mt10"``, ``"gym/CartPole-v1"`` …

    Returns:
        One pair for a task, one pair per member for a set, in the set's order.

    Raises:
        UnknownName: There is no such suite, or it has no such task or set.
    """
    suite_name, slash, task = name.partition("/")
    if not slash or not task:
        known = [f"{suite}/<task>" for suite in suite_names()]
        hint, meant = "A task's name starts with its suite's.", [] if slash else _found(name)
        raise UnknownName("task", name, known, hint, meant)
    suite = load(suite_name)
    members = suite.sets().get(task)
    if members is not None:
        return [(suite_name, member) for member in members]
    # A task may have several names; what counts is the one that its suite makes of them.
    try:
        return [(suite_name, suite.check(EnvSpec(suite=suite_name, task=task)).task)]
    except UnknownName as error:
        raise error.meaning(_found(task)) from None


def _found(task: str) -> list[str]:
    """Full names of tasks and sets that go by this name in any suite."""
    names = []
    for suite_name in [] if ":" in task else suite_names():
        # It has no such task, or is broken, which is not what is asked here.
        with contextlib.suppress(Exception):
            suite = load(suite_name)
            if task not in suite.sets():
                suite.check(EnvSpec(suite=suite_name, task=task))
            names.append(f"{suite_name}/{task}")
    return names


def defaults(suite: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for a suite with these options where the user gives nothing.

    Returns:
        ``episodes`` per task and ``image_size`` of frames.
    """
    own = getattr(load(suite), "defaults", None)
    return {"episodes": 10, "image_size": (256, 256), **(own(options) if own else {})}


@cache
def _announced() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}
