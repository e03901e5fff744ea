"""Python, what the engine asks of the kernel, and optional packages."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from polyarm.doctor import child
from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding, listed
from polyarm.vector.host import KERNEL_FIX

TIMEOUT_S = 20.0

EXTRAS = {
    "torch": ("torch",),
    "video": ("av", "pillow"),
    "report": ("jinja2", "pyyaml", "scipy"),
}
"""Distributions of each extra that belongs to no suite."""

# Each by itself, in a process that may be killed for it: seccomp filters do that.
_FEATURES = """
import json, os, signal, sys
def fork():
    pid = os.fork()
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)
tries = {
    "fork": fork,
    "memfd": lambda: os.close(os.memfd_create("polyarm")),
    "eventfd": lambda: os.close(os.eventfd(0)),
    "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0),
}
found = {}
for name, attempt in tries.items():
    try:
        attempt()
        found[name] = ""
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def check_python(case: Case) -> Iterator[Finding]:
    """Which Python this is."""
    text = f"{platform.python_version()}, {sys.executable}"
    if sys.prefix != sys.base_prefix:
        yield Finding("Python", "ok", f"{text} (virtual environment)")
    elif os.environ.get("CONDA_PREFIX"):
        yield Finding("Python", "ok", f"{text} (conda)")
    else:
        fix = f"{sys.executable} -m venv .venv && source .venv/bin/activate"
        yield Finding("Python", "hint", f"{text}, in no virtual environment", fix)


def check_start_methods(case: Case) -> Iterator[Finding]:
    """Whether the kernel gives the engine what it starts and wakes workers with."""
    name = "start methods"
    ended = child.run_python(_FEATURES, timeout_s=TIMEOUT_S)
    if ended.status != 0:
        yield Finding(name, "broken", f"the probe failed: {ended.complaint}", KERNEL_FIX)
        return
    found: dict[str, str] = json.loads(ended.stdout)
    for feature, complaint in found.items():
        if complaint:
            yield Finding(name, "broken", f"{feature} does not work: {complaint}", KERNEL_FIX)
    if working := [feature for feature, complaint in found.items() if not complaint]:
        yield Finding(name, "ok", f"{', '.join(working)} (Linux {platform.release()})")


def check_extras(case: Case) -> Iterator[Finding]:
    """Optional packages that belong to no suite."""
    lacking, there = [], []
    for extra, distributions in EXTRAS.items():
        found = {name: version_of(name) for name in distributions}
        if all(found.values()):
            there += [f"{name} {number}" for name, number in found.items()]
        else:
            lacking.append(extra)
    if there:
        yield Finding("extras", "ok", listed(there))
    for extra in lacking:
        fix = f"{sys.executable} -m pip install 'polyarm[{extra}]'"
        yield Finding("extras", "hint", f"{extra} is not installed", fix)


def version_of(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
