"""What a user is told when LIBERO's files are not as they should be, and what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import polyarm
from polyarm.errors import PolyarmError
from polyarm.suites.libero import assets

pytestmark = pytest.mark.simulator

TASK = "libero/libero_object/2"
MESH = "stable_hope_objects/salad_dressing/visual/textured_vis.msh"
MODEL = "stable_hope_objects/salad_dressing/salad_dressing.xml"
TEXTURE = "stable_hope_objects/salad_dressing/texture_map.png"


def linked(source: Path, folder: Path) -> Path:
    """A folder in which every file is a link to that of another."""
    shutil.copytree(source, folder, copy_function=os.symlink)
    return folder


def remove(file: Path) -> None:
    file.unlink()


def cut_short(file: Path) -> None:
    start = file.read_bytes()[:100]
    file.unlink()
    file.write_bytes(start)


@pytest.mark.parametrize("damage", [remove, cut_short])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_damaged_installation_is_named_with_its_file_and_its_repair(
    damage: Callable[[Path], None],
    num_workers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = assets.checked_folder()
    folder = linked(installed, tmp_path / "cache" / "libero" / "assets")
    shutil.copy(assets.manifest_file(installed), assets.manifest_file(folder))
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    damage(folder / MESH)
    with pytest.raises(PolyarmError) as raised:
        polyarm.make_vec(TASK, num_envs=1, num_workers=num_workers)
    assert str(folder / MESH) in str(raised.value)
    assert "polyarm setup libero" in str(raised.value)


@pytest.mark.parametrize(
    ("damage", "file"),
    [(remove, MESH), (cut_short, TEXTURE), (cut_short, MODEL)],
    ids=["missing mesh", "damaged texture", "damaged model"],
)
def test_a_damaged_folder_of_the_users_is_named_with_its_file_and_its_repair(
    damage: Callable[[Path], None], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = linked(assets.checked_folder(), tmp_path / "mine")
    monkeypatch.setenv("POLYARM_LIBERO_ASSETS", str(folder))
    damage(folder / file)
    with pytest.raises(PolyarmError) as raised:
        polyarm.make_vec(TASK, num_envs=1)
    message = str(raised.value)
    assert Path(file).name in message
    assert "POLYARM_LIBERO_ASSETS" in message
    assert "polyarm setup libero" in message


LIVE = """
import json, os, sys

opened = []

def note(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = flags is not None and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if isinstance(path, (str, bytes)) and writes:
            opened.append(os.fsdecode(path))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.symlink"):
        opened.append(os.fsdecode(arguments[0]))

sys.addaudithook(note)
from polyarm.contracts import EnvSpec
from polyarm.suites.libero import Libero

suite = Libero()
env = suite.make(suite.check(EnvSpec("libero", "libero_object/2", ("agentview",), (64, 64))))
suite.attach_display(env)
env.reset(options={"episode": 0})
env.step(env.action_space.sample())
env.close()
sys.stdout.write(json.dumps(opened))
"""


def test_an_env_writes_nothing_outside_the_cache_and_asks_nothing(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    left_out = {
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "LIBERO_CONFIG_PATH",
        "MPLCONFIGDIR",
        "NUMBA_CACHE_DIR",
        "POLYARM_LIBERO_ASSETS",
    }
    own = {
        "HOME": str(home),
        "POLYARM_CACHE": str(assets.cache_folder()),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(here),
    }
    child = subprocess.run(
        [sys.executable, "-c", LIVE],
        env={**{key: value for key, value in os.environ.items() if key not in left_out}, **own},
        cwd=here,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    written = {path for path in json.loads(child.stdout) if not path.startswith("/dev/")}
    outside = {path for path in written if not path.startswith(str(assets.suite_folder()))}
    assert outside == set()
    assert list(home.iterdir()) == []
    assert list(here.iterdir()) == []
