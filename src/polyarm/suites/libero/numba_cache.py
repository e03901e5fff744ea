"""Compiles robosuite's numba functions into our cache: ``python -m …libero.numba_cache``.

Without it the first step of the first env takes some 14 s. numba keeps one machine code per
signature; these are the ones that stepping any of LIBERO's tasks asks for.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import types
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from polyarm.errors import StorageError
from polyarm.suites.cache import Progress

TIMEOUT_S = 600.0


def compile_functions(progress: Progress) -> bool:
    """Compile in a process of its own, unless that was done before.

    Needs ``NUMBA_CACHE_DIR`` in the environment.

    Returns:
        Whether anything was to be done.

    Raises:
        StorageError: It failed; the message ends with what the process said.
    """
    stamp = Path(os.environ["NUMBA_CACHE_DIR"]) / f"compiled-{_fingerprint()}"
    if stamp.exists():
        return False
    progress("compiling robosuite's functions, which takes some 15 s once", 0, 0)
    try:
        run = subprocess.run(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"compiling robosuite's functions took over {TIMEOUT_S} s") from error
    if run.returncode != 0:
        last = "\n".join((run.stdout + run.stderr).splitlines()[-8:])
        raise StorageError(
            f"compiling robosuite's functions into {stamp.parent} failed with status "
            f"{run.returncode}:\n{last}"
        )
    stamp.touch()
    return True


def _fingerprint() -> str:
    """What numba's cache depends on, as far as it can be told without importing numba."""
    package = importlib.util.find_spec("robosuite")
    origin = Path(package.origin) if package is not None and package.origin else Path()
    source = origin.with_name("utils") / "control_utils.py" if origin.name else origin
    changed = source.stat().st_mtime_ns if source.is_file() else 0
    parts = [sys.version, _version("numba"), _version("numpy"), str(source), str(changed)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def main() -> None:
    """Call every function once with each layout that stepping uses."""
    import numpy as np

    _load_robosuite_without_its_envs()
    transforms = importlib.import_module("robosuite.utils.transform_utils")
    controls = importlib.import_module("robosuite.utils.control_utils")
    rotation = np.eye(3)
    transforms.mat2quat(rotation)
    transforms.mat2quat(np.eye(4)[:3, :3])
    transforms.quat2mat(np.array([0.0, 0.0, 0.0, 1.0]))
    controls.orientation_error(rotation, rotation)
    mass = np.asfortranarray(np.eye(7))
    jacobian = np.asfortranarray(np.eye(6, 7))
    half = np.asfortranarray(np.eye(3, 7))
    *_, nullspace = controls.opspace_matrices(mass, jacobian, half, half)
    joints = np.zeros(7)
    controls.nullspace_torques(mass, nullspace, joints, joints, joints)


def _load_robosuite_without_its_envs() -> None:
    """Importing all of robosuite takes seconds and opens a log file that may be another user's."""
    package = importlib.util.find_spec("robosuite")
    if package is None:
        sys.exit("robosuite is not installed")
    stub = types.ModuleType("robosuite")
    stub.__path__ = list(package.submodule_search_locations or ())
    sys.modules["robosuite"] = stub
    vars(importlib.import_module("robosuite.macros"))["FILE_LOGGING_LEVEL"] = None


if __name__ == "__main__":
    main()
