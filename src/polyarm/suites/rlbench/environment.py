"""What CoppeliaSim must find in its process's environment, kept in two small files.

``env.sh`` is for shells, ``env.json`` for workers that are started without it. Nobody's
``.bashrc`` is touched.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyarm.errors import StorageError
from polyarm.suites.cache import cache_folder, write_whole

ROOT = "COPPELIASIM_ROOT"
_LIBRARIES = "LD_LIBRARY_PATH"
_QT = "QT_QPA_PLATFORM_PLUGIN_PATH"

_SHELL = """\
# Written by `polyarm setup rlbench`, for: source {file}
export COPPELIASIM_ROOT={root}
case ":${{LD_LIBRARY_PATH:-}}:" in
  *":$COPPELIASIM_ROOT:"*) ;;
  *) export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}$COPPELIASIM_ROOT" ;;
esac
export QT_QPA_PLATFORM_PLUGIN_PATH="$COPPELIASIM_ROOT"
"""


def suite_folder() -> Path:
    """The part of the cache that is RLBench's."""
    return cache_folder() / "rlbench"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where CoppeliaSim is, and which Python has PyRep and RLBench.

    Attributes:
        root: CoppeliaSim's folder.
        interpreter: The Python that imports ``pyrep`` and ``rlbench``.
    """

    root: Path
    interpreter: Path

    def variables(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables that a process needs before it starts.

        Args:
            inherited: The environment that they will be added to; by default this process's.
        """
        inherited = os.environ if inherited is None else inherited
        before = [part for part in inherited.get(_LIBRARIES, "").split(":") if part]
        root = str(self.root)
        # After what is there already, as PyRep's own instructions have it.
        libraries = before if root in before else [*before, root]
        return {ROOT: root, _LIBRARIES: ":".join(libraries), _QT: root}

    def write(self) -> bool:
        """Write both files; returns whether that changed anything."""
        folder = suite_folder()
        shell = _SHELL.format(file=folder / "env.sh", root=shlex.quote(str(self.root)))
        data = {"format": 1, "interpreter": str(self.interpreter), **self.variables({})}
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
            return cls(Path(data[ROOT]), Path(data["interpreter"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{file} cannot be read ({error!r}). Write it anew with: polyarm setup rlbench"
            ) from error


def current() -> Environment | None:
    """Where RLBench is: ``$COPPELIASIM_ROOT`` if it is set, else what the set-up wrote.

    Raises:
        StorageError: The set-up's file cannot be used.
    """
    written = Environment.read()
    if not (given := os.environ.get(ROOT)):
        return written
    interpreter = written.interpreter if written is not None else Path(sys.executable)
    return Environment(Path(given).absolute(), interpreter)
