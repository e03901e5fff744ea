"""Builds PyRep and RLBench against a CoppeliaSim, in this Python or in an environment of its own.

Everything they need is installed first, and they themselves without dependencies: RLBench brings no
PyRep of its own. They are built without isolation, so that one file of constraints holds for all,
unless the setuptools of an environment that is not ours is too new for them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from polyarm.errors import InvalidCall, MissingExtra
from polyarm.suites.cache import Progress, write_whole
from polyarm.suites.rlbench import venv
from polyarm.suites.rlbench.coppeliasim import LINKED
from polyarm.suites.rlbench.environment import Environment, earlier, suite_folder
from polyarm.suites.rlbench.inspection import OUTSIDE, PACKAGES, SCRIPT, Facts
from polyarm.suites.rlbench.options import PYREP, RLBENCH, SetupOptions, State, Step
from polyarm.suites.rlbench.venv import BUILD_TIMEOUT_S, Ended, call

NAME = "PyRep and RLBench"

NEEDS = ("numpy", "gymnasium>=1.1", "cloudpickle>=3", "scipy", "pillow", "pyquaternion", "natsort")
"""What RLBench imports (gymnasium without declaring it), and what a polyarm worker does."""

BUILD_NEEDS = ("cffi>=1.0", "setuptools", "wheel")
"""PyRep's build asks for cffi; Python as of 3.12 brings no setuptools of its own."""

# For an environment of its own:
# - RLBench, PyRep and pyquaternion were written for NumPy 1 and name no upper bound. NumPy 1.26
#   ends with Python 3.12; where there is none, NumPy 2 has to do.
# - OpenCV asks for NumPy 2 as of 4.12, so one that is added later must be older. Headless, because
#   the other one brings Qt plugins that CoppeliaSim's Qt would load.
# - setuptools 81 and later drop what builds of this age use; below 68 it does not know 3.12.
CONSTRAINTS = """\
numpy>=1.26,<2; python_version < "3.13"
opencv-python-headless<4.12; python_version < "3.13"
setuptools>=68,<81
"""

BUILD_CONSTRAINTS = "setuptools>=68,<81\n"
_TOO_NEW = 81

# What PyRep's build puts into CoppeliaSim's folder: one without them was not built against.
_BUILT = ("simAddOnScript_PyRep.lua", LINKED)

# The pyrep of the package index is something else, and has no PyRep.
_IMPORTS = f"{OUTSIDE}from pyrep import PyRep; import rlbench"

_DEFAULTS = {"pyrep": PYREP, "rlbench": RLBENCH}


def check_sources(options: SetupOptions) -> None:
    """Raise `InvalidCall` now, and not after the download, if a source does not exist."""
    for source in (options.pyrep, options.rlbench):
        if source is not None:
            _source(source)


def venv_of(options: SetupOptions) -> Path | None:
    """The virtual environment that is asked for, or was when RLBench was set up last."""
    if options.venv is not None:
        return options.venv.absolute()
    written = earlier()
    return None if written is None else written.venv


def interpreter_of(options: SetupOptions) -> Path:
    """The Python that will have PyRep and RLBench: of that environment, the last one's, or this."""
    if (folder := venv_of(options)) is not None:
        return folder / "bin" / "python"
    written = earlier()
    if written is not None and written.interpreter.exists():
        return written.interpreter
    return Path(sys.executable)


def is_built_against(root: Path) -> bool:
    """Whether PyRep's build has put there what it needs."""
    return all((root / name).exists() for name in _BUILT)


def install(options: SetupOptions, root: Path, progress: Progress) -> list[Step]:
    """Make the environment if asked for, and build what is missing.

    Raises:
        MissingExtra: There is no installer, or a build failed; ends with what it said.
        InvalidCall: The folder for the environment holds something else.
    """
    environment = Environment(root, interpreter_of(options))
    folder = venv_of(options)
    steps = [] if folder is None else [venv.make(folder, options.installer, progress)]
    state: State = "there"
    if options.force or complaint(options, environment):
        for command in commands(options, environment):
            progress(f"running {shlex.join(command)}", 0, 0)
            _run(command, environment)
        if why := complaint(options, environment):
            raise MissingExtra(f"{NAME} were built, but {why}")
        state = "done"
    return [*steps, Step(NAME, state, _described(environment))]


def plan(options: SetupOptions, root: Path) -> list[Step]:
    """What `install` would do."""
    environment = Environment(root, interpreter_of(options))
    if not options.force and not complaint(options, environment):
        return [Step(NAME, "there", _described(environment))]
    steps = []
    folder = venv_of(options)
    if folder is not None and not venv.is_complete(folder, options.installer):
        making = shlex.join(venv.command(folder, options.installer))
        steps = [Step("venv", "planned", f"would run\n{making}")]
    built = commands(options, environment, dry=True)
    variables = _variables(built[-1], environment).items()
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables)
    lines = [f"would write {_constraints_file()}, and run, with {exports}", *map(shlex.join, built)]
    return [*steps, Step(NAME, "planned", "\n".join(lines))]


def complaint(options: SetupOptions, environment: Environment, *, deep: bool = True) -> str:
    """Why PyRep and RLBench cannot be used as they are, or ""; deep: import them, too.

    Whose they are does not matter, unless a source was asked for.
    """
    if not environment.interpreter.exists():
        return f"there is no {environment.interpreter}"
    packages = inspect(environment.interpreter).packages
    for name, wanted in (("pyrep", options.pyrep), ("rlbench", options.rlbench)):
        if name not in packages:
            return f"{name} is not installed in {environment.interpreter}"
        if wanted is not None and not _is_from(wanted, packages[name].origin):
            return f"{name} was installed {packages[name].words} instead of from {wanted}"
    for name in _BUILT:
        if not (environment.root / name).exists():
            return f"PyRep was not built against {environment.root}: {name} is missing there"
    if not deep:
        return ""
    ended = _imported(environment)
    last = (ended.output.strip() or f"status {ended.status}").splitlines()[-1]
    return f"importing them failed: {last}" if ended.status else ""


def inspect(interpreter: Path) -> Facts:
    """What a Python has; nothing if it cannot be asked."""
    names = [re.split("[<>=]", need)[0] for need in (*NEEDS, *BUILD_NEEDS)]
    ended = call([str(interpreter), "-c", SCRIPT, *names])
    try:
        return Facts.of(ended.stdout) if ended.status == 0 else Facts()
    except ValueError:
        return Facts()


def commands(
    options: SetupOptions, environment: Environment, *, dry: bool = False
) -> list[list[str]]:
    """The commands that install everything; unless dry, writes the constraints they name."""
    start = _installer(options, environment.interpreter)
    facts = inspect(environment.interpreter) if environment.interpreter.exists() else Facts()
    own = _is_own(options, environment.interpreter)
    isolated = not own and _number(facts.versions.get("setuptools", "0")) >= _TOO_NEW
    file = _constraints_file()
    if not dry:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, CONSTRAINTS if own else constraints(facts.versions))
        write_whole(_build_constraints_file(), BUILD_CONSTRAINTS)
    # Without a cache: a wheel that was built against another CoppeliaSim leaves nothing in this.
    uv = start[1:2] == ["pip"]
    built = ["--no-deps", *([] if isolated else ["--no-build-isolation"])]
    built += ["--no-cache", "--reinstall"] if uv else ["--no-cache-dir", "--force-reinstall"]
    needs = [*NEEDS, *(BUILD_NEEDS[:1] if isolated else BUILD_NEEDS)]
    sources = _sources(options, environment, facts)
    return [
        [*start, "--constraint", str(file), *needs],
        *([*start, *built, *source] for source in sources),
    ]


def constraints(versions: Mapping[str, str]) -> str:
    """For an environment that is not ours: what is installed there stays as it is.

    Args:
        versions: Of what is installed there.
    """
    lines = []
    for need in (*NEEDS, *BUILD_NEEDS):
        name = re.split("[<>=]", need)[0]
        if name in versions:
            lines.append(f"{name}=={versions[name]}\n")
        else:
            lines += [line for line in CONSTRAINTS.splitlines(keepends=True) if name in line]
    return "".join(dict.fromkeys(lines))


def _sources(options: SetupOptions, environment: Environment, facts: Facts) -> list[list[str]]:
    """What is built, as arguments of the installer: what is missing or broken, unless forced.

    What is somebody's own, and does not work here, is built from where it came from.
    """
    broken = len(facts.packages) == len(PACKAGES) and not is_built_against(environment.root)
    failing = {"pyrep"} if broken else set()
    if len(facts.packages) == len(PACKAGES) and not broken and _imported(environment).status:
        failing = set(PACKAGES)
    found = []
    for name, asked in (("pyrep", options.pyrep), ("rlbench", options.rlbench)):
        package = facts.packages.get(name)
        if package is None or options.force or (asked and not _is_from(asked, package.origin)):
            found.append([_source(asked or _DEFAULTS[name])])
        elif name in failing:
            again = [] if asked else _again(package.origin)
            found.append(again or [_source(asked or _DEFAULTS[name])])
    return found


def _again(origin: Mapping[str, Any]) -> list[str]:
    """Where a package was installed from, as arguments of the installer; [] if it has gone."""
    url = str(origin.get("url", ""))
    if commit := origin.get("vcs_info", {}).get("commit_id"):
        return [f"git+{url}@{commit}"]
    folder = Path(unquote(urlsplit(url).path))
    if not url.startswith("file:") or not folder.exists():
        return []
    editable = origin.get("dir_info", {}).get("editable", False)
    return ["--editable", str(folder)] if editable else [str(folder)]


def _imported(environment: Environment) -> Ended:
    return call([str(environment.interpreter), "-c", _IMPORTS], environment.variables())


def _described(environment: Environment) -> str:
    packages = inspect(environment.interpreter).packages
    listed = [
        f"{title} {packages[name].version or 'without a version'} ({packages[name].words})"
        for name, title in PACKAGES.items()
    ]
    return f"{', '.join(listed)} in {environment.interpreter}"


def _is_own(options: SetupOptions, interpreter: Path) -> bool:
    """Whether the environment is there for RLBench alone: the set-up made it, or will."""
    folder = venv_of(options)
    return folder is not None and (not interpreter.exists() or venv.is_own(folder))


def _number(version: str) -> int:
    return int((re.match(r"\d+", version) or ["0"])[0])


def _installer(options: SetupOptions, interpreter: Path) -> list[str]:
    # In a dry run the environment may be yet to be made.
    there, uv = interpreter.exists(), shutil.which("uv")
    pip = venv.has_pip(interpreter) if there else options.installer != "uv"
    if pip and options.installer in ("auto", "pip"):
        return [str(interpreter), "-m", "pip", "install", "--no-input"]
    if uv is not None and options.installer in ("auto", "uv"):
        return [uv, "pip", "install", "--python", str(interpreter)]
    if options.installer == "uv":
        raise MissingExtra("there is no uv. Install it, or leave out: --installer uv")
    raise MissingExtra(
        f"{interpreter} has no pip{'' if uv else ', and there is no uv'}. Get pip with: "
        f"{interpreter} -m ensurepip{'; or give: --installer uv' if uv else ''}"
    )


def _is_from(wanted: str, origin: Mapping[str, Any]) -> bool:
    """Whether an installed package came from there, as far as its record tells."""
    if commit := re.fullmatch(r"git\+.*@([0-9a-f]{40})", wanted):
        return bool(origin.get("vcs_info", {}).get("commit_id") == commit[1])
    if wanted and (path := Path(wanted).expanduser()).exists():
        return bool(origin.get("url") == path.resolve().as_uri())
    return True


def _source(wanted: str) -> str:
    """What pip and uv are given: a whole path, or an address.

    Never a bare name: the "pyrep" of the package index is something else.
    """
    path = Path(wanted).expanduser()
    if wanted and path.exists():
        return str(path.resolve())
    if "://" in wanted:
        return wanted
    raise InvalidCall(f"{wanted!r} is no folder, archive or address that PyRep or RLBench is in")


def _constraints_file() -> Path:
    return suite_folder() / "constraints.txt"


def _build_constraints_file() -> Path:
    return suite_folder() / "build-constraints.txt"


def _variables(command: Sequence[str], environment: Environment) -> dict[str, str]:
    # Where the environment is read-only, pip would turn to the user's home.
    variables = {**environment.variables(), "PIP_USER": "0"}
    if "--no-deps" in command and "--no-build-isolation" not in command:
        # As of 25.3 pip has a variable of its own for what bounds isolated builds.
        names = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_BUILD_CONSTRAINT")
        variables |= dict.fromkeys(names, str(_build_constraints_file()))
    return variables


def _run(command: Sequence[str], environment: Environment) -> None:
    ended = call(command, _variables(command, environment), timeout_s=BUILD_TIMEOUT_S)
    if ended.status == 0:
        return
    last = "\n".join(ended.output.splitlines()[-12:])
    raise MissingExtra(
        f"{shlex.join(command)} ended with status {ended.status}. {_hint(ended.output)}When it "
        f"works, give the same set-up again.\n{last}"
    )


def _hint(output: str) -> str:
    if "externally-managed-environment" in output or "externally managed" in output:
        return "This Python is the system's: give --venv ~/rlbench, an environment of its own. "
    if "Python.h" in output:
        return "Python's headers are missing: apt-get install python3-dev. "
    if re.search(r"command '\S*(gcc|cc)' failed|No such file or directory: '\S*cc'", output):
        return "A C compiler is missing: apt-get install build-essential. "
    if re.search("Cannot find command 'git'|Git executable not found", output):
        return "git is missing: apt-get install git; or give folders: --pyrep and --rlbench. "
    if re.search("resolve host|Failed to establish|Connection|No matching distribution", output):
        return "Without a connection: --pyrep, --rlbench and PIP_FIND_LINKS. "
    return ""
