"""A cache of its own for each test, and a LIBERO of a few kilobytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyarm.suites.libero.assets import FOLDERS

sys.path.append(str(Path(__file__).parent))  # for toy_coppeliasim

MakeAssets = Callable[[Path], Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an empty home, and no LIBERO installed."""
    for name in ("POLYARM_LIBERO_ASSETS", "LIBERO_CONFIG_PATH", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, "")  # so that what a test sets is gone after it
        monkeypatch.delenv(name)
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "packages" / "libero").mkdir(parents=True)
    (tmp_path / "packages" / "libero" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    for name in [name for name in sys.modules if name.partition(".")[0] == "libero"]:
        monkeypatch.delitem(sys.modules, name)  # other tests import the real one
    return tmp_path / "cache" / "libero"


@pytest.fixture
def make_assets() -> MakeAssets:
    """Fills a folder with what looks like LIBERO's assets."""

    def make(folder: Path) -> Path:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True)
            (folder / name / f"{name}.bin").write_bytes(name.encode() * 100)
        (folder / "scenes" / "table.xml").write_text(
            '<mujoco><texture file="../textures/wood.png"/><mesh file="table.stl"/></mujoco>'
        )
        (folder / "scenes" / "table.stl").write_bytes(b"mesh" * 1000)
        (folder / "textures" / "wood.png").write_bytes(b"wood" * 5000)
        (folder / "wall.xml").write_text("<mujoco/>")
        return folder

    return make
