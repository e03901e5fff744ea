"""CoppeliaSim: where it is, whether it is the right one, and what the environment makes of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding, listed
from polyarm.errors import StorageError
from polyarm.suites.rlbench import catalogue, coppeliasim, environment, install
from polyarm.suites.rlbench.environment import Environment, suite_folder
from polyarm.suites.rlbench.options import VERSION

SETUP = "polyarm setup rlbench"


def find(case: Case) -> Environment | None:
    """Where RLBench is, or None if nothing names it or what does cannot be read."""
    try:
        found = environment.current()
    except StorageError:
        return None
    # As the suite does: an RLBench that this Python has comes before the set-up's.
    if found is not None and catalogue.installed_here():
        return Environment(found.root, Path(sys.executable))
    return found


def check_folder(case: Case) -> Iterator[Finding]:
    """Whether CoppeliaSim is there, intact and exactly the version that PyRep needs."""
    finding = _folder(case)
    yield finding if case.needs("rlbench") else finding.optional()


def check_variables(case: Case) -> Iterator[Finding]:
    """Whether the three variables agree; workers of ours get them in any case."""
    if (found := find(case)) is None:
        return
    for finding in _variables(found):
        yield finding if case.needs("rlbench") else finding.optional()


def check_add_ons(case: Case) -> Iterator[Finding]:
    """Whether servers that open ports start with every simulator."""
    if (found := find(case)) is None or not found.root.is_dir():
        return
    if enabled := coppeliasim.network_add_ons(found.root):
        names = listed(path.relative_to(found.root).as_posix() for path in enabled)
        text = f"{names}: polyarm's workers go without; others that start many at once crash"
        yield Finding("add-ons", "hint", text, _add_ons_fix(found.root))
    else:
        yield Finding("add-ons", "ok", "none that opens network ports is enabled")


def _add_ons_fix(root: Path) -> str:
    try:
        ours = coppeliasim.is_ours(root)
    except StorageError:
        ours = False
    if ours:
        return f"{SETUP} (renames them to *.disabled)"
    return f"for those others, rename them in {root}: mv NAME NAME.disabled"


def _folder(case: Case) -> Finding:
    name = "CoppeliaSim"
    try:
        found = environment.current()
    except StorageError as error:
        text = re.split(" Write it| Install it", str(error))[0]
        return Finding(name, "broken", text, _other_root())
    if found is None:
        text = f"neither {environment.ROOT} nor a set-up of ours names one, so no PyRep either"
        return Finding(name, "missing", text, SETUP)
    if not found.root.is_dir():
        return Finding(name, "missing", f"there is no folder {found.root}", _other_root())
    try:
        coppeliasim.check(found.root)
    except StorageError as error:
        return Finding(name, "broken", str(error), _other_root())
    if (why := install.rejected_root(found.root)) and os.environ.get(environment.ROOT):
        text = f"{VERSION} in {found.root}; {why.partition(' Unset')[0]}"
        return Finding(name, "warning", text, f"unset {environment.ROOT}")
    return Finding(name, "ok", f"{VERSION} in {found.root}")


def _other_root() -> str:
    """How to get to a good one: away from what the environment names, if it names one."""
    return f"unset {environment.ROOT} && {SETUP}" if os.environ.get(environment.ROOT) else SETUP


def _variables(found: Environment) -> Iterator[Finding]:
    name, root = "variables", found.root
    before = _folders_before(root)
    if before:
        text = f"LD_LIBRARY_PATH has another CoppeliaSim first: {before[0]}"
        fix = f"export LD_LIBRARY_PATH={root}:$LD_LIBRARY_PATH"
        yield Finding(name, "broken", text, fix)
    plugins = os.environ.get("QT_QPA_PLATFORM_PLUGIN_PATH", "")
    if plugins and not _same(Path(plugins).absolute(), root):
        text = f"QT_QPA_PLATFORM_PLUGIN_PATH is {plugins}, which has no plugins for this Qt"
        yield Finding(name, "warning", text, f"export QT_QPA_PLATFORM_PLUGIN_PATH={root}")
    written = Environment.read()
    if written is not None and written.root != root:
        text = f"{environment.ROOT} is {root}, but {SETUP} installed {written.root}"
        yield Finding(name, "warning", text, f"source {suite_folder() / 'env.sh'}")
    wanted = found.variables({})
    unset = [variable for variable in wanted if not os.environ.get(variable)]
    if not unset and _in_library_path(root) and not before:
        yield Finding(name, "ok", f"{', '.join(wanted)} name {root}")
    elif not before:
        lacking = unset or ["LD_LIBRARY_PATH"]
        text = f"polyarm sets {', '.join(lacking)} for its workers; other programs lack it"
        yield Finding(name, "ok" if written else "hint", text, "" if written else _EXPORTS)


_EXPORTS = (
    "export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$COPPELIASIM_ROOT "
    "QT_QPA_PLATFORM_PLUGIN_PATH=$COPPELIASIM_ROOT"
)


def _library_path() -> list[Path]:
    parts = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [Path(part).absolute() for part in parts if part]


def _in_library_path(root: Path) -> bool:
    return root in _library_path()


def _folders_before(root: Path) -> list[Path]:
    """Folders with another CoppeliaSim that the loader looks into before ``root``."""
    parts = _library_path()
    first = parts[: parts.index(root)] if root in parts else parts
    others = [part for part in first if (part / coppeliasim.LIBRARY).exists()]
    return [part for part in others if not _same(part, root)]


def _same(folder: Path, root: Path) -> bool:
    """Whether both are the same CoppeliaSim: PyRep may have been built in one of links."""
    library = coppeliasim.LIBRARY
    return folder == root or (folder / library).resolve() == (root / library).resolve()
