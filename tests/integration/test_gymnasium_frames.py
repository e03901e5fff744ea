"""Gymnasium's MuJoCo envs render, although nobody has asked polyarm for cameras."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AddRenderObservation

from polyarm import make_vec

pytestmark = [pytest.mark.simulator, pytest.mark.frames]

PENDULUM = "InvertedPendulum-v5"
SMALL = {"render_mode": "rgb_array", "width": 64, "height": 48}
in_process_and_out = pytest.mark.parametrize("num_workers", [0, 1])


@pytest.fixture(autouse=True)
def no_choice_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY"):
        monkeypatch.delenv(variable, raising=False)


@in_process_and_out
def test_a_pixel_wrapper_gives_pixels(num_workers: int):
    name, options = PENDULUM, SMALL  # workers cannot import this module

    def pixels() -> gymnasium.Env[Any, Any]:
        return AddRenderObservation(gymnasium.make(name, **options))

    with make_vec(pixels, num_envs=2, num_workers=num_workers) as envs:
        obs, _ = envs.reset(seed=0)
        assert obs.shape == (2, 48, 64, 3)
        assert obs.std() > 1
        assert envs.provenance[0]["display"] in ("egl", "osmesa")
    assert "MUJOCO_GL" not in os.environ


@in_process_and_out
def test_render_gives_a_frame_of_every_env(num_workers: int):
    with make_vec(f"gym/{PENDULUM}", num_envs=2, num_workers=num_workers, **SMALL) as envs:
        envs.reset(seed=0)
        frames = envs.render()
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 2
    assert np.std(frames) > 1


@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_the_users_own_backend_renders(backend: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUJOCO_GL", backend)
    with make_vec(f"gym/{PENDULUM}", num_envs=1, **SMALL) as envs:
        envs.reset(seed=0)
        assert np.std(envs.render()) > 1
        assert envs.provenance[0]["display"] == backend
    assert os.environ["MUJOCO_GL"] == backend
