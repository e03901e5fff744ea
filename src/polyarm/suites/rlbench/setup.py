"""Sets RLBench up: system packages, CoppeliaSim 4.1.0, PyRep, RLBench, and proof that they work.

Every step looks first whether it is done, so the same command again does only what is missing.
"""

from __future__ import annotations

import os
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
from polyarm.suites.rlbench.environment import Environment, current, suite_folder, writable_twin
from polyarm.suites.rlbench.options import PYREP, RLBENCH, VERSION, SetupOptions, Step
from polyarm.suites.rlbench.private_root import make_twin

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
    options = options.expanded()
    python_packages.check_sources(options)
    if options.dry_run:
        return plan(options)
    with disk_errors("RLBench was", suite_folder()):
        licences.require(accept=options.accept_licences)
        with alone(suite_folder() / "setup.lock", "RLBench", progress):
            return _install(options, progress)


def plan(options: SetupOptions) -> list[Step]:
    """What `setup` would do, with the exact commands; changes nothing."""
    options = options.expanded()
    programs = _build_programs(options)
    steps = [] if options.skip_system_packages else [system_packages.plan(programs)]
    root, step = install.plan(options)
    steps.append(step)
    if step.state == "missing":
        return steps
    root, twin = _buildable(root, options, dry=True)
    steps += [
        *twin,
        coppeliasim.plan_add_ons(root),
        coppeliasim.plan_old_release(root),
        *python_packages.plan(options, root),
        Step("environment", "planned", f"would write {suite_folder()}/env.sh and env.json"),
    ]
    if not options.skip_test:
        python = python_packages.interpreter_of(options)
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
    why = python_packages.complaint(SetupOptions(), environment, deep=deep)
    found = None if why else str(environment.interpreter)
    return [*needs, Requirement("PyRep and RLBench", found, f"{why}. {SETUP}")]


def _install(options: SetupOptions, progress: Progress) -> list[Step]:
    skipped = options.skip_system_packages
    programs = _build_programs(options)
    steps = [] if skipped else [system_packages.install(programs, progress)]
    try:
        root, step = install.install_coppeliasim(options, progress)
        root, twin = _buildable(root, options, dry=False)
        steps += [step, *twin]
        steps += [coppeliasim.disable_add_ons(root), coppeliasim.allow_old_release(root)]
        steps += python_packages.install(options, root, progress)
    except (InvalidCall, MissingExtra, StorageError) as error:
        # What was missing before may well be why.
        lacking = [str(step) for step in steps if step.state == "missing"]
        raise type(error)("\n".join([str(error), *lacking])) from error
    venv = python_packages.venv_of(options)
    environment = Environment(root, python_packages.interpreter_of(options), venv)
    steps += [_write(environment)]
    steps += _tried(environment, options, steps, progress)
    return steps


def _build_programs(options: SetupOptions) -> tuple[str, ...]:
    return system_packages.build_programs(options.pyrep or PYREP, options.rlbench or RLBENCH)


def _buildable(root: Path, options: SetupOptions, *, dry: bool) -> tuple[Path, list[Step]]:
    """Where PyRep can be built: there, or in a folder of ours with links to what is there."""
    if not root.is_dir() or os.access(root, os.W_OK) or python_packages.is_built_against(root):
        return root, []
    twin, name = writable_twin(root), "PyRep's folder"
    if twin.is_dir() and not options.force:
        return twin, [Step(name, "there", f"{twin}, with links to {root}")]
    why = f"with links to {root}, which cannot be written to"
    if dry:
        return twin, [Step(name, "planned", f"would make {twin}, {why}")]
    make_twin(root)
    return twin, [Step(name, "done", f"{twin}, {why}")]


def _coppeliasim(root: Path, *, deep: bool, progress: Progress | None) -> Requirement:
    try:
        coppeliasim.check(root, deep=deep, progress=progress)
    except StorageError as error:
        fix = str(error) if SETUP in str(error) else f"{error} {SETUP}"
        return Requirement(f"CoppeliaSim {VERSION}", None, fix)
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
