"""What tasks may be: names, sets of them, callables; and which of them share a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import cloudpickle
import gymnasium

from polyarm import registry
from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall, UnknownName
from polyarm.vector.user_warnings import warn_user

TaskLike = str | Callable[[], gymnasium.Env[Any, Any]]


def expand_tasks(tasks: TaskLike | Sequence[TaskLike]) -> list[TaskLike]:
    """Single tasks, with sets spelled out.

    Raises:
        UnknownName: There is no such suite, task or set.
        InvalidCall: There are none, or something is no task.
    """
    if is_name(tasks):
        return [f"{suite}/{task}" for suite, task in registry.resolve(tasks)]
    if isinstance(tasks, str) or callable(tasks):
        return [tasks]
    if isinstance(tasks, gymnasium.Env) or not isinstance(tasks, Iterable):
        raise no_task(tasks)
    expanded = [one for task in tasks for one in expand_tasks(task)]
    if not expanded:
        raise InvalidCall("no tasks were given")
    return expanded


def tell_left_out(tasks: Sequence[TaskLike], num_envs: int) -> None:
    """Warn of tasks that no slot plays."""
    left_out = tasks[num_envs:]
    if left_out:
        more = " …" if len(left_out) > 3 else ""
        warn_user(
            f"{num_envs} slots play {num_envs} of {len(tasks)} tasks; none is left for"
            f" {', '.join(map(str, left_out[:3]))}{more}"
        )


def is_name(task: Any) -> TypeGuard[str]:
    """Whether this is to be looked up in a suite; ``"module:callable"`` is imported."""
    return isinstance(task, str) and ("/" in task or ":" not in task)


def no_task(found: Any) -> InvalidCall:
    """The refusal of what is no task."""
    an_env = isinstance(found, gymnasium.Env)
    what = f"an instance of {type(found).__name__}" if an_env else repr(found)
    hint = ": pass a callable that builds the env where it runs" if an_env else ""
    return InvalidCall(
        f"a task is a name or a callable, and tasks may be a list; found {what}{hint}"
    )


def know_indices(specs: Sequence[EnvSpec]) -> bool:
    """Whether envs know episode indices, or only seeds.

    Raises:
        InvalidCall: Some do, and others do not.
    """
    known = {spec.name: registry.load(spec.suite).episodic for spec in specs}
    if len(set(known.values())) > 1:
        by_index, by_seed = ([n for n, e in known.items() if e is kind] for kind in (True, False))
        raise different_episodes(by_index[0], by_seed[0], episodic=True)
    return all(known.values())


def different_episodes(name: str, other: str, *, episodic: bool) -> InvalidCall:
    """The refusal of a task that counts its episodes otherwise than another one."""
    own, others = ("indices", "seeds") if episodic else ("seeds", "indices")
    return InvalidCall(
        f"{name} cannot share a batch with {other}: its episodes have {own}, theirs {others}; make"
        f" a vector env for each kind"
    )


def pack_factory(name: str, task: str | Callable[[], gymnasium.Env[Any, Any]]) -> bytes | str:
    """What makes an env in another process; what a script defines is unknown there, and travels.

    Raises:
        InvalidCall: It cannot be sent there.
        UnknownName: The script defines no such callable.
    """
    if isinstance(task, str):
        module, _, attribute = task.partition(":")
        if module != "__main__":
            return task
        known = vars(sys.modules["__main__"])
        if attribute not in known:
            callables = [name for name, value in known.items() if callable(value)]
            raise UnknownName("callable of this script", attribute, callables)
        task = known[attribute]
    try:
        packed: bytes = cloudpickle.dumps(task)
    except Exception as error:
        raise InvalidCall(
            f"the callable {name} cannot be sent to a worker: {type(error).__name__}: {error}; have"
            f" it make what cannot be pickled where it runs, or name it as 'module:callable'"
        ) from error
    return packed
