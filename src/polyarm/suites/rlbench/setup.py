"""Sets RLBench up: system packages, CoppeliaSim 4.1.0, PyRep, RLBench, and proof that they work.

Every step looks first whether it is done, so the same command again does only what is missing.
"""

from __future__ import annotations

import platform
from pathlib import Path

from polyarm.contracts import Requirement
from polyarm.errors import InvalidCall, MissingExtra, StorageError
from polyarm.suites.cache import Progress, alone, disk_errors
from polyarm.suites.rlbench import (
    coppeliasim,
    install,
    licences,
    python_packages,
    system_packages,
    trial,
)
from polyarm.suites.rlbench.environment import Environment, current, suite_folder
from polyarm.suites.rlbench.options import VERSION, SetupOptions, Step

SETUP = "polyarm setup rlbench"


def setup(options: SetupOptions, progress: Progress) -> list[Step]:
    """Install what is missing.

    Returns:
        How each step ended. One that is ``"missing"`` says what to do.

    Raises:
        InvalidCall: The licences were not accepted, or a folder holds something else.
        MissingExtra: PyRep or RLBench could not be built.
        StorageError: CoppeliaSim could not be installed.
        RunConflict: Another set-up does not come to an end.
    """
    if platform.machine() != "x86_64":
        raise InvalidCall(
            f"CoppeliaSim {VERSION} exists for x86_64 alone; this machine is {platform.machine()}"
        )
    python_packages.check_sources(options)
    if options.dry_run:
        return plan(options)
    with disk_errors("RLBench was", suite_folder()):
        licences.require(accept=options.accept_licences)
        with alone(suite_folder() / "setup.lock", "RLBench", progress):
            return _install(options, progress)


def plan(options: SetupOptions) -> list[Step]:
    """What `setup` would do, with the exact commands; changes nothing."""
    programs = system_packages.build_programs(options.pyrep, options.rlbench)
    steps = [] if options.skip_system_packages else [system_packages.plan(programs)]
    root, step = install.plan(options)
    steps += [
        step,
        coppeliasim.plan_add_ons(root),
        coppeliasim.plan_old_release(root),
        *python_packages.plan(options, root),
        Step("environment", "planned", f"would write {suite_folder()}/env.sh and env.json"),
    ]
    if not options.skip_test:
        environment = Environment(root, python_packages.interpreter_of(options))
        python = trial.command(environment)[0]
        text = f"would reset and step rlbench/reach_target once with {python}"
        steps.append(Step(trial.NAME, "planned", text))
    return steps


def requirements(*, deep: bool = False, progress: Progress | None = None) -> list[Requirement]:
    """What RLBench needs here, and whether it is there.

    Args:
        deep: Read CoppeliaSim's programs and libraries, and import PyRep and RLBench, instead of
            looking whether they are there.
        progress: Is told how the reading goes.
    """
    packages = system_packages.missing()
    command = f"{SETUP}, or: apt-get install {' '.join(packages)}"
    system = None if packages else "yes"
    needs = [Requirement("Xvfb, OpenGL and libraries of Qt", system, command)]
    try:
        environment = current()
    except StorageError as error:
        return [*needs, Requirement("CoppeliaSim", None, str(error))]
    if environment is None:
        return [*needs, Requirement(f"CoppeliaSim {VERSION}, PyRep and RLBench", None, SETUP)]
    needs.append(_coppeliasim(environment.root, deep=deep, progress=progress))
    why = python_packages.complaint(SetupOptions(pyrep="", rlbench=""), environment, deep=deep)
    found = None if why else str(environment.interpreter)
    return [*needs, Requirement("PyRep and RLBench", found, f"{why}. {SETUP}")]


def _install(options: SetupOptions, progress: Progress) -> list[Step]:
    programs = system_packages.build_programs(options.pyrep, options.rlbench)
    skipped = options.skip_system_packages
    steps = [] if skipped else [system_packages.install(programs, progress)]
    try:
        root, step = install.install_coppeliasim(options, progress)
        steps += [step, coppeliasim.disable_add_ons(root), coppeliasim.allow_old_release(root)]
        steps += python_packages.install(options, root, progress)
    except (InvalidCall, MissingExtra, StorageError) as error:
        # What was missing before may well be why.
        lacking = [str(step) for step in steps if step.state == "missing"]
        raise type(error)("\n".join([str(error), *lacking])) from error
    environment = Environment(root, python_packages.interpreter_of(options))
    steps += [_write(environment)]
    steps += _tried(environment, options, steps, progress)
    return steps


def _coppeliasim(root: Path, *, deep: bool, progress: Progress | None) -> Requirement:
    try:
        coppeliasim.check(root, deep=deep, progress=progress)
    except StorageError as error:
        return Requirement(f"CoppeliaSim {VERSION}", None, f"{error} {SETUP}")
    return Requirement(f"CoppeliaSim {VERSION}", str(root), "")


def _write(environment: Environment) -> Step:
    changed = environment.write()
    text = f"source {suite_folder() / 'env.sh'}   (workers of polyarm find it without)"
    if warning := install.rejected_root(environment.root):
        return Step("environment", "missing", f"{text}\n{warning}")
    return Step("environment", "done" if changed else "there", text)


def _tried(
    environment: Environment, options: SetupOptions, steps: list[Step], progress: Progress
) -> list[Step]:
    if options.skip_test:
        return []
    if lacking := [step.name for step in steps if step.state == "missing"]:
        text = f"not run, because of: {', '.join(lacking)}. Do that, then give {SETUP} again"
        return [Step(trial.NAME, "missing", text)]
    timeout_s = trial.TIMEOUT_S
    return [trial.test_episode(environment, progress, timeout_s=timeout_s, force=options.force)]
