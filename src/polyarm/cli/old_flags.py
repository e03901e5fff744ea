"""Command lines of the RLBench runners that polyarm succeeds, in polyarm's own words.

``polyarm bench``, ``debug`` and ``train`` take what ``rlbench_vec_env.py``,
``mp_rlbench_env_test.py`` and ``rl_vec_env.py`` took. Arguments in, arguments out: nothing is
looked up, run or printed here. Flags that need no translation are in no table.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyarm.errors import InvalidCall, UnknownName

COMMANDS = ("bench", "debug", "train")
"""The modes of the old runner; each is a command now."""

RENAMED = {
    "--task-class": "--task",
    "--steps": "--max-steps",
    "--render-backend": "--display",
}
"""Flags with another name, in every command."""

OTHERWISE: dict[str, dict[str, tuple[str, ...]]] = {
    "bench": {},
    "debug": {
        "--action-chunk": ("--chunk",),
        "--record": (),
        "--no-rgb": ("--no-video",),
        "--fast": ("--no-video",),
    },
    "train": {"--no-rgb": (), "--no-video": (), "--fast": ()},
}
"""Flags that a command calls otherwise, or follows without being told."""

CAMERAS = ("front", "wrist")
"""What the old runners rendered, unless they were told not to."""

Flag = tuple[str, list[str]]
"""A flag and the words behind it; words before any flag belong to ""."""


def translate(arguments: Sequence[str]) -> list[str]:
    """A command line as polyarm's parser takes it.

    - Underscores in a flag's name become dashes.
    - ``--mode debug`` chooses the command, whichever one it was given to.
    - ``--task OpenDrawer`` means ``rlbench/OpenDrawer``, rendered as the old runners did: by two
      cameras, unless cameras are named or frames are turned off.
    - ``--copy_obs 0`` or ``1`` is the flag ``--copy-obs``, absent or present.

    Args:
        arguments: All that follows ``polyarm``; other commands than `COMMANDS` pass unchanged.

    Raises:
        UnknownName: ``--mode`` names no mode.
        InvalidCall: ``--mode`` has no value, or ``--copy_obs`` has one beside 0 and 1.
    """
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments)
    flags = _read(arguments[1:])
    command = _command(arguments[0], flags)
    names = OTHERWISE[command]
    words = [command]
    for flag, values in _with_copies(command, _with_suites(command, flags)):
        if flag != "--mode":
            words += [*names.get(flag, (flag,) if flag else ()), *values]
    return words


def _read(words: Sequence[str]) -> list[Flag]:
    flags: list[Flag] = [("", [])]
    for word in words:
        if not word.startswith("--"):
            flags[-1][1].append(word)
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        flags.append((RENAMED.get(name, name), [value] if equals else []))
    return flags


def _command(command: str, flags: Sequence[Flag]) -> str:
    for flag, values in flags:
        if flag == "--mode":
            command = " ".join(values)
            if not values:
                raise InvalidCall(f"--mode takes one of {', '.join(COMMANDS)}")
            if command not in COMMANDS:
                raise UnknownName("mode", command, COMMANDS)
    return command


def _with_copies(command: str, flags: Sequence[Flag]) -> list[Flag]:
    """``--copy-obs`` without a value, if the last one asks for it; only bench ever copies."""
    wanted = "0"
    for flag, values in flags:
        if flag == "--copy-obs":
            wanted = " ".join(values) or "1"
            if wanted not in ("0", "1"):
                raise InvalidCall(f"--copy_obs takes 0 or 1, or stands alone; found {wanted!r}")
    others = [(flag, values) for flag, values in flags if flag != "--copy-obs"]
    return [*others, ("--copy-obs", [])] if wanted == "1" and command == "bench" else others


def _with_suites(command: str, flags: Sequence[Flag]) -> list[Flag]:
    """Plain tasks with their suite, and with the cameras that they had."""
    translated = [
        (flag, [_with_suite(value) for value in values] if flag == "--task" else values)
        for flag, values in flags
    ]
    names = {flag for flag, _ in flags}
    rendered = command != "train" and not names & {"--cameras", "--no-rgb", "--fast"}
    if rendered and translated != list(flags):
        translated.append(("--cameras", list(CAMERAS)))
    return translated


def _with_suite(tasks: str) -> str:
    """``rlbench/`` before each plain name; ``open_drawer:3`` is one, ``module:callable`` is not."""
    named = []
    for task in tasks.split(","):
        _, colon, rest = task.partition(":")
        is_callable = colon and not (rest.strip().isdecimal() or rest.strip() == "all")
        plain = task.strip() and "/" not in task and not is_callable
        named.append(f"rlbench/{task.strip()}" if plain else task)
    return ",".join(named)
