"""How LIBERO is imported: quietly, without GL, and without writing where it has no business.

Left to themselves, its packages ask for a dataset folder on stdin, log into one file that belongs
to whichever user came first, load GL libraries whatever ``MUJOCO_GL`` says, and refuse a GPU whose
EGL index differs from its CUDA index.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyarm.errors import MissingExtra
from polyarm.suites.libero import assets
from polyarm.suites.libero.assets import INSTALL


def import_libero() -> Any:
    """The module ``libero.libero.envs``, with its assets found.

    Raises:
        MissingExtra: Something is not installed.
        StorageError: Assets are missing or damaged.
    """
    folder = assets.checked_folder()
    assets.prepare_libero_config()
    try:
        _import_mujoco()  # chooses its GL by MUJOCO_GL, before that is hidden
        _preset_robosuite()
        with _hidden("CUDA_VISIBLE_DEVICES"), _replaced("MUJOCO_GL", "disable"):
            envs = importlib.import_module("libero.libero.envs")
    except ImportError as error:
        raise MissingExtra(
            f"LIBERO needs {error.name or 'libero'}, which cannot be imported ({error}). "
            f"Install it with: {INSTALL}"
        ) from error
    # LIBERO ignores the folder named in its own configuration.
    libero: Any = importlib.import_module("libero.libero")
    libero._assets_path_cache = str(folder)
    return envs


def _import_mujoco() -> None:
    """Import MuJoCo, and keep it from caching meshes and textures: models have their own copies.

    That saves some 220 MB. In MuJoCo 3.3.0 a cache that holds something cannot be emptied without
    a crash, so this is done before anything can have been built.
    """
    first = "mujoco" not in sys.modules
    mujoco: Any = importlib.import_module("mujoco")
    if not first:
        return
    file = Path(mujoco.__file__).with_name(f"libmujoco.so.{mujoco.__version__}")
    library = ctypes.CDLL(str(file))
    if hasattr(library, "mj_setCacheSize") and hasattr(library, "mj_globalCache"):
        library.mj_globalCache.restype = ctypes.c_void_p
        library.mj_setCacheSize.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.mj_setCacheSize(library.mj_globalCache(), 0)


def _preset_robosuite() -> None:
    """Load robosuite's settings before robosuite does, and change what it does on import."""
    if "robosuite" in sys.modules:
        return
    package = importlib.util.find_spec("robosuite")
    if package is None or package.origin is None:
        raise MissingExtra(f"robosuite is not installed. Install it with: {INSTALL}")
    file = Path(package.origin).with_name("macros.py")
    spec = importlib.util.spec_from_file_location("robosuite.macros", file)
    if spec is None or spec.loader is None:
        raise MissingExtra(f"{file} cannot be loaded. Install it anew with: {INSTALL}")
    macros: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.FILE_LOGGING_LEVEL = None  # it goes to /tmp/robosuite.log
    macros.CONSOLE_LOGGING_LEVEL = "ERROR"  # silences advice about macro files
    macros.MUJOCO_GPU_RENDERING = False  # it overrides MUJOCO_GL
    sys.modules["robosuite.macros"] = macros


@contextmanager
def _replaced(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.get(name)
    _set(name, value)
    try:
        yield
    finally:
        _set(name, before)


def _hidden(name: str) -> Any:
    return _replaced(name, None)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
