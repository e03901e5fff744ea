"""What running in the trainer's own process means for that process."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

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


def test_an_x_server_is_started_in_the_displays_environment(make_any, environment, monkeypatch):
    seen = []

    class Screen:
        name = ":77"

        def __init__(self):
            seen.append(environment())

        def close(self):
            seen.append(environment())
            raise OSError("it does not end")

    monkeypatch.setattr(serial, "open_screen", Screen)
    env = make_any("toy/count-3", cameras=("front",), display="xvfb")
    assert environment()["DISPLAY"] == ":77"
    with pytest.raises(OSError, match="it does not end"):
        env.close()
    before, after = seen
    assert "MUJOCO_GL" in before
    assert "DISPLAY" not in before
    assert environment() == after == {}


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


class Trainer:
    """Signal handlers that leave, in every form a handler may have."""

    def method(self, number, frame):
        sys.exit(7)

    def __call__(self, *_):
        self.method(*_)


def leave(code, *_):
    sys.exit(code)


def leave_for_good(number, frame):
    signal.signal(number, signal.SIG_DFL)
    sys.exit(7)


@pytest.fixture
def handle():
    """Installs a handler of SIGALRM, until the test is over."""
    before = signal.getsignal(signal.SIGALRM)
    yield partial(signal.signal, signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def waiting(phase):
    """An env in one of whose calls an alarm rings; only the signal ends that call."""

    def wait():
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        time.sleep(60)

    class WaitingEnv(CountingEnv):
        def __init__(self):
            super().__init__()
            if phase == "build":
                wait()

        def reset(self, **options):
            if phase == "reset":
                wait()
            return super().reset(**options)

        def step(self, action):
            if phase == "step":
                wait()
            return super().step(action)

        def close(self):
            if phase == "close":
                wait()

    return WaitingEnv


@pytest.mark.parametrize("phase", ["build", "reset", "step", "close"])
def test_a_handler_of_the_trainer_may_leave_whatever_it_interrupts(make_any, handle, phase):
    handle(lambda *_: sys.exit(7))

    def use():
        env = make_any(waiting(phase), num_envs=1)
        env.reset()
        env.step(np.zeros((1, 2), np.float32))
        env.close()

    with pytest.raises(SystemExit) as left:
        use()
    assert left.value.code == 7


@pytest.mark.parametrize(
    "handler",
    [Trainer().method, Trainer(), partial(leave, 7), leave_for_good],
    ids=["method", "object", "partial", "once"],
)
def test_a_handler_may_have_any_form(make_any, handle, handler):
    handle(handler)
    env = make_any([CountingEnv, waiting("step")], num_envs=2)
    env.reset()
    with pytest.raises(SystemExit) as left:
        env.step(np.zeros((2, 2), np.float32))
    assert left.value.code == 7
    env.recv(1)  # the slot that had answered
    handle(signal.SIG_IGN)


def test_a_handler_may_leave_while_an_env_is_switched_to(make_any, handle):
    handle(leave_for_good)
    env = make_any(CountingEnv, num_envs=1)
    env.reset()
    with pytest.raises(SystemExit):
        env.switch_task([0], waiting("build"))


def test_an_env_that_leaves_is_an_error_of_its_slot_whatever_handlers_there_are(make_any, handle):
    class LeavingEnv(CountingEnv):
        def step(self, action):
            sys.exit("leaving")

    handle(lambda *_: sys.exit(7))
    env = make_any(LeavingEnv, num_envs=1)
    env.reset()
    error = env.step(np.zeros((1, 2), np.float32))[-1]["error"][0]
    assert "SystemExit: leaving" in str(error)
