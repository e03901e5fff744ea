"""The ``polyarm`` command: parses, runs a subcommand, and turns every end into an exit code.

0: done. 2: a `PolyarmError` or a wrong argument, told in one message. 130: Ctrl-C.
141: the reader of our output has gone. What a subcommand needs is imported when it runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import tyro

from polyarm import __version__
from polyarm.bench.options import BenchOptions
from polyarm.cli.compare import CompareOptions
from polyarm.cli.debug import DebugOptions
from polyarm.cli.evaluate import EvalCommand
from polyarm.cli.exits import FAILED, INTERRUPTED, NOBODY_READS
from polyarm.cli.report import ReportOptions
from polyarm.cli.setup import SetupOptions
from polyarm.errors import PolyarmError

T = TypeVar("T")

_DESCRIPTION = """Hundreds of simulated robot arms at once, headless, behind one block of memory.

examples:
  polyarm eval --policy expert --task metaworld/mt10 --episodes 10 --record failures
  polyarm compare runs/a runs/b whether two runs really differ
  polyarm debug --task metaworld/reach-v3      a few episodes, with videos
  polyarm suites                what there is, and what is missing on this machine
  polyarm suites metaworld      the tasks of a suite
  polyarm setup libero          get what a suite needs beyond its packages
  polyarm bench --task metaworld/reach-v3 --num-envs 8 --cameras corner2
  polyarm bench --help          all options of the benchmark
  polyarm --version

POLYARM_DEBUG=1 shows the traceback of an error."""

_BENCH = "Step many envs with random actions and measure throughput, latency, start-up and memory."

_BENCH_EXAMPLES = """

examples:
  polyarm bench --task metaworld/reach-v3 --num-envs 64 --fast
  polyarm bench --task metaworld/mt10 --num-envs 20 --action-chunk 8 --cameras corner2
  polyarm bench --task gym/CartPole-v1 --num-envs 32 --max-steps 1000 --profile-timing
  polyarm bench --fast --json | tail -n 1"""

_EVAL = "Evaluate a policy on many tasks: one queue of episodes, results that survive anything."

_EVAL_EXAMPLES = """

examples:
  polyarm eval --policy expert --task metaworld/mt10 --episodes 10 --record
  polyarm eval --policy my_policy:load@checkpoints/last.pt --task metaworld/mt50 --num-envs 64
  polyarm eval --policy 'my_policy:load@checkpoints/step_*.pt' --task metaworld/reach-v3
  polyarm eval --config run.yaml --stop-after 3h50m
  polyarm eval --policy random --task metaworld/mt10 --dry-run

The same command again runs only what is missing. Exit codes: 0 done, 1 too many errors, 2 wrong
input, 3 stopped early, 130 Ctrl-C."""

_REPORT = "Write the report of a run anew from its journal, finished or not."

_COMPARE = "Compare two runs episode by episode, or one with a published score."

_COMPARE_EXAMPLES = """

examples:
  polyarm compare runs/old runs/new
  polyarm compare runs/new --published openvla-oft/libero_spatial"""

_DEBUG = "Play a few episodes with the first env filmed, to see what a policy does."

_SUITES = "List suites, how many tasks they hold and what each needs here; or one suite's tasks."

_SUITES_EXAMPLES = """

examples:
  polyarm suites
  polyarm suites metaworld"""

_SETUP = "Get what a suite needs beyond its packages: into our cache, without a question."

_SETUP_EXAMPLES = """

examples:
  pip install 'polyarm[libero]' && polyarm setup libero
  polyarm setup libero --assets libero_assets.tar.xz     no download
  polyarm setup libero --assets ~/LIBERO                 from a checkout
  polyarm setup libero --check                           is every file intact?

The same command again does only what is missing, and repairs what is damaged. Assets go to
$POLYARM_CACHE (else ~/.cache/polyarm); HF_ENDPOINT names a mirror of the hub to download from.
POLYARM_LIBERO_ASSETS names a folder of assets to be used as it is."""


@dataclass(frozen=True, slots=True)
class SuitesOptions:
    """Options of the listing.

    Attributes:
        name: A suite whose tasks and sets are listed.
    """

    name: Annotated[str | None, tyro.conf.Positional] = None


_OVERVIEW: Any = (
    Annotated[EvalCommand, tyro.conf.subcommand("eval", description=_EVAL)]
    | Annotated[ReportOptions, tyro.conf.subcommand("report", description=_REPORT)]
    | Annotated[CompareOptions, tyro.conf.subcommand("compare", description=_COMPARE)]
    | Annotated[DebugOptions, tyro.conf.subcommand("debug", description=_DEBUG)]
    | Annotated[BenchOptions, tyro.conf.subcommand("bench", description=_BENCH)]
    | Annotated[SuitesOptions, tyro.conf.subcommand("suites", description=_SUITES)]
    | Annotated[SetupOptions, tyro.conf.subcommand("setup", description=_SETUP)]
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always leaves by `SystemExit`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except PolyarmError as error:
        _tell(error)
        status = FAILED
    except KeyboardInterrupt:
        print("polyarm: interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at its end; that must find an open file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = NOBODY_READS
    sys.exit(status)


def _run(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(f"polyarm {__version__}")
        return 0
    match list(arguments):
        case ["bench", *rest]:
            options = _parse(BenchOptions, "polyarm bench", _BENCH + _BENCH_EXAMPLES, rest)
            from polyarm.cli import bench

            return bench.run(options)
        case ["eval", *rest]:
            from polyarm.cli import evaluate

            return evaluate.run(evaluate.parse(rest, _read_eval))
        case ["report", *rest]:
            from polyarm.cli import report
            from polyarm.rollout.journal import load_results

            return report.run(_parse(ReportOptions, "polyarm report", _REPORT, rest), load_results)
        case ["compare", *rest]:
            from polyarm.cli import compare

            description = _COMPARE + _COMPARE_EXAMPLES
            return compare.run(_parse(CompareOptions, "polyarm compare", description, rest))
        case ["debug", *rest]:
            from polyarm.cli import debug

            return debug.run(_parse(DebugOptions, "polyarm debug", _DEBUG, rest))
        case ["suites", *rest]:
            listing = _parse(SuitesOptions, "polyarm suites", _SUITES + _SUITES_EXAMPLES, rest)
            from polyarm.cli import suites

            return suites.run(listing.name)
        case ["setup", *rest]:
            wanted = _parse(SetupOptions, "polyarm setup", _SETUP + _SETUP_EXAMPLES, rest)
            from polyarm.cli import setup

            return setup.run(wanted)
        case _:
            # No subcommand: this prints the overview, or says what is wrong, and leaves.
            _parse(_OVERVIEW, "polyarm", _DESCRIPTION, arguments or ["--help"])
            return FAILED


def _read_eval(defaults: EvalCommand, arguments: list[str]) -> EvalCommand:
    return tyro.cli(
        EvalCommand,
        prog="polyarm eval",
        description=_EVAL + _EVAL_EXAMPLES,
        args=arguments,
        default=defaults,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _parse(what: type[T], program: str, description: str, arguments: Sequence[str]) -> T:
    return tyro.cli(
        what,
        prog=program,
        description=description,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _tell(error: PolyarmError) -> None:
    if os.environ.get("POLYARM_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
        return
    message, *stacks = str(error).split("\n--- ")
    print(f"polyarm: {message}", file=sys.stderr)
    if stacks:
        print("polyarm: POLYARM_DEBUG=1 shows stacks and output", file=sys.stderr)
