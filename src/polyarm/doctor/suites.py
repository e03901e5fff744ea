"""What each suite says that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from polyarm import registry
from polyarm.contracts import Requirement
from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding, listed
from polyarm.errors import PolyarmError

_COMMANDS = ("pip ", "polyarm ")

EXAMINED_ELSEWHERE = {"rlbench"}
"""Suites whose requirements have lines of their own."""


def check(case: Case) -> Iterator[Finding]:
    """A line for what each suite has, and one for each fix of what it lacks."""
    names = registry.suite_names() if case.suite_name is None else [case.suite_name]
    for name in names:
        if name in EXAMINED_ELSEWHERE:
            continue
        if case.needs(name):
            yield from _requirements(name)
        else:
            yield _in_one_line(name, list(_requirements(name)))


def _requirements(name: str) -> Iterator[Finding]:
    try:
        needs = registry.load(name).requirements()
    except PolyarmError as error:
        yield Finding(name, "broken", str(error), "install what its message names")
        return
    there = [_found(need) for need in needs if need.found is not None]
    if there or not needs:
        yield Finding(name, "ok", listed(there) or "needs nothing")
    by_fix: dict[str, list[str]] = {}
    for need in needs:
        if need.found is None:
            by_fix.setdefault(need.fix, []).append(need.name)
    for fix, lacking in by_fix.items():
        yield Finding(name, "missing", listed(lacking), fix)


def _in_one_line(name: str, findings: list[Finding]) -> Finding:
    """A suite that nobody asked for: there, or the commands that bring what it lacks."""
    failing = [finding for finding in findings if finding.fails]
    if not failing or failing[0].status == "broken":
        return findings[0].optional()
    fixes = [finding.fix for finding in failing]
    commands = sorted(fix for fix in fixes if fix.startswith(_COMMANDS))
    text = f"without {', '.join(finding.text for finding in failing)}"
    return Finding(name, "hint", text, " && ".join(commands or fixes))


def _found(need: Requirement) -> str:
    version = need.found or ""
    return need.name if version in need.name.split() else f"{need.name} {version}"
