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
from polyarm.errors import PolyarmError

T = TypeVar("T")

FAILED = 2
INTERRUPTED = 130
NOBODY_READS = 141

_DESCRIPTION = """Hundreds of simulated robot arms at once, headless, behind one block of memory.

examples:
  polyarm suites                what there is, and what is missing on this machine
  polyarm suites metaworld      the tasks of a suite
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

_SUITES = "List suites, how many tasks they hold and what each needs here; or one suite's tasks."

_SUITES_EXAMPLES = """

examples:
  polyarm suites
  polyarm suites metaworld"""


@dataclass(frozen=True, slots=True)
class SuitesOptions:
    """Options of the listing.

    Attributes:
        name: A suite whose tasks and sets are listed.
    """

    name: Annotated[str | None, tyro.conf.Positional] = None


_OVERVIEW: Any = (
    Annotated[BenchOptions, tyro.conf.subcommand("bench", description=_BENCH)]
    | Annotated[SuitesOptions, tyro.conf.subcommand("suites", description=_SUITES)]
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
        case ["suites", *rest]:
            listing = _parse(SuitesOptions, "polyarm suites", _SUITES + _SUITES_EXAMPLES, rest)
            from polyarm.cli import suites

            return suites.run(listing.name)
        case _:
            # No subcommand: this prints the overview, or says what is wrong, and leaves.
            _parse(_OVERVIEW, "polyarm", _DESCRIPTION, arguments or ["--help"])
            return FAILED


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
