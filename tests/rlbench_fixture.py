"""The fake RLBench as a fixture: importable here, in workers and on command lines.

Nothing of it is left afterwards: no module, no cached list of tasks, no folder in the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyarm.suites.rlbench import catalogue

_QT = "QT_QPA_PLATFORM_PLUGIN_PATH"

DOUBLE = Path(__file__).parent / "rlbench_double"


@pytest.fixture
def rlbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """RLBench, PyRep and CoppeliaSim are installed, after a fashion; gives CoppeliaSim's folder."""
    monkeypatch.syspath_prepend(str(DOUBLE))
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", f"{DOUBLE}{os.pathsep}{inherited}" if inherited else str(DOUBLE)
    )
    monkeypatch.setenv("COPPELIASIM_ROOT", str(DOUBLE / "coppeliasim"))
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    # Like the real one, it is imported only where the loader knew CoppeliaSim from the start.
    monkeypatch.setenv("RLBENCH_DOUBLE", "loader")
    for variable in ("DISPLAY", "LD_LIBRARY_PATH", "RLBENCH_BASE_DISPLAY", "LOCAL_RANK", _QT):
        monkeypatch.setenv(variable, "")  # so that it is put back whatever the test does
        monkeypatch.delenv(variable)
    catalogue._installed.cache_clear()
    yield DOUBLE / "coppeliasim"
    catalogue._installed.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rlbench", "pyrep")]:
        del sys.modules[name]
