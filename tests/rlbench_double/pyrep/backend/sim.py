"""The simulator itself: one per process, with the habits of CoppeliaSim 4.1.0.

Everything that is in the scene lives here and is reached by name or handle.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyrep.backend import loader
from pyrep.backend.switches import count, fault, hang, strike
from pyrep.backend.xserver import Connection
from pyrep.const import ObjectType

TIME_STEP_S = 0.05
NO_X_PLATFORMS = ("offscreen", "minimal")
SWALLOWED = (signal.SIGTERM, signal.SIGINT)


@dataclass
class Body:
    """An object of the scene."""

    name: str
    kind: ObjectType
    position: np.ndarray
    quaternion: np.ndarray
    parent: str | None = None
    handle: int = 0
    joint_position: float = 0.0
    color: tuple[float, float, float] = (0.5, 0.5, 0.5)
    size: float = 0.02
    extension: str = ""
    is_collidable: bool = True
    explicit_handling: int = 0


@dataclass
class Simulator:
    owner: int | None = None
    display: Connection | None = None
    exit_requested: bool = False
    next_handle: int = 1
    bodies: dict[str, Body] = field(default_factory=dict)
    movers: list[Callable[[float], None]] = field(default_factory=list)
    old_handlers: dict[int, object] = field(default_factory=dict)


simulator = Simulator()


def launch(root: Path) -> None:
    if simulator.owner is not None:
        hang()
    strike("launch", count("launch"))
    _connect()
    rewrite_settings(root)
    _swallow_signals()
    simulator.owner = os.getpid()
    simulator.exit_requested = False


def shutdown() -> None:
    check_process()
    for number, handler in simulator.old_handlers.items():
        signal.signal(number, handler)
    if simulator.display is not None:
        simulator.display.close()
    vars(simulator).update(vars(Simulator()))


def check_process() -> None:
    """Hang in a child that was forked after the launch: its simulator thread is gone."""
    if simulator.owner is not None and simulator.owner != os.getpid():
        hang()


def enter() -> None:
    """What every call into the simulator goes through."""
    check_process()
    if simulator.owner is None or simulator.exit_requested:
        fault()


def step(*, physics: bool) -> None:
    enter()
    if physics:
        spend("DOUBLE_STEP_S")
        for move in simulator.movers:
            move(TIME_STEP_S)


def touch_display() -> None:
    """What happens to the process when a frame is rendered."""
    enter()
    if simulator.display is None:
        os.write(2, b"This plugin does not support createPlatformOpenGLContext!\n")
        os.kill(os.getpid(), signal.SIGSEGV)
    simulator.display.touch()
    spend("DOUBLE_RENDER_S")


def spend(variable: str) -> None:
    """Keep the CPU busy for the seconds in an environment variable."""
    seconds = float(os.environ.get(variable) or 0)
    end = time.thread_time() + seconds
    while seconds and time.thread_time() < end:
        pass


def add(body: Body) -> Body:
    body.handle = simulator.next_handle
    simulator.next_handle += 1
    simulator.bodies[body.name] = body
    return body


def get(name: str) -> Body:
    enter()
    if name not in simulator.bodies:
        raise RuntimeError(f"Handle {name} does not exist.")
    return simulator.bodies[name]


def remove(name: str) -> None:
    """Take an object and what hangs on it out of the scene."""
    simulator.bodies.pop(name, None)
    for child in [body.name for body in simulator.bodies.values() if body.parent == name]:
        remove(child)


def _connect() -> None:
    if loader.lacks_plugins():
        sys.stderr.write('qt.qpa.plugin: Could not find the Qt platform plugin "xcb" in ""\n')
        _abort_as_qt()
    if os.environ.get("QT_QPA_PLATFORM") in NO_X_PLATFORMS:
        return
    name = os.environ.get("DISPLAY", "")
    try:
        simulator.display = Connection(name)
    except ConnectionError:
        sys.stderr.write(f"qt.qpa.xcb: could not connect to display {name}\n")
        _abort_as_qt()


def _abort_as_qt() -> None:
    sys.stderr.write(
        "This application failed to start because no Qt platform plugin could be initialized. "
        "Reinstalling the application may fix this problem.\n"
    )
    sys.stderr.flush()
    os.abort()


def rewrite_settings(root: Path) -> None:
    """Truncate and write again a file that all processes with this root share."""
    settings = root / "system" / "settings.dat"
    content = settings.read_bytes() if settings.exists() else b""
    settings.write_bytes(content or b"SIMSETTINGS_SIM_CRASHED\x00No\n")


def _swallow_signals() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in SWALLOWED:
            simulator.old_handlers[number] = signal.signal(number, _on_signal)
        return
    ignore = ctypes.c_void_p(signal.SIG_IGN)  # Python only sets handlers in its main thread
    for number in SWALLOWED:
        ctypes.CDLL(None).signal(int(number), ignore)


def _on_signal(_number: int, _frame: object) -> None:
    simulator.exit_requested = True
