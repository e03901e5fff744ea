"""The ``polyarm`` command: parses, runs a subcommand, and turns every end into an exit code.

0: done. 1: done, and not well: too many episodes or every step failed, or a check found something
missing. 2: a `PolyarmError` or a wrong argument, told in one message. 3: stopped before all was
done. 75: SIGTERM or SIGUSR1 did that, to be started again. 130: Ctrl-C. 141: the reader of our
output has gone. What a subcommand needs is imported when it runs.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import tyro

from polyarm import __version__
from polyarm.bench.options import BenchOptions
from polyarm.cli import old_flags, remarks
from polyarm.cli.check import CheckOptions
from polyarm.cli.compare import CompareOptions
from polyarm.cli.debug import DebugOptions
from polyarm.cli.doctor import DoctorOptions
from polyarm.cli.evaluate import EvalCommand
from polyarm.cli.exits import FAILED, INTERRUPTED, NOBODY_READS
from polyarm.cli.report import ReportOptions
from polyarm.cli.serve import ServeCommand
from polyarm.cli.setup import SetupOptions
from polyarm.cli.signals import signals_come_too_late
from polyarm.distributed.ranks import mark
from polyarm.errors import PolyarmError
from polyarm.training.options import TrainOptions
from polyarm.vector import process

T = TypeVar("T")

_OF_STREAMS = (errno.ENOSPC, errno.EIO, errno.EBADF)
"""What writing to a terminal, a pipe or a file that somebody has given us may fail with."""

_DESCRIPTION = """Hundreds of simulated robot arms at once, headless, behind one block of memory.

examples:
  polyarm eval --policy expert --task metaworld/mt10 --episodes 10 --record failures
  polyarm compare runs/a runs/b                whether two runs really differ
  polyarm debug --task metaworld/reach-v3      a few episodes, with videos
  polyarm suites                what there is, and what is missing on this machine
  polyarm suites metaworld      the tasks of a suite
  polyarm doctor --suite rlbench          what is missing or broken here, and the fix
  polyarm check ript            does RIPT-VLA's runner work here?
  polyarm setup libero          get what a suite needs beyond its packages
  polyarm setup rlbench         CoppeliaSim, PyRep and RLBench, step by step
  polyarm bench --task metaworld/reach-v3 --num-envs 8 --cameras corner2
  polyarm bench --help          all options of the benchmark
  polyarm serve --policy my_policy:load@last.pt --task libero/libero_10    for openpi's clients
  polyarm train --task metaworld/reach-v3      PPO; the same command goes on where it was
  polyarm --version

POLYARM_DEBUG=1 shows the traceback of an error."""

_OLD_FLAGS = """\
Underscores in flags are dashes. Flags of earlier RLBench runners are understood
(--task_class OpenDrawer, --steps, --copy_obs 0 …; without a task they run rlbench/open_drawer):
docs/coming-from-rlbench-scripts.md."""

_BENCH = "Step many envs with random actions and measure throughput, latency, start-up and memory."

_BENCH_EXAMPLES = f"""

examples:
  polyarm bench --task metaworld/reach-v3 --num-envs 64 --fast
  polyarm bench --task metaworld/mt10 --num-envs 20 --action-chunk 8 --cameras corner2
  polyarm bench --task gym/CartPole-v1 --num-envs 32 --max-steps 1000 --profile-timing
  polyarm bench --fast --json | tail -n 1
  polyarm bench --task rlbench/open_drawer --num-envs 4 --max-steps 50 --record
  torchrun --nproc_per_node=4 -m polyarm bench --num-envs-total 64 --ddp-bind-gpu

{_OLD_FLAGS}"""

_TRAIN = "Train a policy with PPO: from states or frames, on one process or many."

_TRAIN_EXAMPLES = f"""

Each update plays --horizon decisions in every env, estimates advantages (GAE), and follows the
clipped surrogate for --epochs epochs of --minibatches minibatches (PyTorch). Every --eval-every
updates the policy plays held-out episodes by the suite's own rules. The folder --out holds
checkpoint.pt, metrics.jsonl and curve.png; after Ctrl-C, SIGTERM or a crash, the same command
without --fresh goes on from the checkpoint. Under torchrun ranks share gradients and hold the same
weights. Exit code 1 if every step failed; 2 if something is wrong, or another rank has ended; 3 if
it was stopped early, 75 by a signal, 130 by Ctrl-C.

examples:
  polyarm train --task gym/CartPole-v1 --train-updates 20 --train-lr 1e-3
  polyarm train --task metaworld/reach-v3 --max-steps 150 --num-workers 2 --report-to tensorboard
  polyarm train --task metaworld/reach-v3 --cameras corner2 --image-size 64 64
  polyarm train --task rlbench/open_drawer --num-envs 16 --train-lr 3e-4 --train-hidden 256
  torchrun --nproc_per_node=4 --no-python polyarm train --num-envs-total 64 --ddp-bind-gpu
  polyarm eval --policy polyarm.training:load@runs/ppo-metaworld-reach-v3 --task metaworld/reach-v3

{_OLD_FLAGS}"""

_EVAL = "Evaluate a policy on many tasks: one queue of episodes, results that survive anything."

_EVAL_EXAMPLES = """

examples:
  polyarm eval --policy expert --task metaworld/mt10 --episodes 10 --record
  polyarm eval --policy my_policy:load@checkpoints/last.pt --task metaworld/mt50 --num-envs 64
  polyarm eval --policy 'my_policy:load@checkpoints/step_*.pt' --task metaworld/reach-v3
  polyarm eval --config run.yaml --stop-after 3h50m
  polyarm eval --policy random --task metaworld/mt10 --dry-run
  torchrun --nproc_per_node=4 -m polyarm eval --policy expert --task metaworld/mt50 --ddp-bind-gpu

The same command again runs only what is missing, with any number of ranks (docs/distributed.md).
Exit codes: 0 done, 1 too many errors, 2 wrong input, 3 stopped early, 75 stopped by SIGTERM or
SIGUSR1, 130 Ctrl-C."""

_REPORT = "Write the report of a run anew from its journal, finished or not."

_COMPARE = "Compare two runs episode by episode, or one with a published score."

_COMPARE_EXAMPLES = """

examples:
  polyarm compare runs/old runs/new
  polyarm compare runs/new --published openvla-oft/libero_spatial"""

_DEBUG = "Play a few episodes with the first env filmed, to see what a policy does."

_DEBUG_EXAMPLES = f"""

examples:
  polyarm debug --task metaworld/reach-v3
  polyarm debug --policy my_policy:load@checkpoints/last.pt --task metaworld/mt10 --episodes 1
  polyarm debug --task rlbench/open_drawer --cameras front wrist --max-steps 200 --video-all
  polyarm debug --policy random --task metaworld/push-v3 --num-envs 1 --video-stride 1 --realtime
  torchrun --nproc_per_node=4 --no-python polyarm debug --num-envs-total 64 --ddp-bind-gpu

Videos, results and a report go to runs/debug, whose last ones are overwritten.

{_OLD_FLAGS}"""

_SERVE = "Serve a policy over openpi's websocket protocol: many clients, one decision for all."

_SERVE_EXAMPLES = """

examples:
  polyarm serve --policy my_policy:load@checkpoints/last.pt --task libero/libero_10
  polyarm serve --policy my_policy:Reach --task metaworld/mt10 --mapping plain --port 8001
  POLYARM_API_KEY=… polyarm serve --policy my_policy:load@last.pt --action-size 7 --host 0.0.0.0
  polyarm eval --policy openpi:ws://127.0.0.1:8000 --task libero/libero_10 --cameras agentview wrist

One server per GPU: CUDA_VISIBLE_DEVICES=0 polyarm serve … --port 8000, and so on; clients of
polyarm share their episodes among openpi:ws://host:8000,ws://host:8001. SIGTERM and Ctrl-C answer
what was asked, and then close. docs/serving.md has both sides."""

_SUITES = "List suites, how many tasks they hold and what each needs here; or one suite's tasks."

_SUITES_EXAMPLES = """

examples:
  polyarm suites
  polyarm suites metaworld"""

_SETUP = "Get what a suite needs beyond its packages: libero, rlbench; or an X server: xorg."

_SETUP_EXAMPLES = """

examples:
  pip install 'polyarm[libero]' && polyarm setup libero
  polyarm setup libero --assets libero_assets.tar.xz     no download
  polyarm setup libero --assets ~/LIBERO                 from a checkout
  polyarm setup libero --check                           is every file intact?
  polyarm setup rlbench --help                           CoppeliaSim, PyRep and RLBench
  polyarm setup xorg --help                              an X server on GPUs without a screen

The same command again does only what is missing, and repairs what is damaged. It goes to
$POLYARM_CACHE (else ~/.cache/polyarm); HF_ENDPOINT names a mirror of the hub to download from.
POLYARM_LIBERO_ASSETS names a folder of assets to be used as it is."""

_SETUP_RLBENCH = """Install RLBench with all that it needs, step by step, and prove that it works.

1 system packages (apt; without root the command is shown)   2 CoppeliaSim Edu 4.1.0
3 network add-ons off   4 usrset.txt   5 PyRep and RLBench   6 env.sh, env.json   7 a test episode

examples:
  polyarm setup rlbench --dry-run                        every step and command; changes nothing
  polyarm setup rlbench --venv ~/rlbench                 its own Python environment (recommended)
  polyarm setup rlbench --accept-licences                without a terminal
  polyarm setup rlbench --archive CoppeliaSim_Edu_V4_1_0_Ubuntu20_04.tar.xz
  polyarm setup rlbench --pyrep ~/PyRep --rlbench ~/RLBench
  polyarm setup rlbench --check                          is everything there and intact?

The same command again does only what is missing; --prefix and --venv are remembered. A
COPPELIASIM_ROOT that is exactly 4.1.0 is used as it is (PyRep's build adds its two files). No
checksum of the download is published; --sha256 pins one. No .bashrc is edited.
Exit codes: 0 ready, 1 something is still missing, 2 failed."""

_SETUP_XORG = """Configure an X server that renders on NVIDIA GPUs which have no screen.

examples:
  polyarm setup xorg                                     print the file and commands
  polyarm setup xorg --headless-gpu                      GPUs of data centres, without outputs
  sudo env PATH="$PATH" polyarm setup xorg --write       write /etc/X11/polyarm-xorg.conf

RLBench then renders on GPU n with DISPLAY=:99.n. Without a GPU, or in a container, display="xvfb"
needs none of this."""

_SETUPS = {"": _SETUP + _SETUP_EXAMPLES, "rlbench": _SETUP_RLBENCH, "xorg": _SETUP_XORG}

_DOCTOR = "Check this machine: each line ok, missing or broken, with the exact fix."

_DOCTOR_EXAMPLES = """

examples:
  polyarm doctor                              everything
  polyarm doctor --suite rlbench --num-envs 64
  polyarm doctor --suite metaworld --ramp     how many workers does this host bear?
  polyarm doctor --log worker.stderr          what does this crash mean?
  polyarm doctor --json | jq .ok

Exit code 1 if something that the suite needs is missing or broken; hints and warnings do not
count. Without --suite no suite is needed."""

_CHECK = "Check that a trainer's configuration works here, from the file to a score."

_CHECK_EXAMPLES = """

examples:
  polyarm check ript                                          the small example, random actions
  polyarm check ript --config my_config.yaml
  polyarm check ript --config my_config.yaml --policy my_policy:load@checkpoints/last.pt

Reads features.use_ript_vla_runner, task.* and algo.* as RIPT-VLA's scripts do, makes the runner,
starts the envs of the first task, plays short episodes (--max-steps) and examines what a trainer
would get. docs/ript.md has the keys. Exit codes: 0 it works, 1 it does not."""


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
    | Annotated[ServeCommand, tyro.conf.subcommand("serve", description=_SERVE)]
    | Annotated[TrainOptions, tyro.conf.subcommand("train", description=_TRAIN)]
    | Annotated[SuitesOptions, tyro.conf.subcommand("suites", description=_SUITES)]
    | Annotated[SetupOptions, tyro.conf.subcommand("setup", description=_SETUP)]
    | Annotated[DoctorOptions, tyro.conf.subcommand("doctor", description=_DOCTOR)]
    | Annotated[CheckOptions, tyro.conf.subcommand("check", description=_CHECK)]
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line; always leaves by `SystemExit`.

    Args:
        arguments: By default those of this process, which ends with the command.
    """
    _open_streams()
    if arguments is None:
        faulthandler.enable()  # should a library crash, the stack is told
        remarks.tell_warnings()
    try:
        status = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except PolyarmError as error:
        _tell(error)
        status = FAILED
    except KeyboardInterrupt:
        print("polyarm: interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        _silence_what_fails()
        status = NOBODY_READS
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_STREAMS:
            raise
        with contextlib.suppress(OSError):
            print(f"polyarm: the output cannot be written: {error.strerror}", file=sys.stderr)
        _silence_what_fails()
        status = FAILED
    if arguments is None:
        signals_come_too_late()
    sys.exit(status)


def _open_streams() -> None:
    """Have streams that are closed lead nowhere, instead of failing at the first word."""
    process.occupy_standard_streams()
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))


def _silence_what_fails() -> None:
    """The interpreter flushes once more at its end; that must find a file that takes it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(f"polyarm {__version__}")
        return 0
    words, said = old_flags.translate(arguments)
    for remark in said:
        print(f"polyarm: {remark}", file=sys.stderr)
    if any(":" in word for word in words):
        from polyarm.policies.here import look_here

        look_here()  # tasks name modules, too
    match words:
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

            return debug.run(_parse(DebugOptions, "polyarm debug", _DEBUG + _DEBUG_EXAMPLES, rest))
        case ["train", *rest]:
            training = _parse(TrainOptions, "polyarm train", _TRAIN + _TRAIN_EXAMPLES, rest)
            from polyarm.cli import train

            return train.run(training)
        case words:
            return _run_beside(words)


def _run_beside(arguments: Sequence[str]) -> int:
    """Commands that play no episodes themselves."""
    match arguments:
        case ["serve", *rest]:
            serving = _parse(ServeCommand, "polyarm serve", _SERVE + _SERVE_EXAMPLES, rest)
            from polyarm.cli import serve

            return serve.run(serving)
        case ["doctor", *rest]:
            from polyarm.cli import doctor

            asked = _parse(DoctorOptions, "polyarm doctor", _DOCTOR + _DOCTOR_EXAMPLES, rest)
            return doctor.run(asked)
        case ["check", *rest]:
            checked = _parse(CheckOptions, "polyarm check", _CHECK + _CHECK_EXAMPLES, rest)
            from polyarm.cli import check

            return check.run(checked)
        case ["suites", *rest]:
            listing = _parse(SuitesOptions, "polyarm suites", _SUITES + _SUITES_EXAMPLES, rest)
            from polyarm.cli import suites

            return suites.run(listing.name)
        case ["setup", *rest]:
            from polyarm.cli import setup

            return setup.dispatch(rest, _read_setup)
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


def _read_setup(what: type[T], name: str, arguments: Sequence[str]) -> T:
    return _parse(what, f"polyarm setup {name}".strip(), _SETUPS[name], arguments)


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
    print(f"{mark()}polyarm: {message}", file=sys.stderr)
    if stacks:
        print("polyarm: POLYARM_DEBUG=1 shows stacks and output", file=sys.stderr)
