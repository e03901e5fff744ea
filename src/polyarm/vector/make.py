"""`make_vec`: from task names to a running vector env."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from polyarm import registry
from polyarm.contracts import EnvSpec, ForkMode
from polyarm.display import Display
from polyarm.errors import InvalidCall, UnknownName
from polyarm.vector import host, screens
from polyarm.vector.arguments import Start, camera_names, check_arguments, frame_size
from polyarm.vector.block_env import VectorOptions
from polyarm.vector.engine import Engine
from polyarm.vector.env import VectorEnv
from polyarm.vector.episodes import check_default_seed
from polyarm.vector.plans import SlotPlan
from polyarm.vector.serial import SerialEngine
from polyarm.vector.settings import Autoreset, Frames, Infos, SlotSettings
from polyarm.vector.tasks import (
    TaskLike,
    different_episodes,
    expand_tasks,
    is_name,
    know_indices,
    no_task,
    pack_factory,
    tell_left_out,
)
from polyarm.vector.workers import WorkerEngine
from polyarm.vector.workerstate import WorkerOptions

_OF_A_CLUSTER = "polyarm.distributed.ray.envs:RayVectorEnv"
"""Loaded by its name: what runs on many machines is built upon this, not the other way round."""
_CAREFUL_FIRST: tuple[ForkMode, ...] = ("never", "imports", "built")
_STARTS: dict[str, ForkMode] = {"built": "built", "imports": "imports", "fresh": "never"}

_LONG, _ALIKE = 8, 0.85
"""An argument that is shorter resembles too many options of envs: frames, hosts, tasks."""


def make_vec(  # noqa: PLR0913  the whole public surface, keyword-only
    tasks: TaskLike | Sequence[TaskLike],
    *,
    num_envs: int,
    num_workers: int | None = None,
    cameras: str | Sequence[str] = (),
    image_size: int | tuple[int, int] | None = None,
    ring: int = 2,
    copy: bool = False,
    frames: Frames = "last",
    autoreset: Autoreset = "next_step",
    start: Start = "auto",
    display: str = "auto",
    infos: Infos = "auto",
    step_timeout_s: float = 60.0,
    reset_timeout_s: float = 120.0,
    build_timeout_s: float = 300.0,
    max_restarts: int = 3,
    memory_limit: int | None = None,
    clip_actions: bool = False,
    check_lifetimes: bool = False,
    pin_workers: bool = False,
    observer: str = "",
    observer_options: Mapping[str, Any] | None = None,
    observed_slots: Sequence[int] | None = None,
    seed: int | None = None,
    hosts: str = "local",
    **suite_options: Any,
) -> VectorEnv:
    """Make a vector env of ``num_envs`` slots.

    Args:
        tasks: A task (``"metaworld/reach-v3"``, ``"gym/CartPole-v1"``), a set of tasks
            (``"metaworld/mt10"``), a callable that builds an env, a ``"module:callable"`` string,
            or a list of these, dealt to the slots in turn.
        num_envs: Number of slots, N.
        num_workers: Worker processes; None for one per slot, 0 to run in this process.
        cameras: Cameras whose frames the observations carry: a list of names, or one name.
        image_size: ``(height, width)`` of each frame, or one int for both; None for the suite's,
            mostly 256 x 256.
        ring: Rows of the block, T; a view of an observation is valid until the slot's T-th
            following send.
        copy: Return independent observation arrays instead of views of the block.
        frames: ``"last"``: the observation at a chunk's end; ``"every"``: all K of them;
            ``"none"``: no frame keys at all.
        autoreset: ``"next_step"``, ``"same_step"`` or ``"disabled"``, as in Gymnasium.
        start: How workers come to life: forked from a ``"built"`` env, forked after
            ``"imports"``, as ``"fresh"`` interpreters, or as the suite says (``"auto"``).
        display: ``"auto"``, ``"egl"``, ``"osmesa"``, ``"xvfb"`` (an X server for each worker),
            ``"xvfb-shared"`` (one for all), ``"external"`` (yours: ``$DISPLAY``, or
            ``"external:99"`` for screen ``:99.<local rank>``) or ``"none"``. Gymnasium envs and
            callables, which may render without cameras, find one that works with ``"auto"``.
        infos: ``"auto"`` sends numeric keys every step and the rest at resets and ends;
            ``"full"`` pickles everything every step.
        step_timeout_s: Limit of one env step, after which its worker is killed and replaced. One
            that computes, or waits for a core, gets more time: until it has used this much of a
            core's, and ten times the limit at most.
        reset_timeout_s: The same for resets.
        build_timeout_s: The same for building an env.
        max_restarts: Failures in a row, without a finished episode, that a slot is forgiven.
        memory_limit: Bytes of private memory after which a worker is killed and replaced; what it
            shares with others it was forked beside is not private.
        clip_actions: Clip Box actions to their bounds; else they pass as they are.
        check_lifetimes: Spoil rows whose views have expired (NaN or 0xDB), to find stale reads.
        pin_workers: Bind each worker to one core, in turn.
        observer: ``"module:factory"`` of an `Observer` that watches each env in its worker, such
            as ``"polyarm.recording.video:video_recorder"``.
        observer_options: Keyword arguments of the factory.
        observed_slots: Slots that have an observer; None for all.
        seed: Default seed of the first reset; for suites below 2**31.
        hosts: ``"local"``, or ``"ray"`` to deal the slots to the nodes of a Ray cluster: the one
            that runs, or as for ``polyarm eval`` ``"ray:local"`` or ``"ray:HOST:PORT"``.
        **suite_options: Options of the suite, such as ``success="last"`` for Meta-World.

    Returns:
        A running `VectorEnv`; use it as a context manager or call ``close()``. With ``hosts="ray"``
        a `RayVectorEnv`, which has its calls but for `send` and `recv`, `history`, `to_torch` and
        `switch_task`.

    Raises:
        UnknownName: For a suite, task, camera or option that does not exist.
        InvalidCall: For an argument that makes no sense, before any process is started.
        BuildError: When an env cannot be built.
        HostLimit: When the shared block does not fit in memory, the workers not into the limit on
            open files, or the envs not into a cluster.
    """
    arguments = dict(locals())  # while there is nothing else
    check_arguments(arguments)
    if hosts != "local":
        return _on_a_cluster(arguments)
    plans = _plans(arguments)
    dealt = [plan.spec for plan in plans]
    suites = [registry.load(plan.location) for plan in plans]
    workers = num_envs if num_workers is None else min(num_workers, num_envs)
    screen = screens.choose_for(display, suites, dealt, in_process=workers == 0)
    screens.check_processes(suites, workers)
    interpreter = screens.interpreter(suites, dealt)
    mode = _mode("fresh" if interpreter else start, [suite.fork for suite in suites])
    threads = host.thread_limits(workers, forked=mode != "never") if workers else {}
    settings = SlotSettings(
        num_envs=num_envs,
        num_workers=max(1, workers),
        rows=ring + 1 if check_lifetimes else ring,
        frames=frames,
        autoreset=autoreset,
        infos=infos,
    )
    options = WorkerOptions(
        mode=mode,
        environment={**threads, **screen.env, **screens.variables(suites, dealt)},
        step_timeout_s=float(step_timeout_s),
        reset_timeout_s=float(reset_timeout_s),
        build_timeout_s=float(build_timeout_s),
        max_restarts=max_restarts,
        memory_limit=memory_limit,
        entropy=seed,
        pin=pin_workers,
        x_server=screen.x_server,
        interpreter=interpreter,
    )
    episodic = know_indices(dealt)
    delivery = VectorOptions(
        copy=copy,
        check_lifetimes=check_lifetimes,
        clip_actions=clip_actions,
        episodic=episodic,
        seed=seed,
        scatter=mode == "built" and workers > 0 and not episodic,
    )
    check_default_seed(seed, num_envs, episodic=episodic)
    engine = _engine(plans, workers, settings, options)
    planner = partial(_plan, arguments, episodic=episodic)
    provenance = partial(_provenance, screen)
    return VectorEnv(engine, settings, delivery, planner, provenance)


def _plans(arguments: Mapping[str, Any]) -> list[SlotPlan]:
    """What each slot is to hold; the slots of one task share its spec, which may be large."""
    tasks, num_envs = expand_tasks(arguments["tasks"]), arguments["num_envs"]
    tell_left_out(tasks, num_envs)
    specs: dict[str | int, EnvSpec] = {}
    plans = []
    for slot in range(num_envs):
        task = tasks[slot % len(tasks)]
        key = task if isinstance(task, str) else id(task)
        if key not in specs:
            specs[key] = _specify(arguments, task)
        plans.append(_slot_plan(arguments, slot, specs[key]))
    return plans


def _plan(arguments: Mapping[str, Any], slot: int, task: TaskLike, *, episodic: bool) -> SlotPlan:
    """What a slot is to hold instead, by the arguments of `make_vec`.

    Raises:
        InvalidCall: Its episodes are counted otherwise than those of the batch.
    """
    spec = _specify(arguments, task)
    if registry.load(spec.suite).episodic != episodic:
        raise different_episodes(spec.name, "the others of this batch", episodic=not episodic)
    return _slot_plan(arguments, slot, spec)


def _specify(arguments: Mapping[str, Any], task: TaskLike) -> EnvSpec:
    suite_options = arguments["suite_options"]
    try:
        return specify(task, arguments["cameras"], arguments["image_size"], suite_options)
    except UnknownName as error:
        if error.name not in suite_options:
            raise
        valid = (*error.valid, *inspect.signature(make_vec).parameters)
        raise error.meaning(difflib.get_close_matches(error.name, valid)) from None


def _slot_plan(arguments: Mapping[str, Any], slot: int, spec: EnvSpec) -> SlotPlan:
    observed = arguments["observed_slots"]
    if arguments["observer"] and (observed is None or slot in observed):
        options = dict(arguments["observer_options"] or {})
        spec = replace(spec, observer=arguments["observer"], observer_options=options)
    elif arguments["frames"] == "none":
        spec = replace(spec, cameras=())  # nobody looks, so nothing is set up to render
    return SlotPlan(slot, registry.locate(spec.suite), spec)


def _engine(
    plans: Sequence[SlotPlan], workers: int, settings: SlotSettings, options: WorkerOptions
) -> Engine:
    if workers:
        return WorkerEngine(plans, _groups(len(plans), workers), settings, options)
    if options.interpreter is not None:
        raise InvalidCall(
            f"num_workers=0 runs envs in this process, but they need {options.interpreter}; "
            "leave num_workers out"
        )
    return SerialEngine(
        plans,
        settings,
        options.environment,
        options.max_restarts,
        own_screen=bool(options.x_server),
    )


def _provenance(screen: Display, plan: SlotPlan) -> Mapping[str, Any]:
    """Versions and settings that shape the episodes of a plan, whose frames are drawn there."""
    description = registry.load(plan.location).describe(plan.spec)
    own = {"task": plan.spec.name} if description is None else description.provenance
    return {
        **own,
        "display": screen.name,
        "renderer": screen.description,
        "display_variables": dict(screen.env),
    }


def _on_a_cluster(arguments: dict[str, Any]) -> VectorEnv:
    module, _, name = _OF_A_CLUSTER.partition(":")
    where = arguments.pop("hosts").partition(":")[2] or "auto"
    made: VectorEnv = getattr(importlib.import_module(module), name)(where, arguments)
    return made


def describe_display(display: str, suites: Sequence[str]) -> str:
    """What would render frames of these suites with this choice of display; it shapes pixels."""
    screen = screens.choose(display, [registry.load(name) for name in suites], frames=True)
    return f"{screen.name}: {screen.description}"


def specify(
    task: TaskLike,
    cameras: str | Sequence[str],
    image_size: int | tuple[int, int] | None,
    options: dict[str, Any],
) -> EnvSpec:
    """What is to be built for a task, complete and checked; without a size, the suite's.

    Raises:
        UnknownName: For a suite, task, camera or option that does not exist.
        InvalidCall: For what is no task, or several, no list of cameras or no size.
    """
    if is_name(task):
        (suite, name), *others = registry.resolve(task)
        if others:
            raise InvalidCall(f"{task!r} is a set of tasks; an env has one of them")
    elif not (isinstance(task, str) or callable(task)):
        raise no_task(task)
    else:
        suite = "callable"
        name = task if isinstance(task, str) else getattr(task, "__qualname__", repr(task))
        options = {**options, "factory": pack_factory(name, task)}
    if image_size is None:
        image_size = registry.defaults(suite, options)["image_size"]
    spec = EnvSpec(suite, name, camera_names(cameras), frame_size(image_size), options)
    checked = registry.load(spec.suite).check(spec)
    _refuse_misspelt(checked, options)
    return checked


def _refuse_misspelt(spec: EnvSpec, options: Iterable[str]) -> None:
    """Refuse options that resemble an argument of `make_vec`, where the suite has no list of its.

    Raises:
        UnknownName: For one of which the suite does not know that it has a meaning.
    """
    takes = getattr(registry.load(spec.suite), "takes", None)
    if takes is None:
        return
    own = [name for name in inspect.signature(make_vec).parameters if len(name) >= _LONG]
    for option in options:
        meant = difflib.get_close_matches(option, own, cutoff=_ALIKE)
        if meant and option not in own and not takes(spec, option):
            hint = "If it is the env's own, pass a callable that makes the env."
            raise UnknownName("option", option, (), hint, meant)


def _mode(start: str, forks: Sequence[ForkMode]) -> ForkMode:
    """The most careful mode that any of the suites asks for, unless the user chose one."""
    if start != "auto":
        if "never" in forks and start != "fresh":
            raise InvalidCall(
                f"start={start!r} forks workers, which a simulator among these suites does not "
                "survive; leave start out"
            )
        return _STARTS[start]
    return min(forks, key=_CAREFUL_FIRST.index)


def _groups(num_envs: int, num_workers: int) -> list[tuple[int, ...]]:
    """Slots of each worker: neighbours together, sizes differing by one at most."""
    bounds = [num_envs * worker // num_workers for worker in range(num_workers + 1)]
    return [tuple(range(low, high)) for low, high in pairwise(bounds)]
