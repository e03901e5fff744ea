"""How many envs fit: the memory that is free is made up here, the arithmetic is real."""

from __future__ import annotations

import subprocess

import pytest

from polyarm.contracts import EnvSpec, Footprint
from polyarm.testing.toy_suite import ToySuite
from polyarm.vector import fitting, host

GIB = 2**30
SPEC = EnvSpec("toy", "count-3", ("front",))


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch):
    """A machine with 100 GiB free, no GPU, and toy envs of one GiB, one more with cameras."""
    monkeypatch.setattr(
        ToySuite,
        "footprint",
        lambda self, spec: Footprint(GIB, GIB if spec.cameras else 0),
        raising=False,
    )
    monkeypatch.setattr(host, "available_memory", lambda: 100 * GIB)
    monkeypatch.setattr(fitting, "renders_on_gpu", lambda *_: False)
    return monkeypatch


def test_a_suite_that_does_not_say_what_its_envs_take_has_no_limit():
    assert fitting.fit(SPEC, "auto") is None


def test_software_rendering_takes_main_memory(suite):
    assert fitting.fit(SPEC, "auto").num_envs == 40  # four fifths of 100 GiB, by two


def test_envs_without_cameras_need_no_room_for_textures(suite):
    assert fitting.fit(EnvSpec("toy", "count-3"), "auto").num_envs == 80


@pytest.mark.parametrize(
    ("free", "expected", "limit"), [(10, 8, "the GPU's memory"), (1000, 80, "main memory")]
)
def test_a_gpu_has_a_memory_of_its_own_and_the_smaller_limit_counts(suite, free, expected, limit):
    suite.setattr(fitting, "renders_on_gpu", lambda *_: True)
    suite.setattr(fitting, "free_graphics_memory", lambda: free * GIB)
    found = fitting.fit(SPEC, "auto")
    assert found.num_envs == expected
    assert limit in found.limit


def test_ranks_of_one_machine_share_its_memory(suite):
    suite.setenv("LOCAL_WORLD_SIZE", "4")
    assert fitting.fit(SPEC, "auto").num_envs == 10


def test_one_env_is_always_tried(suite):
    suite.setattr(host, "available_memory", lambda: 1000)
    assert fitting.fit(SPEC, "auto").num_envs == 1


def nvidia_smi(folder, monkeypatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_free_graphics_memory_is_that_of_the_device_that_renders(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "1")
    nvidia_smi(tmp_path, monkeypatch, 'case "$*" in *--id=1*) echo 2048;; *) echo 7;; esac')
    assert fitting.free_graphics_memory() == 2 * GIB


@pytest.mark.parametrize("script", ["exit 9", "echo '[N/A]'", "true"])
def test_a_driver_that_does_not_tell_sets_no_limit(tmp_path, monkeypatch, script):
    nvidia_smi(tmp_path, monkeypatch, script)
    assert fitting.free_graphics_memory() is None


def test_a_driver_that_hangs_sets_no_limit(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(fitting, "_QUERY_TIMEOUT_S", 0.2)
    assert fitting.free_graphics_memory() is None
    assert subprocess.run(["pgrep", "-f", "sleep 60"], check=False).returncode != 0
