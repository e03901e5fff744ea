"""What running in the trainer's own process means for that process."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from polyarm import make_vec
from polyarm.errors import BuildError, DisplayError
from polyarm.testing import CountingEnv
from polyarm.vector import serial

VARIABLES = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """None of the variables is set before; what is set after a test is told."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return lambda: {name: os.environ[name] for name in VARIABLES if name in os.environ}


def test_envs_that_are_closed_in_any_order_leave_the_environment_as_it_was(make_any, environment):
    first, second = (make_any("toy/count-3", cameras=("front",)) for _ in range(2))
    assert "MUJOCO_GL" in environment()
    first.close()
    assert "MUJOCO_GL" in environment()
    second.close()
    assert environment() == {}


def test_envs_without_cameras_do_not_forbid_rendering_to_the_process(make_any, environment):
    make_any("toy/count-3")
    assert environment() == {}


def test_an_x_server_that_does_not_start_leaves_nothing_behind(environment, monkeypatch):
    def refuse():
        raise DisplayError("no server today")

    monkeypatch.setattr(serial, "open_screen", refuse)
    options = {"cameras": ("front",), "display": "xvfb"}
    with pytest.raises(DisplayError, match="no server today"):
        make_vec("toy/count-3", num_envs=1, num_workers=0, **options)
    assert environment() == {}


def test_an_error_names_the_process_that_ran_the_env(make_any):
    class RaisingEnv(CountingEnv):
        def step(self, action):
            raise RuntimeError("on purpose")

    env = make_any(RaisingEnv, num_envs=1)
    env.reset()
    error = env.step(np.zeros((1, 2), np.float32))[-1]["error"][0]
    assert f"pid {os.getpid()}" in str(error)


def test_an_env_that_leaves_while_it_is_built_ends_nobody(make_any):
    with pytest.raises(BuildError, match="SystemExit: leaving"):
        make_any(lambda: sys.exit("leaving"))


def test_an_interrupt_is_no_failure_of_the_env_that_it_meets(make_any):
    class InterruptedEnv(CountingEnv):
        def step(self, action):
            raise KeyboardInterrupt

    env = make_any(InterruptedEnv, num_envs=1)
    env.reset()
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros((1, 2), np.float32))
