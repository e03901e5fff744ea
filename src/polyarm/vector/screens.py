"""Which display, variables and interpreter the suites of a vector env call for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyarm import display as displays
from polyarm.contracts import EnvSpec, Suite
from polyarm.display import Display
from polyarm.errors import InvalidCall


def choose(display: str, suites: Sequence[Suite], *, frames: bool) -> Display:
    """The display that serves all suites; an X server where one of them insists on it.

    Raises:
        DisplayError: The asked one does not work, or none does.
        UnknownName: There is no such display.
    """
    return displays.select(display, frames=frames, needs_x=_need_x(suites))


def choose_for(
    display: str, suites: Sequence[Suite], specs: Sequence[EnvSpec], *, in_process: bool
) -> Display:
    """The display for these envs, also for those that render without being asked for frames.

    Args:
        display: What the user chose.
        suites: The suite of each env.
        specs: The envs.
        in_process: Whether they run in the trainer's own process, which may render later.

    Raises:
        DisplayError: The asked one does not work, or none does.
        UnknownName: There is no such display.
    """
    frames = any(spec.cameras for spec in specs)
    pairs = zip(suites, specs, strict=True)
    asks = [(ask, spec) for suite, spec in pairs if (ask := getattr(suite, "renders", None))]
    if display == "auto" and not frames and asks and not _need_x(suites):
        screen = displays.offer(renders=any(ask(spec) for ask, spec in asks))
    else:
        screen = choose(display, suites, frames=frames)
    if not in_process:
        return screen
    # MuJoCo that is imported without OpenGL stays so, and that process is not ours alone.
    kept = {name: value for name, value in screen.env.items() if value != "disable"}
    return replace(screen, env=kept)


def _need_x(suites: Sequence[Suite]) -> bool:
    return any(getattr(suite, "needs_x", False) for suite in suites)


def variables(suites: Sequence[Suite], specs: Sequence[EnvSpec]) -> dict[str, str]:
    """What workers need in their environment beside the display's variables."""
    wanted: dict[str, str] = {}
    for suite, spec in zip(suites, specs, strict=True):
        if (ask := getattr(suite, "environment", None)) is not None:
            own: Mapping[str, str] = ask(spec)
            wanted.update(own)
    return wanted


def interpreter(suites: Sequence[Suite], specs: Sequence[EnvSpec]) -> str | None:
    """The Python that workers run in; None for the trainer's own.

    Raises:
        InvalidCall: The suites want different ones.
    """
    wanted: set[str | None] = set()
    for suite, spec in zip(suites, specs, strict=True):
        ask = getattr(suite, "interpreter", None)
        wanted.add(None if ask is None else ask(spec))
    if len(wanted) > 1:
        named = ", ".join(sorted(one or "the trainer's own" for one in wanted))
        raise InvalidCall(f"one vector env cannot mix interpreters: {named}; make one for each")
    return next(iter(wanted), None)


def check_processes(suites: Sequence[Suite], num_workers: int) -> None:
    """Refuse to share a process where a suite's simulator cannot.

    Raises:
        InvalidCall: Fewer workers than envs of such a suite.
    """
    alone = [suite for suite in suites if getattr(suite, "one_per_process", False)]
    if alone and max(1, num_workers) < len(suites):
        raise InvalidCall(
            f"{alone[0].name} runs one simulator per process, so {len(suites)} envs need "
            f"{len(suites)} workers, found num_workers={num_workers}; leave num_workers out"
        )
