"""Command lines of the RLBench runners that polyarm succeeds, in polyarm's own words.

``polyarm bench``, ``debug`` and ``train`` take what ``rlbench_vec_env.py``,
``mp_rlbench_env_test.py`` and ``rl_vec_env.py`` took, whose modes shared one parser. Arguments in,
arguments and remarks out: nothing is looked up, run or printed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyarm.errors import InvalidCall, UnknownName

COMMANDS = ("bench", "debug", "train")
"""The modes of the old runner; each is a command now."""

OLD = {
    "--mode": 1, "--task": 1, "--task_class": 1, "--num_envs": 1, "--num_envs_total": 1,
    "--steps": 1, "--max_steps": 1, "--action_chunk": 1, "--arm_mode": 1, "--robot_setup": 1,
    "--pos_noise_std": 1, "--image_size": 2, "--copy_obs": 1, "--no_rgb": 0, "--fast": 0,
    "--idle_fps": 1, "--record": 0, "--output_dir": 1, "--video_all": 0, "--video_stride": 1,
    "--fps": 1, "--no_video": 0, "--render_backend": 1, "--profile_timing": 0, "--ddp_bind_gpu": 0,
    "--train_updates": 1, "--train_lr": 1, "--train_hidden": 1,
}  # fmt: skip
"""Flags of the old runners as they were written, and how many words follow each."""

TELLING = {
    "--mode", "--steps", "--task_class", "--render_backend",
    "--arm_mode", "--robot_setup", "--idle_fps", "--pos_noise_std",
}  # fmt: skip
"""Those that nobody writes who does not mean RLBench; the others are polyarm's, too."""

RENAMED = {
    "--task-class": "--task",
    "--steps": "--max-steps",
    "--render-backend": "--display",
}
"""Flags with another name, in every command."""

OTHERWISE: dict[str, dict[str, tuple[str, ...]]] = {
    "bench": {},
    "debug": {"--action-chunk": ("--chunk",), "--record": (), "--no-rgb": ("--no-video",)},
    "train": {"--no-rgb": (), "--no-video": ()},
}
"""Flags that a command calls otherwise, or follows without being told."""

_OF_TRAIN = ("--train-updates", "--train-lr", "--train-hidden")
_OF_FILMS = ("--record", "--output-dir", "--video-all", "--video-stride", "--fps")
MEANINGLESS: dict[str, tuple[str, ...]] = {
    "bench": _OF_TRAIN,
    "debug": (*_OF_TRAIN, "--pos-noise-std", "--profile-timing", "--copy-obs"),
    "train": (*_OF_FILMS, "--pos-noise-std", "--profile-timing", "--copy-obs"),
}
"""Flags of other modes: as old flags they are dropped with a remark."""

TASK = "rlbench/open_drawer"
"""What old flags without a task run."""

CAMERAS = ("front", "wrist")
"""What the old runners rendered, unless they were told not to."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag and the words behind it; words before any flag belong to "".

    Attributes:
        written: As the user wrote it.
        name: In polyarm's spelling.
        values: The words.
    """

    written: str
    name: str
    values: tuple[str, ...] = ()


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line as polyarm's parser takes it, and what the user should know about that.

    - Underscores in a flag's name become dashes.
    - ``--mode debug`` chooses the command, whichever one it was given to.
    - ``--task OpenDrawer`` means ``rlbench/OpenDrawer``, rendered as the old runners did: by two
      cameras, unless cameras are named or frames are turned off. So do `TELLING` flags without a
      task.
    - ``--copy_obs 0`` or ``1`` is the flag ``--copy-obs``, absent or present.
    - An old flag that means nothing to the command is left out.

    Args:
        arguments: All that follows ``polyarm``; other commands than `COMMANDS` pass unchanged.

    Raises:
        UnknownName: ``--mode`` names no mode.
        InvalidCall: ``--mode`` has no value, ``--copy_obs`` has one beside 0 and 1, or contradicts
            ``--fast``.
    """
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments), []
    flags = _read(arguments[1:])
    command = _command(arguments[0], flags)
    flags, remarks = _with_task(flags)
    flags = _with_copies(command, _with_suites(command, flags))
    words = [command]
    for flag in flags:
        if flag.name in MEANINGLESS[command] and flag.written in OLD:
            remark = f"{flag.written} has no meaning for {command} and is ignored"
            remarks += [] if remark in remarks else [remark]
            words += flag.values[OLD[flag.written] :]
        elif flag.name != "--mode":
            words += OTHERWISE[command].get(flag.name, (flag.name,) if flag.name else ())
            words += flag.values
    return words, remarks


def _read(words: Sequence[str]) -> list[Flag]:
    flags = [Flag("", "")]
    for word in words:
        if not word.startswith("--"):
            flags[-1] = replace(flags[-1], values=(*flags[-1].values, word))
            continue
        written, equals, value = word.partition("=")
        name = written.replace("_", "-")
        flags.append(Flag(written, RENAMED.get(name, name), (value,) if equals else ()))
    return flags


def _command(command: str, flags: Sequence[Flag]) -> str:
    for flag in flags:
        if flag.name == "--mode":
            command = " ".join(flag.values)
            if not flag.values:
                raise InvalidCall(f"--mode takes one of {', '.join(COMMANDS)}")
            if command not in COMMANDS:
                raise UnknownName("mode", command, COMMANDS)
    return command


def _with_task(flags: list[Flag]) -> tuple[list[Flag], list[str]]:
    """The task of old flags that name none, in their own words, and the remark on it."""
    old = [flag.written for flag in flags if flag.written in TELLING]
    if not old or any(flag.name == "--task" for flag in flags):
        return flags, []
    plain = TASK.partition("/")[2]
    remark = f"{old[0]} is a flag of the RLBench runners, and no task is given: running {TASK}"
    return [*flags, Flag("--task", "--task", (plain,))], [remark]


def _with_copies(command: str, flags: list[Flag]) -> list[Flag]:
    """``--copy-obs`` without a value, if the last one asks for it; nobody else copies anyway."""
    given = [flag for flag in flags if flag.name == "--copy-obs"]
    if not given:
        return flags
    wanted = " ".join(given[-1].values) or "1"
    if wanted not in ("0", "1"):
        raise InvalidCall(f"--copy_obs takes 0 or 1, or stands alone; found {wanted!r}")
    others = [flag for flag in flags if flag.name != "--copy-obs"]
    if wanted == "0":
        return others
    if command != "bench" and any(flag.name == "--fast" for flag in flags):
        raise InvalidCall("--fast means copy_obs=0, found 1; leave out one of them")
    return [*others, Flag(given[-1].written, "--copy-obs")]


def _with_suites(command: str, flags: list[Flag]) -> list[Flag]:
    """Plain tasks with their suite, and with the cameras that they had."""
    translated = [
        replace(flag, values=tuple(map(_with_suite, flag.values)))
        if flag.name == "--task"
        else flag
        for flag in flags
    ]
    names = {flag.name for flag in flags}
    rendered = command != "train" and not names & {"--cameras", "--no-rgb", "--fast"}
    if rendered and translated != flags:
        translated.append(Flag("--cameras", "--cameras", CAMERAS))
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
