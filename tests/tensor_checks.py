"""What `to_torch` promises, as functions of a device; the tests run them, and so does this file.

python tests/tensor_checks.py cuda
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import unittest.mock
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

import polyarm
from polyarm.testing import CountingEnv
from polyarm.vector import gpu_copies

CAMERAS = ("front", "wrist")
NUM_ENVS = 6


def make(image_size=(32, 40), **options):
    env = partial(CountingEnv, length=10_000, cameras=CAMERAS, image_size=image_size)
    return polyarm.make_vec(env, **{"num_envs": NUM_ENVS, "num_workers": 2, **options})


def frames(origins, steps, image_size=(32, 40), camera="front"):
    """What `CountingEnv` shows, uint8 ``(n, H, W, 3)``."""
    height, width = image_size
    pattern = np.arange(height * width * 3).reshape(height, width, 3)
    offsets = 7 * np.asarray(steps) + 31 * np.asarray(origins) + sum(camera.encode())
    return (pattern + offsets[:, None, None, None]).astype(np.uint8)


def assert_frames(obs, origins, steps, image_size=(32, 40)):
    """Frames, uint8 and channels last, are those of these steps in every pixel."""
    for camera in CAMERAS:
        expected = frames(origins, steps, image_size, camera)
        found = obs[f"pixels/{camera}"]
        assert found.dtype is torch.uint8, found.dtype
        wrong = (found.cpu().numpy() != expected).any(axis=(1, 2, 3))
        assert not wrong.any(), f"{camera}: rows {np.flatnonzero(wrong)} are not of steps {steps}"
    assert obs["state"][:, :2].tolist() == np.stack([origins, steps], 1).tolist()


def check_frames_are_those_of_their_step(device, steps=40, image_size=(32, 40)):
    """Steps follow at once; each observation is looked at when the next one is there already."""
    slots, no_action = np.arange(NUM_ENVS), np.zeros((NUM_ENVS, 2), np.float32)
    with make(image_size) as envs:
        tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        before, _ = tensors.reset(seed=5)
        for step in range(1, steps + 1):
            obs, rewards, terminated, truncated, _ = tensors.step(no_action)
            assert_frames(before, slots + 5, np.full(NUM_ENVS, step - 1), image_size)
            assert obs["state"].device == tensors.device == rewards.device
            assert (rewards.dtype, rewards.tolist()) == (torch.float32, [step] * NUM_ENVS)
            assert terminated.dtype is torch.bool
            assert not (terminated | truncated).any()
            before = obs
        assert_frames(obs, slots + 5, np.full(NUM_ENVS, steps), image_size)


def check_frames_have_the_exact_values(device):
    """Every value of a byte, in every format, is what NumPy makes of it."""
    with make((16, 16)) as envs:
        raw = envs.to_torch(device, dtype="uint8", channels_first=False).reset(seed=0)[0]
        raw = raw["pixels/wrist"].cpu().numpy()
        assert len(np.unique(raw)) == 256
        for name in ("float32", "bfloat16", "float16", "uint8"):
            for normalize in (True, False) if name != "uint8" else (False,):
                for channels_first in (True, False):
                    view = envs.to_torch(
                        device,
                        dtype=getattr(torch, name),
                        normalize=normalize,
                        channels_first=channels_first,
                    )
                    found = view.observe()["pixels/wrist"]
                    values = raw.transpose(0, 3, 1, 2) if channels_first else raw
                    if name != "uint8":
                        values = values.astype(np.float32) / np.float32(255 if normalize else 1)
                    expected = torch.tensor(values).to(getattr(torch, name))
                    assert found.dtype is expected.dtype
                    assert found.shape == expected.shape
                    assert torch.equal(found.cpu(), expected), (name, normalize, channels_first)
                    assert name == "uint8" or found.is_contiguous()


def check_slots_may_go_their_own_ways(device, rounds=30):
    """Whatever is sent, received and observed in whatever order, rows belong to their slots."""
    random = np.random.default_rng(0)
    steps = np.zeros(NUM_ENVS, int)
    origins = np.arange(NUM_ENVS) + 9
    with make((80, 80)) as envs:
        tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        tensors.reset(seed=9)
        idle, pending = set(range(NUM_ENVS)), set()
        for _ in range(rounds):
            count = random.integers(1, len(idle), endpoint=True) if idle else 0
            chosen = random.permutation(sorted(idle))[:count].astype(int)
            if count:
                tensors.send(torch.zeros((count, 2), device=device), chosen)
                steps[chosen] += 1
                idle -= set(chosen.tolist())
                pending |= set(chosen.tolist())
            ready = tensors.recv(int(random.integers(1, len(pending), endpoint=True)))
            slots = ready.slots
            assert_frames(ready.obs, origins[slots], steps[slots], (80, 80))
            assert ready.rewards.tolist() == steps[slots].tolist()
            idle |= set(slots.tolist())
            pending -= set(slots.tolist())
            some = random.permutation(sorted(idle))
            assert_frames(tensors.observe(some), origins[some], steps[some], (80, 80))
        if pending:
            tensors.recv(len(pending))
        assert tensors.recv(0).obs["state"].shape == (0, 4)
        obs, *_ = tensors.step(np.zeros((NUM_ENVS, 2), np.float32))
        assert_frames(obs, origins, steps + 1, (80, 80))


def check_every_frame_of_growing_chunks(device):
    """Longer chunks append segments to the block; their frames arrive like the first ones."""
    slots, done = np.arange(NUM_ENVS), 0
    with make(frames="every") as envs:
        tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        obs, _ = tensors.reset(seed=0)
        assert_frames(obs, slots, np.zeros(NUM_ENVS, int))
        for length in (1, 3, 2, 8, 5, 20, 20):
            actions = torch.zeros((NUM_ENVS, length, 2), device=device)
            obs, rewards, *_ = tensors.step_chunk(actions)
            assert rewards.shape == (NUM_ENVS, length)
            for place in range(length):
                number = np.full(NUM_ENVS, done + place + 1)
                step = {key: value[:, place] for key, value in obs.items()}
                assert_frames(step, slots, number)
            done += length
        obs, *_ = tensors.step(actions[:, 0])
        assert_frames(obs, slots, np.full(NUM_ENVS, done + 1))
        tensors.send(torch.zeros((2, 4, 2), device=device), [4, 1])
        ready = tensors.recv(2)
        last = {key: value[:, 3] for key, value in ready.obs.items()}
        assert_frames(last, ready.slots, np.full(2, done + 5))


def check_a_ring_that_is_carried_over(device):
    """Rewinding and partial resets move rows in the trainer; they wait for copies, too."""
    slots, done = np.arange(NUM_ENVS), 0
    no_action = np.zeros((NUM_ENVS, 2), np.float32)
    with make(ring=3) as envs:
        tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        obs, _ = tensors.reset(seed=0)
        for _ in range(8):
            envs.rewind()
            for _ in range(2):
                held, (obs, *_) = obs, tensors.step(no_action)
                done += 1
                if device != "cpu":  # where a view of the row that was rewound would be gone
                    assert_frames(held, slots, np.full(NUM_ENVS, done - 1))
        assert_frames(obs, slots, np.full(NUM_ENVS, done))
        mask = slots % 2 == 0
        obs, _ = tensors.reset(seed=50, options={"reset_mask": mask})
        assert_frames(obs, np.where(mask, slots + 50, slots), np.where(mask, 0, done))


def check_actions_of_any_kind(device):
    """Tensors with gradients, of less precision, or arrays: the env gets their values."""
    with make() as envs:
        tensors = envs.to_torch(device)
        tensors.reset(seed=0)
        values = torch.linspace(-1, 1, 2 * NUM_ENVS, device=device).view(NUM_ENVS, 2)
        total = torch.zeros(NUM_ENVS, 2)
        for actions in (
            values.clone().requires_grad_(),
            values.bfloat16(),
            values.half(),
            values.cpu(),
            values.cpu().numpy(),
            values.t().contiguous().t(),
        ):
            obs, *_ = tensors.step(actions)
            total += torch.as_tensor(actions).detach().cpu().float()
            assert torch.equal(obs["state"][:, 2:].cpu(), total)
        for wrong in (values * torch.nan, values[:, :1]):
            try:
                tensors.step(wrong)
            except polyarm.InvalidAction:
                continue
            raise AssertionError(f"{wrong} was accepted")


def check_the_settings_of_the_trainer_do_not_matter(device):
    """Made in inference mode, used outside of it; with another default dtype and device."""
    with make() as envs:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device(device)
        try:
            tensors = envs.to_torch(device)
            with torch.inference_mode():
                tensors.reset(seed=0)
                tensors.step(torch.zeros((NUM_ENVS, 2)))
            for _ in range(3):
                obs, *_ = tensors.step(torch.zeros((NUM_ENVS, 2)))
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
        expected = frames(np.arange(NUM_ENVS), np.full(NUM_ENVS, 4)).transpose(0, 3, 1, 2)
        exact = torch.from_numpy(expected.astype(np.float32) / np.float32(255))
        assert torch.equal(obs["pixels/front"].cpu(), exact)


def check_a_killed_worker_is_replaced_by_one_that_knows_nothing_of_cuda(device):
    """Workers come from a process of their own, whatever the trainer has done by then."""
    no_action = np.zeros((NUM_ENVS, 2), np.float32)
    others = np.arange(1, NUM_ENVS)
    with make(num_workers=NUM_ENVS) as envs:
        tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        tensors.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        failures = 0
        for step in range(1, 6):
            obs, *_, info = tensors.step(no_action)
            failures += "error" in info and info["error"][0] is not None
            rest = {key: value[1:] for key, value in obs.items()}
            assert_frames(rest, others, np.full(len(others), step))
        assert failures == 1
        assert obs["state"][0, 1] >= 2  # it steps again
        for pid in envs.worker_pids:
            assert "libcuda" not in Path(f"/proc/{pid}/maps").read_text()


CHECKS = [
    check_frames_are_those_of_their_step,
    check_frames_have_the_exact_values,
    check_slots_may_go_their_own_ways,
    check_every_frame_of_growing_chunks,
    check_a_ring_that_is_carried_over,
    check_actions_of_any_kind,
    check_the_settings_of_the_trainer_do_not_matter,
    check_a_killed_worker_is_replaced_by_one_that_knows_nothing_of_cuda,
]


def check_steps_wait_for_the_row_they_overwrite_and_no_other(device):
    """With the copies held up, the next step goes through and the one after it waits."""
    no_action = np.zeros((NUM_ENVS, 2), np.float32)
    slots = np.arange(NUM_ENVS)
    with make() as envs:
        tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        tensors.reset(seed=0)
        tensors.step(no_action)
        torch.cuda.synchronize()
        stream = tensors._copies.stream
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)  # about half a second
        first, *_ = tensors.step(no_action)
        held = torch.cuda.Event()
        held.record(stream)
        envs.step(no_action)
        assert not held.query(), "a step waited for the copy of another row"
        envs.step(no_action)
        assert held.query(), "a row was written while it was being copied"
        assert_frames(first, slots, np.full(NUM_ENVS, 2))


def check_a_busy_trainer_neither_tears_nor_delays(device):
    """Work queued on the trainer's stream delays no copy, and what it reads stays as it was."""
    no_action = np.zeros((NUM_ENVS, 2), np.float32)
    slots = np.arange(NUM_ENVS)
    with make((128, 128)) as envs:
        tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        tensors.reset(seed=0)
        kept = []
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                for _ in range(10):
                    torch.cuda._sleep(20_000_000)
                    obs, *_ = tensors.step(no_action)
                    kept.append({key: value.clone() for key, value in obs.items()})
        torch.cuda.synchronize()
        for step, obs in enumerate(kept, start=1):
            assert_frames(obs, slots, np.full(NUM_ENVS, step), (128, 128))


def check_the_block_is_pinned_until_close(device):
    """CUDA knows the rows as pinned memory, and no more after close."""
    with make() as envs:
        obs, _ = envs.reset(seed=0)
        rows = torch.from_numpy(obs["pixels/front"])
        assert not rows.is_pinned()
        envs.to_torch(device)
        envs.to_torch(device, dtype="bfloat16")
        assert rows.is_pinned()
    assert not rows.is_pinned()


def check_a_refusal_is_survived(device):
    """Memory that cannot be pinned is copied all the same, with one warning."""
    with make() as envs, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # A flag that does not exist: CUDA refuses, for real, and pins nothing.
        with unittest.mock.patch.object(gpu_copies, "_PORTABLE", 1 << 30):
            tensors = envs.to_torch(device, dtype="uint8", channels_first=False)
        obs, _ = tensors.reset(seed=0)
        assert not torch.from_numpy(envs.history()["obs"]["state"]).is_pinned()
        for step in range(1, 6):
            obs, *_ = tensors.step(np.zeros((NUM_ENVS, 2), np.float32))
            assert_frames(obs, np.arange(NUM_ENVS), np.full(NUM_ENVS, step))
        assert len(caught) == 1, [str(each.message) for each in caught]
        assert "could not pin" in str(caught[0].message)


GPU_CHECKS = [
    check_steps_wait_for_the_row_they_overwrite_and_no_other,
    check_a_busy_trainer_neither_tears_nor_delays,
    check_the_block_is_pinned_until_close,
    check_a_refusal_is_survived,
]


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    failed = []
    stress = partial(check_frames_are_those_of_their_step, steps=100, image_size=(256, 256))
    stress.__name__ = "check_a_longer_run_of_larger_frames"
    for check in [*CHECKS, *(GPU_CHECKS if device != "cpu" else []), stress]:
        began = time.perf_counter()
        try:
            check(device)
            outcome = "ok"
        except Exception as error:  # noqa: BLE001  all of them are to be seen
            traceback.print_exc()
            outcome = f"FAILED: {error!r}"
            failed.append(check.__name__)
        spent = time.perf_counter() - began
        sys.stdout.write(f"{check.__name__:<60} {spent:5.1f} s  {outcome}\n")
        sys.stdout.flush()
    sys.exit(f"failed on {device}: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
