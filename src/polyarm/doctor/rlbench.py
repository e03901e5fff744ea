"""PyRep and RLBench: versions, origins, what PyRep links against, and whether they import.

Everything runs in children of the Python that has them, which may be another than this one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from polyarm import signatures
from polyarm.doctor import child
from polyarm.doctor.case import Case
from polyarm.doctor.coppeliasim import SETUP, find
from polyarm.doctor.findings import Finding, install
from polyarm.suites.rlbench import system_packages
from polyarm.suites.rlbench.coppeliasim import LIBRARY, LINKED
from polyarm.suites.rlbench.environment import Environment
from polyarm.suites.rlbench.inspection import OUTSIDE, PACKAGES, SCRIPT, Facts, Package

INSPECT_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 120.0

_OPENCV = "opencv-python"


def check(case: Case) -> Iterator[Finding]:
    """All of it, as far as one thing does not stand in the way of the next."""
    if (found := find(case)) is None:
        return
    for finding in _check(found):
        yield finding if case.needs("rlbench") else finding.optional()


def _check(found: Environment) -> Iterator[Finding]:
    name = "PyRep and RLBench"
    if not found.interpreter.exists():
        yield Finding(name, "missing", f"there is no {found.interpreter}", SETUP)
        return
    command = [str(found.interpreter), "-c", SCRIPT, _OPENCV]
    ended = child.run(command, INSPECT_TIMEOUT_S, _environment(found))
    if ended.status != 0:
        yield Finding(name, "broken", f"{found.interpreter}: {ended.complaint}", SETUP)
        return
    facts = Facts.of(ended.stdout)
    yield from _versions(facts.packages, found)
    if opencv := facts.versions.get(_OPENCV):
        text = f"opencv-python {opencv} brings a Qt that CoppeliaSim's would load"
        pip = f"{found.interpreter} -m pip"
        fix = f"{pip} uninstall -y opencv-python && {pip} install 'opencv-python-headless<4.12'"
        yield Finding("OpenCV", "warning", text, fix)
    if "pyrep" in facts.packages:
        yield from check_link(facts.extension, found)
    for package in facts.packages:
        yield _imported(package, found)


def check_link(extension: str, found: Environment) -> Iterator[Finding]:
    """Which CoppeliaSim the compiled part of PyRep would load."""
    name = "PyRep's link"
    if not extension:
        text = "PyRep has no compiled part (backend/_sim_cffi*.so)"
        yield Finding(name, "broken", text, f"{SETUP} --force")
        return
    ended = child.run(["ldd", extension], INSPECT_TIMEOUT_S, _environment(found))
    if ended.status != 0:
        yield Finding(name, "broken", f"ldd {extension}: {ended.complaint}", f"{SETUP} --force")
        return
    links = dict(re.findall(r"^\s*(\S+) => (not found|\S+)", ended.stdout, re.MULTILINE))
    lacking = [library for library, path in links.items() if path == "not found"]
    if LINKED in lacking:
        text = f"{LINKED} is not found, although polyarm adds {found.root} to LD_LIBRARY_PATH"
        yield Finding(name, "broken", text, f"ln -s {LIBRARY} {found.root / LINKED}")
    elif LINKED not in links:
        text = f"{extension} is not linked to {LINKED}"
        yield Finding(name, "broken", text, f"{SETUP} --force")
    elif Path(links[LINKED]).parent.resolve() != found.root.resolve():
        text = f"it loads {links[LINKED]}, not the one in {found.root}"
        yield Finding(name, "broken", text, f"{SETUP} (builds PyRep against this one)")
    else:
        yield Finding(name, "ok", links[LINKED])
    if others := [library for library in lacking if library != LINKED]:
        known = system_packages.LIBRARIES
        packages = [known[library] for library in others if library in known]
        text = f"{', '.join(others)} not found"
        yield Finding(name, "broken", text, install(packages) if packages else SETUP)


def _versions(packages: Mapping[str, Package], found: Environment) -> Iterator[Finding]:
    kinds = set()
    for package, title in PACKAGES.items():
        if package not in packages:
            yield Finding(title, "missing", f"not installed in {found.interpreter}", SETUP)
            continue
        one = packages[package]
        kinds.add(one.kind)
        yield Finding(title, "ok", f"{one.version or 'no version'}, {one.words}")
    if len(kinds) > 1:
        text = f"PyRep and RLBench come from different origins ({' and '.join(sorted(kinds))})"
        yield Finding("origins", "warning", text, f"{SETUP} --force")


def _imported(package: str, found: Environment) -> Finding:
    name = f"import {package}"
    # Only a display that cannot fail: whether one can be had is another line.
    environment = {**_environment(found), "QT_QPA_PLATFORM": "offscreen"}
    command = [str(found.interpreter), "-c", f"{OUTSIDE}import {package}"]
    ended = child.run(command, IMPORT_TIMEOUT_S, environment)
    if ended.status == 0:
        return Finding(name, "ok", f"{ended.seconds:.1f} s")
    signal = ended.ending if ended.status is not None and ended.status < 0 else ""
    known = signatures.explain(ended.stderr, signal)
    fix = known.partition(" `polyarm doctor")[0] if known else f"{SETUP} --force"
    return Finding(name, "broken", ended.complaint, fix)


def _environment(found: Environment) -> dict[str, str]:
    return {**os.environ, **found.variables()}
