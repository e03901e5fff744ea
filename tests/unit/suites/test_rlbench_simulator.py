"""What RLBench's simulator does around and between steps."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall
from polyarm.suites.rlbench import RLBench, simulator
from polyarm.suites.rlbench.simulator import CAMERAS, Simulator, _IdleRedraw

WAIT_S = 10.0
FAST = 1000.0


class Lock:
    """A lock that tells when it was refused."""

    def __init__(self) -> None:
        self.inner = threading.Lock()
        self.refused = threading.Semaphore(0)

    def acquire(self, *, blocking: bool = True) -> bool:
        taken = self.inner.acquire(blocking=blocking)
        if not taken:
            self.refused.release()
        return taken

    def release(self) -> None:
        self.inner.release()


class Window:
    """A simulator that notes each redraw, and whether the lock was held over it."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.held: list[bool] = []
        self.drawn = threading.Semaphore(0)

    def step_ui(self) -> None:
        self.held.append(self.lock.inner.locked())
        self.drawn.release()


@pytest.fixture
def lock() -> Lock:
    return Lock()


@pytest.fixture
def window(lock: Lock) -> Window:
    return Window(lock)


@pytest.fixture
def redraw(lock: Lock, window: Window) -> Iterator[_IdleRedraw]:
    thread = _IdleRedraw(window, lock, FAST)  # type: ignore[arg-type]
    yield thread
    thread.stop()


def test_an_idle_simulator_redraws_its_window_while_others_keep_off(
    redraw: _IdleRedraw, window: Window
) -> None:
    redraw.start()
    for _ in range(5):
        assert window.drawn.acquire(timeout=WAIT_S)
    redraw.stop()
    assert all(window.held)
    assert not window.lock.inner.locked()


def test_a_busy_simulator_is_left_alone(redraw: _IdleRedraw, window: Window, lock: Lock) -> None:
    with lock.inner:
        redraw.start()
        for _ in range(5):
            assert lock.refused.acquire(timeout=WAIT_S)
        assert window.held == []
    assert window.drawn.acquire(timeout=WAIT_S)


def test_it_stops_while_the_simulator_is_busy(redraw: _IdleRedraw, lock: Lock) -> None:
    with lock.inner:
        redraw.start()
        assert lock.refused.acquire(timeout=WAIT_S)
        redraw.stop()
        assert not redraw.is_alive()


def test_nothing_is_redrawn_after_it_has_stopped(redraw: _IdleRedraw, window: Window) -> None:
    redraw.start()
    assert window.drawn.acquire(timeout=WAIT_S)
    redraw.stop()
    assert not redraw.is_alive()
    count = len(window.held)
    redraw.run()  # at once, for it has been told to leave
    assert len(window.held) == count


def test_it_stops_without_waiting_for_the_next_redraw(lock: Lock, window: Window) -> None:
    thread = _IdleRedraw(window, lock, 1e-6)  # type: ignore[arg-type]
    thread.start()
    assert thread.is_alive()
    stopping = threading.Thread(target=thread.stop, daemon=True)
    stopping.start()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert not thread.is_alive()
    assert window.held == []


@pytest.mark.parametrize("fps", [0, 0.0])
def test_at_a_rate_of_zero_nothing_starts(lock: Lock, window: Window, fps: float) -> None:
    before = threading.active_count()
    thread = _IdleRedraw(window, lock, fps)  # type: ignore[arg-type]
    thread.start()
    assert not thread.is_alive()
    assert threading.active_count() == before
    thread.stop()


def test_a_failed_redraw_gives_the_lock_back(lock: Lock) -> None:
    def fail() -> None:
        raise RuntimeError("the window is gone")

    thread = _IdleRedraw(SimpleNamespace(step_ui=fail), lock, FAST)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="the window is gone"):
        thread.run()
    assert not lock.inner.locked()


def test_it_does_not_keep_the_process_alive(redraw: _IdleRedraw) -> None:
    assert redraw.daemon


def test_success_is_what_the_conditions_last_said() -> None:
    answers = iter([(False, False), (True, True), (np.False_, True)])
    task = SimpleNamespace(success=lambda: next(answers))
    latest = simulator._remember_success(task)
    assert latest == [False]
    for expected, over in ((False, False), (True, True), (False, True)):
        assert task.success() == (expected, over)
        assert latest[0] is expected


def test_a_launch_may_change_the_working_folder_for_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with simulator._same_folder():
        os.chdir("/")
    assert Path.cwd() == tmp_path
    with contextlib.suppress(RuntimeError), simulator._same_folder():
        os.chdir("/")
        raise RuntimeError("the launch failed")
    assert Path.cwd() == tmp_path


def checked(task: str, *cameras: str, **options: Any) -> EnvSpec:
    return RLBench().check(EnvSpec("rlbench", task, cameras, (32, 48), options))


@pytest.mark.usefixtures("rlbench")
def test_rlbench_is_told_what_an_observation_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBENCH_DOUBLE", "")
    from pyrep.const import RenderMode

    for mode, expected in (("opengl3", RenderMode.OPENGL3), ("opengl", RenderMode.OPENGL)):
        config = simulator._observation_config(
            checked("open_drawer", "front", depth=True, render_mode=mode)
        )
        cameras = [getattr(config, f"{camera}_camera") for camera in CAMERAS]
        assert len(set(map(id, cameras))) == 5
        for camera in cameras:
            assert camera.image_size == (48, 32)  # RLBench has the width first
            assert camera.render_mode is expected
            assert not any((camera.rgb, camera.depth, camera.point_cloud, camera.mask))
        assert config.joint_positions
        assert config.joint_velocities
        assert config.joint_forces
        assert config.gripper_open
        assert config.gripper_pose
        assert config.gripper_joint_positions
        assert not config.task_low_dim_state
    assert simulator._observation_config(checked("open_drawer", task_state=1)).task_low_dim_state


@pytest.mark.usefixtures("rlbench")
@pytest.mark.parametrize("task", ["open_drawer", "open_drawer:2"])
def test_the_tasks_class_is_rlbenchs(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBENCH_DOUBLE", "")
    assert simulator._task_class(checked(task)).__name__ == "OpenDrawer"


@pytest.fixture
def spec() -> EnvSpec:
    return checked("open_drawer")


def test_a_second_simulator_in_a_process_is_refused(
    spec: EnvSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simulator, "_launched", True)
    with pytest.raises(InvalidCall, match="one simulator per process"):
        Simulator(spec, tmp_path)


def test_a_simulator_that_could_not_be_launched_does_not_count(
    spec: EnvSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simulator, "_launched", False)
    monkeypatch.setenv("COPPELIASIM_ROOT", "")

    def fail(root: Path) -> Any:
        raise OSError(f"no space left for {root}")

    monkeypatch.setattr(simulator, "PrivateRoot", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            Simulator(spec, tmp_path)
