"""``polyarm check``: whether a trainer's configuration works here, before hours are spent on it.

Exit codes: 0 everything works, 1 something does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.text import Text

from polyarm.cli import console
from polyarm.cli.exits import INCOMPLETE
from polyarm.errors import InvalidCall, PolyarmError

if TYPE_CHECKING:
    from polyarm.compat.ript.config import RunnerConfig
    from polyarm.compat.ript.pi0 import PI0LiberoRunner

_NAME_WIDTH = 14


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of the check.

    Attributes:
        what: Whose configuration it is: ript, RIPT-VLA's.
        config: A YAML file; by default the small one that ships with polyarm.
        policy: What acts, as for polyarm eval.
        max_steps: Policy steps of each episode at most.
    """

    what: Annotated[Literal["ript"], tyro.conf.Positional]
    config: Annotated[Path | None, tyro.conf.arg(aliases=["--config-path"])] = None
    policy: str = "random"
    max_steps: int = 16


def run(options: CheckOptions) -> int:
    """Check step by step and stop at the first that fails; returns the exit code."""
    out = console.console(stderr=False)
    began = time.perf_counter()
    check = _RiptCheck(options)
    try:
        for name, step in check.steps():
            try:
                told = step()
            except PolyarmError as error:
                _print(out, "✗", "bold red", name, str(error).partition("\n--- ")[0])
                return INCOMPLETE
            _print(out, "✓", "green", name, told)
    finally:
        check.close()
    took = f"({time.perf_counter() - began:.0f} s)"
    out.print(Text("\nRIPT-VLA scripts can use this runner ", "green").append(took, "dim"))
    return 0


def _print(out: Console, mark: str, colour: str, name: str, told: str) -> None:
    line = Text(f"{mark} ", colour).append(name.ljust(_NAME_WIDTH), "default").append(told)
    out.print(line, soft_wrap=True)


class _RiptCheck:
    """From a configuration to a score, one thing after the other.

    Args:
        options: Of the command.
    """

    def __init__(self, options: CheckOptions) -> None:
        self._options = options
        self._asked: RunnerConfig | None = None
        self._runner: PI0LiberoRunner | None = None
        self._created: Any = None
        self._rollouts: list[tuple[bool, float, dict[str, Any]]] = []

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """What is checked, by name; each says what it found, or raises."""
        yield "configuration", self._read
        yield "LIBERO", self._find_libero
        yield "runner", self._make_runner
        yield "policy", self._find_policy
        yield "envs", self._create_envs
        yield "rollouts", self._play
        yield "episodes", self._examine
        yield "score", self._score

    def close(self) -> None:
        """Close the envs, if there are any."""
        if self._runner is not None:
            self._runner.close()

    def _read(self) -> str:
        from polyarm.compat.ript.config import example_config, read_config

        if self._options.max_steps < 1:
            raise InvalidCall(f"--max-steps is at least 1, found {self._options.max_steps}")
        file = self._options.config or example_config()
        asked = read_config(file)
        if not asked.use_ript_vla_runner:
            raise InvalidCall(
                f"{file} does not choose this runner: set features.use_ript_vla_runner to true"
            )
        # Long enough to see everything once, and no longer.
        self._asked = replace(
            asked,
            rollouts_per_env=min(asked.rollouts_per_env, 2 * asked.num_parallel_envs),
            max_episode_length=min(
                asked.max_episode_length or self._options.max_steps, self._options.max_steps
            ),
        )
        return f"{file}: {asked.benchmark_name}, {asked.num_parallel_envs} envs at once"

    def _find_libero(self) -> str:
        from polyarm import registry

        required = registry.load("libero").requirements()
        missing = [each for each in required if each.found is None]
        if missing:
            names = ", ".join(each.name for each in missing)
            raise InvalidCall(f"missing: {names}. Fix: {missing[0].fix}")
        return f"{len(required)} requirements are met"

    def _make_runner(self) -> str:
        from polyarm.compat.ript.config import make_runner

        assert self._asked is not None
        self._runner = make_runner(self._asked, self._options.policy)
        chosen, known = self._runner.env_names_to_run, self._runner.env_names
        return f"{len(chosen)} of {len(known)} tasks of {self._runner.benchmark_name}"

    def _find_policy(self) -> str:
        self._playing.acting()
        return self._options.policy

    def _create_envs(self) -> str:
        began = time.perf_counter()
        self._created = self._playing.create_env(self._task)
        took_s = time.perf_counter() - began
        return f"{self._created[2]} in worker processes after {took_s:.1f} s"

    def _play(self) -> str:
        rollouts = self._playing.run_policy_in_env(self._task, created_env=self._created)
        self._rollouts = list(rollouts)
        wanted = self._playing.rollouts_per_env
        if len(self._rollouts) != wanted:
            raise InvalidCall(f"{len(self._rollouts)} of {wanted} episodes came to their end")
        inferences = sum(len(episode["actions"]) for _, _, episode in self._rollouts)
        return f"{wanted} episodes of {self._task} with {inferences} inferences"

    def _examine(self) -> str:
        from polyarm.compat.ript.episodes import problems

        for _, _, episode in self._rollouts:
            if found := problems(episode):
                raise InvalidCall(f"an episode is not as a trainer needs it: {'; '.join(found)}")
        first = self._rollouts[0][2]
        known = [name for name in ("actions_normalized", "log_prob") if first[name][0] is not None]
        return f"images, states and actions of every inference; {_listed(known)} by the policy"

    def _score(self) -> str:
        output = self._playing.run(run_env_names=[self._task], created_envs=[self._created])
        scored = output["rollout"]
        return f"{scored['overall_success_rate']:.0%} of {scored['rollout_count']} short episodes"

    @property
    def _playing(self) -> PI0LiberoRunner:
        assert self._runner is not None
        return self._runner

    @property
    def _task(self) -> str:
        return self._playing.env_names_to_run[0]


def _listed(names: list[str]) -> str:
    return " and ".join(names) if names else "no actions_normalized or log_prob"
