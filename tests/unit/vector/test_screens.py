"""What envs find in their environment when they set up rendering by themselves, or never do."""

from __future__ import annotations

import os
import sys

import pytest

from polyarm.display.select import _off_screen
from polyarm.errors import DisplayError
from polyarm.testing import CountingEnv


@pytest.fixture
def no_display(monkeypatch):
    """No display library is installed; counts how often one is looked for."""
    probes = []

    def probe(*question):
        probes.append(question)
        raise DisplayError("it is not installed")

    _off_screen.cache_clear()
    monkeypatch.setattr(sys.modules["polyarm.display.select"], "_probe", probe)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    yield probes
    _off_screen.cache_clear()


def telling():
    class TellingEnv(CountingEnv):
        def variable(self):
            return os.environ.get("MUJOCO_GL")

    return TellingEnv


def test_without_display_libraries_a_callables_environment_is_left_alone(make, no_display):
    env = make(telling())
    assert env.call("variable") == (None,) * 4
    assert env.provenance[0]["display"] == "none"
    assert "no display was found" in env.provenance[0]["renderer"]
    looked = len(no_display)
    make(telling())
    assert len(no_display) == looked > 0


def test_what_the_user_has_set_reaches_a_callable(make, no_display, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert make(telling()).call("variable") == ("glfw",) * 4
    assert no_display == []


def test_no_display_is_looked_for_where_gymnasiums_own_envs_never_render(make, no_display):
    make("gym/CartPole-v1").reset()
    assert no_display == []


def test_without_cameras_a_suites_workers_have_no_opengl_whatever_the_user_has_set(
    make_any, no_display, monkeypatch
):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    env = make_any("toy/count-3", num_envs=1, num_workers=1)
    assert env.provenance[0]["display_variables"] == {"MUJOCO_GL": "disable"}
    assert no_display == []
