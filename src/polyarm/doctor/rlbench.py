"""PyRep and RLBench: versions, origins, what PyRep links against, and whether they import.

Everything runs in children of the Python that has them, which may be another than this one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyarm import signatures
from polyarm.doctor import child
from polyarm.doctor.case import Case
from polyarm.doctor.coppeliasim import LIBRARY, SETUP, find
from polyarm.doctor.findings import Finding, install
from polyarm.suites.rlbench import system_packages
from polyarm.suites.rlbench.environment import Environment

INSPECT_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 120.0
PACKAGES = {"pyrep": "PyRep", "rlbench": "RLBench"}

# Without importing them: versions, where they came from, and PyRep's compiled part.
_INSPECT = """
import importlib.metadata as metadata, importlib.util, glob, json, os
found = {"packages": {}, "extension": "", "opencv": ""}
for name in ("pyrep", "rlbench"):
    spec = importlib.util.find_spec(name)
    if spec is None:
        continue
    folder = (list(spec.submodule_search_locations or []) or [""])[0]
    try:
        package = metadata.distribution(name)
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        found["packages"][name] = {"version": package.version, "origin": origin, "folder": ""}
    except metadata.PackageNotFoundError:
        found["packages"][name] = {"version": "", "origin": {}, "folder": folder}
    if name == "pyrep":
        built = sorted(glob.glob(os.path.join(folder, "backend", "_sim_cffi*.so")))
        found["extension"] = built[0] if built else ""
try:
    found["opencv"] = metadata.version("opencv-python")
except metadata.PackageNotFoundError:
    pass
print(json.dumps(found))
"""


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
    ended = child.run(_python(found, _INSPECT), INSPECT_TIMEOUT_S, _environment(found))
    if ended.status != 0:
        yield Finding(name, "broken", f"{found.interpreter}: {ended.complaint}", SETUP)
        return
    facts: dict[str, Any] = json.loads(ended.stdout)
    yield from _versions(facts["packages"], found)
    if facts["opencv"]:
        text = f"opencv-python {facts['opencv']} brings a Qt that CoppeliaSim's would load"
        pip = f"{found.interpreter} -m pip"
        fix = f"{pip} uninstall -y opencv-python && {pip} install 'opencv-python-headless<4.12'"
        yield Finding("OpenCV", "warning", text, fix)
    if "pyrep" in facts["packages"]:
        yield from check_link(facts["extension"], found)
    for package in facts["packages"]:
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
    if LIBRARY in lacking:
        text = f"{LIBRARY} is not found, although polyarm adds {found.root} to LD_LIBRARY_PATH"
        yield Finding(name, "broken", text, f"ln -s libcoppeliaSim.so {found.root / LIBRARY}")
    elif LIBRARY not in links:
        text = f"{extension} is not linked to {LIBRARY}"
        yield Finding(name, "broken", text, f"{SETUP} --force")
    elif Path(links[LIBRARY]).parent.resolve() != found.root.resolve():
        text = f"it loads {links[LIBRARY]}, not the one in {found.root}"
        fix = f"export LD_LIBRARY_PATH={found.root}:$LD_LIBRARY_PATH"
        yield Finding(name, "broken", text, fix)
    else:
        yield Finding(name, "ok", links[LIBRARY])
    if others := [library for library in lacking if library != LIBRARY]:
        known = system_packages.LIBRARIES
        packages = [known[library] for library in others if library in known]
        text = f"{', '.join(others)} not found"
        yield Finding(name, "broken", text, install(packages) if packages else SETUP)


def _versions(packages: Mapping[str, Mapping[str, Any]], found: Environment) -> Iterator[Finding]:
    kinds = set()
    for package, title in PACKAGES.items():
        if package not in packages:
            yield Finding(title, "missing", f"not installed in {found.interpreter}", SETUP)
            continue
        one = packages[package]
        kind, words = _origin(one["origin"], one["folder"])
        kinds.add(kind)
        yield Finding(title, "ok", f"{one['version'] or 'no version'}, {words}")
    if len(kinds) > 1:
        text = f"PyRep and RLBench come from different origins ({' and '.join(sorted(kinds))})"
        yield Finding("origins", "warning", text, f"{SETUP} --force")


def _origin(record: Mapping[str, Any], folder: str) -> tuple[str, str]:
    """The kind of a package's origin, and the origin in words."""
    if "vcs_info" in record:
        commit = str(record["vcs_info"].get("commit_id", ""))[:12]
        return "git", f"git {record.get('url', '')}@{commit}"
    if folder or "dir_info" in record:
        return "a folder", f"from {folder or record.get('url', '')}"
    if "url" in record:
        return "an archive", f"from {record['url']}"
    return "an index", "from a package index"


def _imported(package: str, found: Environment) -> Finding:
    name = f"import {package}"
    # Only a display that cannot fail: whether one can be had is another line.
    environment = {**_environment(found), "QT_QPA_PLATFORM": "offscreen"}
    ended = child.run(_python(found, f"import {package}"), IMPORT_TIMEOUT_S, environment)
    if ended.status == 0:
        return Finding(name, "ok", f"{ended.seconds:.1f} s")
    signal = ended.ending if ended.status is not None and ended.status < 0 else ""
    known = signatures.explain(ended.stderr, signal)
    fix = known.partition(" `polyarm doctor")[0] if known else f"{SETUP} --force"
    return Finding(name, "broken", ended.complaint, fix)


def _python(found: Environment, code: str) -> list[str]:
    # Not from the current folder, where a checkout would hide what is installed; -P does the same
    # as of Python 3.11, but RLBench's may be older.
    return [
        str(found.interpreter),
        "-c",
        f"import sys; sys.path = [*filter(None, sys.path)]\n{code}",
    ]


def _environment(found: Environment) -> dict[str, str]:
    return {**os.environ, **found.variables()}
