"""Doctors are tested in a bare environment, with fake programs in front of the real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polyarm.doctor import child
from polyarm.doctor import gpu as gpus
from polyarm.doctor.child import Ended

VARIABLES = (
    "COPPELIASIM_ROOT", "CUDA_VISIBLE_DEVICES", "DISPLAY", "LD_LIBRARY_PATH", "LIBGL_DRIVERS_PATH",
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MUJOCO_EGL_DEVICE_ID", "MUJOCO_GL",
    "NVIDIA_DRIVER_CAPABILITIES", "OMPI_COMM_WORLD_LOCAL_RANK", "POLYARM_BASE_DISPLAY",
    "QT_QPA_PLATFORM_PLUGIN_PATH", "RLBENCH_BASE_DISPLAY", "RLBENCH_PER_PROCESS_XVFB",
    "SLURM_LOCALID",
)  # fmt: skip

H200 = "0, NVIDIA H200, 580.159.04, 143771, 143156"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes a shell script that is found before any real program of its name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.fixture
def gpu(program: Callable[[str, str], Path]) -> None:
    """A machine with one NVIDIA GPU, as far as its driver tells."""
    program("nvidia-smi", f"echo '{H200}'")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "query", gpus.Answer)
    monkeypatch.setattr(gpus, "_DRIVER", Path("/nowhere"))


@pytest.fixture
def child_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, ...]]]:
    """Replaces probes of ours by answers, in turn; returns the arguments they were given."""

    def replace(*answers: tuple[int | None, str, str]) -> list[tuple[str, ...]]:
        asked: list[tuple[str, ...]] = []
        waiting = list(answers)

        def run_python(script: str, *arguments: str, timeout_s: float) -> Ended:
            asked.append(arguments)
            return Ended(*waiting.pop(0), seconds=min(timeout_s, 0.1))

        monkeypatch.setattr(child, "run_python", run_python)
        return asked

    return replace
