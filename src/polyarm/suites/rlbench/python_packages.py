"""Builds PyRep and RLBench against a CoppeliaSim, in this Python or in an environment of its own.

Everything they need is installed first, and they themselves without dependencies and without build
isolation: so one file of constraints holds for all, and RLBench brings no PyRep of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from polyarm.errors import InvalidCall, MissingExtra
from polyarm.suites.cache import Progress, write_whole
from polyarm.suites.rlbench.environment import Environment, suite_folder
from polyarm.suites.rlbench.options import SetupOptions, State, Step

NAME = "PyRep and RLBench"
BUILD_TIMEOUT_S = 1800.0

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

_INSPECT = """
import importlib.metadata as metadata, json
found = {}
for name in ("pyrep", "rlbench"):
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        continue
    found[name] = [package.version, json.loads(package.read_text("direct_url.json") or "{}")]
print(json.dumps(found))
"""

# What PyRep's build puts into CoppeliaSim's folder: one without them was not built against.
_BUILT = ("simAddOnScript_PyRep.lua", "libcoppeliaSim.so.1")


def check_sources(options: SetupOptions) -> None:
    """Raise `InvalidCall` now, and not after the download, if a source does not exist."""
    for source in (options.pyrep, options.rlbench):
        _source(source)


def interpreter_of(options: SetupOptions) -> Path:
    """The Python that will have PyRep and RLBench."""
    if options.venv is None:
        return Path(sys.executable)
    return options.venv.absolute() / "bin" / "python"


def install(options: SetupOptions, root: Path, progress: Progress) -> list[Step]:
    """Make the environment if asked for, and build what is missing.

    Raises:
        MissingExtra: There is no installer, or a build failed; ends with what it said.
        InvalidCall: The folder for the environment holds something else.
    """
    environment = Environment(root, interpreter_of(options))
    steps = [_make_venv(options, progress)] if options.venv is not None else []
    state: State = "there"
    if options.force or complaint(options, environment):
        for command in commands(options, environment):
            progress(f"running {shlex.join(command)}", 0, 0)
            _run(command, environment)
        if why := complaint(options, environment):
            raise MissingExtra(f"{NAME} were built, but {why}")
        state = "done"
    found = _found(environment.interpreter)
    text = f"PyRep {found['pyrep'][0]}, RLBench {found['rlbench'][0]} in {environment.interpreter}"
    return [*steps, Step(NAME, state, text)]


def plan(options: SetupOptions, root: Path) -> list[Step]:
    """What `install` would do."""
    environment = Environment(root, interpreter_of(options))
    if not options.force and not complaint(options, environment):
        return [Step(NAME, "there", f"in {environment.interpreter}")]
    steps = []
    if options.venv is not None and not _has_python(options):
        steps = [Step("venv", "planned", f"would run\n{shlex.join(_venv_command(options))}")]
    exports = [f"{name}={shlex.quote(value)}" for name, value in environment.variables().items()]
    built = [shlex.join(command) for command in commands(options, environment, dry=True)]
    lines = [f"would write {_constraints_file()}, and run, with {' '.join(exports)}", *built]
    return [*steps, Step(NAME, "planned", "\n".join(lines))]


def complaint(options: SetupOptions, environment: Environment, *, deep: bool = True) -> str:
    """Why PyRep and RLBench cannot be used as they are, or ""; deep: import them, too."""
    if not environment.interpreter.exists():
        return f"there is no {environment.interpreter}"
    found = _found(environment.interpreter)
    for name, wanted in (("pyrep", options.pyrep), ("rlbench", options.rlbench)):
        if name not in found:
            return f"{name} is not installed in {environment.interpreter}"
        if not _is_from(wanted, found[name][1]):
            return f"{name} was installed from elsewhere than {wanted}"
    for name in _BUILT:
        if not (environment.root / name).exists():
            return f"PyRep was not built against {environment.root}: {name} is missing there"
    if not deep:
        return ""
    imports = [str(environment.interpreter), "-c", "import pyrep, rlbench"]
    status, output = _call(imports, environment.variables())
    last = (output.strip() or f"status {status}").splitlines()[-1]
    return f"importing them failed: {last}" if status else ""


def commands(
    options: SetupOptions, environment: Environment, *, dry: bool = False
) -> list[list[str]]:
    """The commands that install everything; unless dry, writes the constraints they name."""
    start = _installer(options, environment.interpreter)
    file = _constraints_file()
    if not dry:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, constraints(own=options.venv is not None))
    # Without a cache: a wheel that was built against another CoppeliaSim leaves nothing in this.
    uv = start[1:2] == ["pip"]
    built = ["--no-deps", "--no-build-isolation"]
    built += ["--no-cache", "--reinstall"] if uv else ["--no-cache-dir", "--force-reinstall"]
    return [
        [*start, "--constraint", str(file), *NEEDS, *BUILD_NEEDS],
        [*start, *built, _source(options.pyrep)],
        [*start, *built, _source(options.rlbench)],
    ]


def constraints(*, own: bool) -> str:
    """Bounds for an environment of its own; elsewhere, what is installed stays as it is."""
    if own:
        return CONSTRAINTS
    lines = []
    for need in (*NEEDS, *BUILD_NEEDS):
        name = re.split("[<>=]", need)[0]
        try:
            lines.append(f"{name}=={version(name)}\n")
        except PackageNotFoundError:
            lines += [line for line in CONSTRAINTS.splitlines(keepends=True) if name in line]
    return "".join(dict.fromkeys(lines))


def _installer(options: SetupOptions, interpreter: Path) -> list[str]:
    pip, uv = _has_pip(options, interpreter), shutil.which("uv")
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


def _has_pip(options: SetupOptions, interpreter: Path) -> bool:
    if not interpreter.exists():  # a dry run, and an environment that is yet to be made
        return options.installer != "uv"
    return _call([str(interpreter), "-c", "import pip"])[0] == 0


def _make_venv(options: SetupOptions, progress: Progress) -> Step:
    venv = interpreter_of(options).parent.parent
    if _has_python(options):
        return Step("venv", "there", str(venv))
    if venv.exists() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        raise InvalidCall(f"{venv} is no virtual environment; give another folder with --venv")
    progress(f"making the virtual environment {venv}", 0, 0)
    command = _venv_command(options)
    status, output = _call(command, timeout_s=BUILD_TIMEOUT_S)
    if status != 0 or not _has_python(options):
        last = "\n".join(output.splitlines()[-8:])
        raise MissingExtra(
            f"{venv} could not be made with: {shlex.join(command)}\n{last}\n"
            f"In Debian and Ubuntu: apt-get install python3-venv; or give: --installer uv"
        )
    return Step("venv", "done", str(venv))


def _venv_command(options: SetupOptions) -> list[str]:
    venv = str(interpreter_of(options).parent.parent)
    if options.installer == "uv" and (uv := shutil.which("uv")) is not None:
        return [uv, "venv", "--python", sys.executable, venv]
    return [sys.executable, "-m", "venv", venv]


def _has_python(options: SetupOptions) -> bool:
    """Whether the environment is complete; one whose making was interrupted has no pip."""
    interpreter = interpreter_of(options)
    return interpreter.exists() and (options.installer == "uv" or _has_pip(options, interpreter))


def _found(interpreter: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    status, output = _call([str(interpreter), "-c", _INSPECT])
    return dict(json.loads(output.splitlines()[-1])) if status == 0 else {}


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


def _run(command: Sequence[str], environment: Environment) -> None:
    # Where the environment is read-only, pip would turn to the user's home.
    variables = {**environment.variables(), "PIP_USER": "0"}
    status, output = _call(command, variables, timeout_s=BUILD_TIMEOUT_S)
    if status == 0:
        return
    last = "\n".join(output.splitlines()[-12:])
    raise MissingExtra(
        f"{shlex.join(command)} ended with status {status}. {_hint(output)}When it works, give the "
        f"same set-up again.\n{last}"
    )


def _call(
    command: Sequence[str], variables: Mapping[str, str] | None = None, *, timeout_s: float = 120.0
) -> tuple[int, str]:
    """The exit status, and all that was written."""
    try:
        run = subprocess.run(
            command,
            cwd="/",  # in a checkout of PyRep, Python would import that one
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"it did not end within {timeout_s:.0f} s"
    return run.returncode, run.stdout


def _hint(output: str) -> str:
    if "Python.h" in output:
        return "Python's headers are missing: apt-get install python3-dev. "
    if re.search(r"command '\S*(gcc|cc)' failed|No such file or directory: '\S*cc'", output):
        return "A C compiler is missing: apt-get install build-essential. "
    if re.search("Cannot find command 'git'|Git executable not found", output):
        return "git is missing: apt-get install git; or give folders: --pyrep and --rlbench. "
    if re.search("resolve host|Failed to establish|Connection|No matching distribution", output):
        return "Without a connection: --pyrep, --rlbench and PIP_FIND_LINKS. "
    return ""
