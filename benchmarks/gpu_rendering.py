"""Frames that forked workers render through EGL, on their way to the GPU: Meta-World, two cameras.

Workers forked from a built env and fresh interpreters play the same episode; their frames must be
equal to the bit. Says which renderer drew them, and whether the workers have NVIDIA's driver
loaded. Without a GPU it renders in software, and brings frames nowhere.

    python benchmarks/gpu_rendering.py --num-envs 16 --seconds 5
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from metaworld_envs import OPTIONS, TASK

import polyarm

CAMERAS = ("corner2", "gripperPOV")
STARTS = ("built", "fresh")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="compared frame by frame")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the rate's measurement")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    frames, figures = {}, {}
    for start in STARTS:
        with make(options.num_envs, start) as envs:
            tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
            frames[start] = played(tensors, options.steps)
            figures[f"nvidia_workers_{start}"] = with_nvidia(envs.worker_pids)
            figures["renderer"] = envs.provenance[0]["renderer"]
            if start == "built":
                rates = {
                    "env_steps_per_s": rate(tensors.step, options),
                    "env_steps_per_s_chunk8": rate(tensors.step_chunk, options, 8),
                }
    for step, (forked, fresh) in enumerate(zip(*frames.values(), strict=True)):
        if not all(np.array_equal(forked[key], fresh[key]) for key in fresh):
            raise SystemExit(f"frames of a forked and a fresh worker differ at step {step}")
    rows = [(name, str(value)) for name, value in {**figures, **rates}.items()]
    measure.print_table(f"{options.num_envs} envs × {len(CAMERAS)} cameras of 256×256", rows)
    facts = {"benchmark": "gpu_rendering", "device": device, "frames_equal": True}
    measure.print_json({**facts, **vars(options), **figures, **rates})


def make(num_envs: int, start: Any) -> polyarm.VectorEnv:
    return polyarm.make_vec(
        f"metaworld/{TASK}",
        num_envs=num_envs,
        cameras=CAMERAS,
        image_size=(256, 256),
        start=start,
        display="egl",
        seed=0,
        **OPTIONS,
    )


def played(tensors: Any, steps: int) -> list[dict[str, Any]]:
    """What the same actions show, on the host again; every frame must be valid and not empty."""
    random = np.random.default_rng(0)
    obs, info = tensors.reset()
    shown = []
    for _ in range(steps):
        shown.append({key: value.cpu().numpy().copy() for key, value in obs.items()})
        for camera in CAMERAS:
            spread = np.ptp(shown[-1][f"pixels/{camera}"].reshape(tensors.num_envs, -1), axis=1)
            if not info["frame_valid"].all() or spread.min() < 50:
                raise SystemExit(f"{camera} shows nothing: {spread}, {info['frame_valid']}")
        actions = random.uniform(-1, 1, (tensors.num_envs, 4)).astype(np.float32)
        obs, *_, info = tensors.step(actions)
    return shown


def with_nvidia(pids: list[int]) -> str:
    """How many of these processes have NVIDIA's EGL driver loaded."""
    loaded = ["libEGL_nvidia" in Path(f"/proc/{pid}/maps").read_text() for pid in pids]
    return f"{sum(loaded)} of {len(loaded)}"


def rate(step: Any, options: argparse.Namespace, *chunk: int) -> float:
    actions = np.zeros((options.num_envs, *chunk, 4), np.float32)

    def steps() -> int:
        return int(step(actions)[-1]["steps"].sum())

    return measure.rate(steps, options.seconds)


if __name__ == "__main__":
    main()
