"""The examination: every check in turn; one that fails is a finding and not the end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from polyarm.doctor import (
    coppeliasim,
    devices,
    frames,
    gpu,
    interpreter,
    libraries,
    machine,
    rlbench,
    suites,
    xserver,
)
from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding

Check = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Section:
    """Checks under one heading.

    Attributes:
        title: The heading.
        checks: What is looked at, in a user's words, and how.
    """

    title: str
    checks: dict[str, Check]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, by heading."""

    suite: str | None
    num_envs: int
    seconds: float = 0.0
    sections: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """All of them."""
        return [finding for findings in self.sections.values() for finding in findings]

    @property
    def healthy(self) -> bool:
        """Whether nothing that was asked for is missing or broken."""
        return not any(finding.fails for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ok": self.healthy,
            "suite": self.suite,
            "num_envs": self.num_envs,
            "seconds": round(self.seconds, 3),
            "sections": {
                title: [asdict(finding) for finding in findings]
                for title, findings in self.sections.items()
            },
        }


def sections(case: Case) -> list[Section]:
    """The checks that concern this case."""
    rendering: dict[str, Check] = {"GL libraries": libraries.check_gl}
    if not case.needs_x:
        rendering["EGL devices"] = devices.check
    if case.needs_x or case.suite_name is None:
        rendering |= {"Xvfb": xserver.check_xvfb, "X screens": xserver.check_screens}
    rendering["test frames"] = frames.check
    found = [
        Section(
            "Python",
            {
                "Python": interpreter.check_python,
                "start methods": interpreter.check_start_methods,
                "extras": interpreter.check_extras,
            },
        ),
        Section("Suites", {"suites": suites.check}),
        Section("Rendering", rendering),
    ]
    if case.concerns("rlbench"):
        parts: dict[str, Check] = {"CoppeliaSim": coppeliasim.check_folder}
        if case.needs("rlbench") or coppeliasim.find(case) is not None:
            parts |= {
                "Qt libraries": libraries.check_qt,
                "variables": coppeliasim.check_variables,
                "add-ons": coppeliasim.check_add_ons,
                "PyRep and RLBench": rlbench.check,
            }
        found.append(Section("RLBench", parts))
    last: dict[str, Check] = {
        "cores": machine.check_cores,
        "memory": machine.check_memory,
        "limits": machine.check_limits,
        "/dev/shm": machine.check_shared_memory,
        "GPU": gpu.check,
    }
    return [*found, Section("Machine", last)]


def examine(
    case: Case,
    started: Callable[[str], None] = lambda _: None,
    found: Callable[[str, Finding], None] = lambda _, __: None,
) -> Report:
    """Go through all checks.

    Args:
        case: What is asked.
        started: Is told which check begins.
        found: Is told each finding with its heading, as it is found.
    """
    began = time.monotonic()
    results: dict[str, list[Finding]] = {}
    for section in sections(case):
        for name, check in section.checks.items():
            started(name)
            for finding in run_check(name, check, case):
                results.setdefault(section.title, []).append(finding)
                found(section.title, finding)
    return Report(case.suite_name, case.num_envs, time.monotonic() - began, results)


def run_check(name: str, check: Check, case: Case) -> Iterable[Finding]:
    """The findings of a check; what it raises is the last of them."""
    try:
        yield from check(case)
    except Exception as error:  # noqa: BLE001  a doctor that dies of a finding helps nobody
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        text = f"the check itself failed: {type(error).__name__}: {error} ({where})"
        yield Finding(name, "broken", text, "this is a fault of the doctor's: please report it")
