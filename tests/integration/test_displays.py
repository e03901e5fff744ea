"""Every display delivers the same pixels of Meta-World, from workers that are forked built."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from polyarm import make_vec
from polyarm.display import xvfb

pytestmark = [pytest.mark.simulator, pytest.mark.frames]


@pytest.fixture(autouse=True)
def no_choice_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def expected() -> Any:
    return frames("egl")


@pytest.fixture
def server() -> Iterator[xvfb.XServer]:
    server = xvfb.start()
    yield server
    server.close()


def frames(display: str) -> Any:
    """Frames of two envs after a few steps."""
    options = {"cameras": ("corner2",), "image_size": (48, 48), "display": display}
    with make_vec("metaworld/reach-v3", num_envs=2, seed=0, **options) as envs:
        envs.reset()
        obs, *_ = envs.step_chunk(np.full((2, 4, 4), 0.5, np.float32))
        assert envs.provenance[0]["display"] == display.partition(":")[0]
        return obs["pixels/corner2"].copy()


@pytest.mark.parametrize("display", ["osmesa", "xvfb", "xvfb-shared"])
def test_a_display_changes_no_pixel(display: str, expected: Any):
    if "llvmpipe" not in renderer():
        pytest.skip("a GPU renders EGL here, and software the others")
    assert np.array_equal(frames(display), expected)


def test_a_server_of_ones_own_changes_no_pixel(
    server: xvfb.XServer, expected: Any, monkeypatch: pytest.MonkeyPatch
):
    if "llvmpipe" not in renderer():
        pytest.skip("a GPU renders EGL here, and software the others")
    assert np.array_equal(frames(f"external{server.name}"), expected)
    monkeypatch.setenv("DISPLAY", server.name)
    assert np.array_equal(frames("external"), expected)


def test_a_process_that_began_without_cameras_renders_when_they_are_asked_for():
    script = (
        "import os\n"
        "from polyarm import make_vec\n"
        "from polyarm.errors import BuildError\n"
        "def make(**options):\n"
        "    return make_vec('metaworld/reach-v3', num_envs=1, num_workers=0, **options)\n"
        "def frames(display):\n"
        "    return make(cameras=('corner2',), image_size=(48, 48), display=display)\n"
        "with make() as blind, frames('egl') as envs:\n"
        "    assert envs.reset()[0]['pixels/corner2'].std() > 1\n"
        "    blind.reset()\n"
        "assert not {'MUJOCO_GL', 'PYOPENGL_PLATFORM'} & set(os.environ)\n"
        "try: frames('osmesa')\n"
        "except BuildError as error: assert \"take display='egl', or start\" in str(error)\n"
        "else: raise AssertionError('two kinds of OpenGL in one process')\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def renderer() -> str:
    from polyarm.display import select

    return select("egl", frames=True).description
