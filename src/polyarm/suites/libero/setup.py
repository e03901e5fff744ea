"""Sets LIBERO up: packages without the 7 GB they ask for, assets, compiled functions.

It never prompts, writes only to our cache and to the Python environment, and does nothing that is
done already.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from polyarm.contracts import Requirement
from polyarm.errors import InvalidCall, MissingExtra, StorageError
from polyarm.suites.cache import Progress
from polyarm.suites.libero.assets import (
    Manifest,
    assets_folder,
    check_assets,
    prepare_libero_config,
)
from polyarm.suites.libero.install import install_assets
from polyarm.suites.libero.numba_cache import compile_functions

PACKAGES = {"hf-libero": "0.1.4", "robosuite": "1.4.0", "bddl": "1.0.1"}
"""Installed without their dependencies: robomimic alone brings CUDA and torchvision."""

MUJOCO = ((3, 2, 7), (3, 9))
"""The first version that steps LIBERO, and the first that is not known to."""

EXTRA = "pip install 'polyarm[libero]'"
SETUP = "polyarm setup libero"
PIP_TIMEOUT_S = 1800.0

# What LIBERO's envs and robosuite import, as distribution: module.
_IMPORTED = {
    "easydict": "easydict",
    "future": "future",
    "matplotlib": "matplotlib",
    "mujoco": "mujoco",
    "numba": "numba",
    "opencv": "cv2",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scipy": "scipy",
    "termcolor": "termcolor",
}


def setup(
    assets: Path | None, progress: Progress, *, force: bool = False, revision: str = "main"
) -> list[str]:
    """Install what is missing.

    Args:
        assets: A folder or an archive with LIBERO's assets. None takes those of a LIBERO that is
            installed here, or downloads them.
        progress: Is told how it goes.
        force: Install the assets even if they are there.
        revision: Which revision of the assets to download.

    Returns:
        What there is now, a line for each part.

    Raises:
        MissingExtra: A package is missing and could not be installed.
        StorageError: The assets could not be installed.
        InvalidCall: Assets are given here and by ``POLYARM_LIBERO_ASSETS``.
        RunConflict: Another set-up does not come to an end.
    """
    if missing := [need for need in _extra() if need.found is None]:
        names = ", ".join(need.name for need in missing)
        raise MissingExtra(f"LIBERO needs {names}. Install with: {EXTRA}")
    lines = [_install_packages(progress), _install_assets(assets, progress, revision, force=force)]
    prepare_libero_config()
    done = "compiled now" if compile_functions(progress) else "already there"
    return [*lines, f"compiled functions: {os.environ['NUMBA_CACHE_DIR']} ({done})"]


def requirements(*, deep: bool = False, progress: Progress | None = None) -> list[Requirement]:
    """What LIBERO needs here, and whether it is there.

    Args:
        deep: Read every file of the assets instead of looking at its size.
        progress: Is told how the reading goes.
    """
    packages = [
        Requirement(f"{name} {wanted}", _found(name, wanted), SETUP)
        for name, wanted in PACKAGES.items()
    ]
    return [*packages, *_extra(), _assets(deep=deep, progress=progress)]


def _extra() -> list[Requirement]:
    """What `pip install 'polyarm[libero]'` brings."""
    found = []
    for name, module in _IMPORTED.items():
        there = importlib.util.find_spec(module) is not None
        if name == "mujoco":
            found.append(_mujoco())
        else:
            found.append(Requirement(name, (_version(name) or "yes") if there else None, EXTRA))
    return found


def _mujoco() -> Requirement:
    there = _version("mujoco")
    low, high = (".".join(map(str, bound)) for bound in MUJOCO)
    name = f"mujoco from {low}, below {high}"
    if there is not None and not MUJOCO[0] <= _numbers(there) < MUJOCO[1]:
        return Requirement(f"{name} (not {there})", None, EXTRA)
    return Requirement(name, there, EXTRA)


def _assets(*, deep: bool, progress: Progress | None) -> Requirement:
    folder = assets_folder()
    try:
        check_assets(folder, deep=deep, progress=progress)
    except StorageError as error:
        return Requirement("assets", None, str(error))
    return Requirement("assets", str(folder), "")


def _install_packages(progress: Progress) -> str:
    wrong = {name: wanted for name, wanted in PACKAGES.items() if not _found(name, wanted)}
    listing = ", ".join(f"{name} {wanted}" for name, wanted in PACKAGES.items())
    if not wrong:
        return f"packages: {listing} (already there)"
    wanted = [f"{name}=={number}" for name, number in wrong.items()]
    progress(f"installing {' '.join(wanted)} without their dependencies", 0, 0)
    command = _installer(wanted)
    run = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=PIP_TIMEOUT_S,
        # Where the environment is read-only, pip would turn to the user's home.
        env={**os.environ, "PIP_USER": "0"},
        check=False,
    )
    importlib.invalidate_caches()
    still = [name for name, number in wrong.items() if not _found(name, number)]
    if run.returncode != 0 or still:
        last = "\n".join(run.stdout.splitlines()[-12:])
        raise MissingExtra(
            f"{', '.join(still or wrong)} could not be installed (status {run.returncode}). "
            f"Install with: {shlex.join(command)}\n{last}"
        )
    return f"packages: {listing} (installed now: {', '.join(wanted)})"


def _installer(wanted: Sequence[str]) -> list[str]:
    """A command that installs exactly these into this Python's environment."""
    if importlib.util.find_spec("pip") is not None:
        options = ["--no-deps", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
        return [sys.executable, "-m", "pip", "install", *options, *wanted]
    if (uv := shutil.which("uv")) is not None:
        options = ["--python", sys.executable, "--no-deps", "--no-cache"]
        return [uv, "pip", "install", *options, *wanted]
    raise MissingExtra(
        f"{sys.executable} has no pip, and there is no uv. Get pip with: "
        f"{sys.executable} -m ensurepip; or install by other means, without dependencies: "
        f"{' '.join(wanted)}"
    )


def _install_assets(
    source: Path | None,
    progress: Progress,
    revision: str,
    *,
    force: bool,
) -> str:
    if given := os.environ.get("POLYARM_LIBERO_ASSETS"):
        if source is not None:
            raise InvalidCall(
                f"POLYARM_LIBERO_ASSETS already names the assets ({given}); unset it to install "
                f"those of {source}"
            )
        check_assets(assets_folder())
        return f"assets: {given} (named by POLYARM_LIBERO_ASSETS, used as they are)"
    manifest, new = install_assets(source, progress, force=force, revision=revision)
    return _described(manifest, new=new, asked=source)


def _described(manifest: Manifest, *, new: bool, asked: Path | None) -> str:
    size = f"{len(manifest.files):,} files, {manifest.nbytes / 1e6:,.0f} MB in {assets_folder()}"
    origin = manifest.source + (f" at {manifest.revision[:12]}" if manifest.revision else "")
    if new:
        return f"assets: {size} (installed now from {origin})"
    other = asked is not None and str(asked.resolve()) != manifest.source
    return f"assets: {size} (already there, from {origin}{'; --force replaces them' * other})"


def _found(distribution: str, wanted: str) -> str | None:
    found = _version(distribution)
    return found if found == wanted else None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
