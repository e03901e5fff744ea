"""How many envs a machine has room for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from polyarm import registry
from polyarm.contracts import EnvSpec, Footprint
from polyarm.display.rank import local_ranks
from polyarm.vector import host, screens

_SHARE = 0.8
"""Of the memory that is free now, what envs may take; the policy and the page cache need some."""

_QUERY_TIMEOUT_S = 10.0
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "osmesa")


@dataclass(frozen=True, slots=True)
class Fit:
    """How many envs fit.

    Attributes:
        num_envs: At least 1: whether one fits is seen when it is built.
        limit: What sets the limit, for people.
    """

    num_envs: int
    limit: str


def fit(spec: EnvSpec, display: str) -> Fit | None:
    """How many envs like this one fit, or None if its suite does not say what they take.

    Args:
        spec: The env, with its cameras.
        display: How frames are rendered, as for `make_vec`.
    """
    measure = getattr(registry.load(spec.suite), "footprint", None)
    if measure is None:
        return None
    need: Footprint = measure(spec)
    on_gpu = bool(spec.cameras) and renders_on_gpu(display, [spec.suite])
    per_env = need.host if on_gpu else need.host + need.graphics
    room = int(host.available_memory() * _SHARE) // local_ranks()
    fits = [Fit(max(1, room // per_env), _limit("main memory", room, per_env))]
    graphics = free_graphics_memory() if on_gpu else None
    if graphics is not None and need.graphics:
        room = int(graphics * _SHARE) // local_ranks()
        limit = _limit("the GPU's memory", room, need.graphics)
        fits.append(Fit(max(1, room // need.graphics), limit))
    return min(fits, key=lambda one: one.num_envs)


def free_graphics_memory() -> int | None:
    """Free bytes of the GPU that renders; None without an NVIDIA driver that tells."""
    if shutil.which("nvidia-smi") is None:
        return None
    device = os.environ.get("MUJOCO_EGL_DEVICE_ID", "0")
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            [*command, f"--id={device}"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=True,
        )
        return int(answer.stdout.split()[0]) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def renders_on_gpu(display: str, suites: Sequence[str]) -> bool:
    """Whether frames of these suites would be rendered by a GPU and not by software."""
    screen = screens.choose(display, [registry.load(name) for name in suites], frames=True)
    described = f"{screen.name} {screen.description}".lower()
    return not any(name in described for name in _SOFTWARE)


def _limit(what: str, room: int, per_env: int) -> str:
    return f"{what}: {room / 2**30:.1f} GiB for envs of {per_env / 2**20:.0f} MiB"
