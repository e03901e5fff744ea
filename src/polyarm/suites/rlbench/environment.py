"""What CoppeliaSim must find in its process's environment, kept in two small files.

``env.sh`` is for shells, ``env.json`` for workers that are started without it. Nobody's
``.bashrc`` is touched.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from polyarm.errors import StorageError
from polyarm.suites.cache import cache_folder, write_whole
from polyarm.suites.rlbench.coppeliasim import version_of
from polyarm.suites.rlbench.options import VERSION

ROOT = "COPPELIASIM_ROOT"
_LIBRARIES = "LD_LIBRARY_PATH"
_QT = "QT_QPA_PLATFORM_PLUGIN_PATH"

# Last in a shell, as PyRep's own instructions have it: other programs of that shell keep their
# libraries.
_SHELL = """\
# Written by `polyarm setup rlbench`, for: source {file}
export COPPELIASIM_ROOT={root}
case ":${{LD_LIBRARY_PATH:-}}:" in
  *":$COPPELIASIM_ROOT:"*) ;;
  *) export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}$COPPELIASIM_ROOT" ;;
esac
export QT_QPA_PLATFORM_PLUGIN_PATH="$COPPELIASIM_ROOT"
"""

_logger = logging.getLogger(__name__)


def suite_folder() -> Path:
    """The part of the cache that is RLBench's."""
    return cache_folder() / "rlbench"


def folder_name(root: Path) -> str:
    """A name for what belongs to this CoppeliaSim, in folders of ours."""
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]


def writable_twin(root: Path) -> Path:
    """Where PyRep is built for a CoppeliaSim that cannot be written to: links to all of it."""
    return suite_folder() / "twins" / folder_name(root)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where CoppeliaSim is, and which Python has PyRep and RLBench.

    Attributes:
        root: CoppeliaSim's folder.
        interpreter: The Python that imports ``pyrep`` and ``rlbench``.
        venv: The virtual environment that the set-up was asked for, if it was.
    """

    root: Path
    interpreter: Path
    venv: Path | None = field(default=None, compare=False)

    def variables(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables that a process of ours needs before it starts.

        Args:
            inherited: The environment that they will be added to; by default this process's.
        """
        inherited = os.environ if inherited is None else inherited
        root = str(self.root)
        others = [part for part in inherited.get(_LIBRARIES, "").split(":") if part]
        # First: another CoppeliaSim among them has libraries of the same names.
        libraries = dict.fromkeys([root, *others])
        return {ROOT: root, _LIBRARIES: ":".join(libraries), _QT: root}

    def write(self) -> bool:
        """Write both files; returns whether that changed anything."""
        folder = suite_folder()
        shell = _SHELL.format(file=folder / "env.sh", root=shlex.quote(str(self.root)))
        data = {"format": 1, "interpreter": str(self.interpreter), **self.variables({})}
        data |= {} if self.venv is None else {"venv": str(self.venv)}
        texts = {"env.sh": shell, "env.json": json.dumps(data, indent=2) + "\n"}
        changed = False
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            file = folder / name
            if not file.is_file() or file.read_text() != text:
                write_whole(file, text)
                changed = True
        return changed

    @classmethod
    def read(cls) -> Environment | None:
        """What the last set-up wrote, or None if there was none.

        Raises:
            StorageError: The file is there, but cannot be used.
        """
        file = suite_folder() / "env.json"
        try:
            data = json.loads(file.read_text())
            venv = Path(data["venv"]) if "venv" in data else None
            return cls(Path(data[ROOT]), Path(data["interpreter"]), venv)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{file} cannot be read ({error!r}). Write it anew with: polyarm setup rlbench"
            ) from error


def earlier() -> Environment | None:
    """What the last set-up wrote, for the next one; None if that cannot be used."""
    try:
        return Environment.read()
    except StorageError:
        return None  # it is about to be written anew


def current() -> Environment | None:
    """Where RLBench is.

    ``$COPPELIASIM_ROOT`` if it is exactly the version that PyRep needs; else, with a warning if
    that names another, what the set-up wrote.

    Raises:
        StorageError: The set-up's file cannot be used; or the variable names something else, and
            there was no set-up.
    """
    written = Environment.read()
    if not (given := os.environ.get(ROOT)):
        return written
    root = Path(given).absolute()
    if written is not None and written.root in (root, writable_twin(root)):
        return written
    if (found := known_version(root)) != VERSION:
        return _instead_of(root, found, written)
    interpreter = written.interpreter if written is not None else Path(sys.executable)
    twin = writable_twin(root)
    return Environment(twin if twin.is_dir() else root, interpreter)


@cache
def known_version(root: Path) -> str | None:
    """CoppeliaSim's version, read once in the life of a process."""
    return version_of(root)


def _instead_of(root: Path, found: str | None, written: Environment | None) -> Environment:
    """The set-up's CoppeliaSim instead of the one that the environment names."""
    what = f"CoppeliaSim {found}" if found else "no CoppeliaSim whose version can be told"
    wrong = f"{ROOT} is {root}, which holds {what}; PyRep needs exactly {VERSION}"
    if written is None:
        raise StorageError(
            f"{wrong}, and no other is set up. Install it with: unset {ROOT} && polyarm setup "
            f"rlbench"
        )
    _warn(f"{wrong}. Using {written.root}, which `polyarm setup rlbench` wrote down: unset {ROOT}")
    return written


@cache
def _warn(text: str) -> None:
    """Once in the life of a process."""
    _logger.warning("%s", text)
