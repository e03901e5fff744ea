"""Tensors for arrays: the same interface and the same values on every device."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest

from polyarm.errors import ClosedEnv, InvalidCall, MissingExtra, UnknownName
from polyarm.testing import CountingEnv
from polyarm.vector.gpu_copies import pieces

torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")

import tensor_checks  # noqa: E402  it imports torch

NO_GPU = "needs a GPU: torch.cuda.is_available() is False"
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
NO_ACTION = np.zeros((4, 2), np.float32)


def sentence(check):
    return check.__name__.removeprefix("check_")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("check", tensor_checks.CHECKS, ids=sentence)
def test_on_every_device(check, device):
    check(device)


@on_gpu
@pytest.mark.parametrize("check", tensor_checks.GPU_CHECKS, ids=sentence)
def test_on_a_gpu(check):
    check("cuda")


def test_on_the_cpu_nothing_is_copied_that_needs_no_conversion(make):
    envs = make(CountingEnv)
    tensors = envs.to_torch("cpu", dtype="uint8")
    obs, _ = tensors.reset(seed=0)
    history = envs.history()
    row = history["row"]
    for key in ("state", "pixels/front"):
        assert obs[key].data_ptr() == history["obs"][key][row].ctypes.data
    assert obs["pixels/front"].shape == (4, 3, 8, 8)


def test_views_on_the_cpu_live_until_the_second_following_step(make):
    tensors = make(CountingEnv).to_torch("cpu")
    first = tensors.reset(seed=0)[0]
    state, frame = first["state"].clone(), first["pixels/front"].clone()
    tensors.step(NO_ACTION)
    assert torch.equal(first["state"], state)
    tensors.step(NO_ACTION)
    assert first["state"][:, 1].tolist() == [2] * 4  # the row has been written again
    assert torch.equal(first["pixels/front"], frame)  # what was converted is the caller's own


def test_copies_of_the_vector_env_stay_copies(make):
    tensors = make(CountingEnv, copy=True).to_torch("cpu", dtype="uint8")
    first = tensors.reset(seed=0)[0]
    kept = {key: value.clone() for key, value in first.items()}
    for _ in range(5):
        tensors.step(NO_ACTION)
    assert all(torch.equal(first[key], kept[key]) for key in kept)


def test_the_last_observation_of_an_episode_takes_the_same_form(make):
    short = partial(CountingEnv, length=2)
    tensors = make(short, autoreset="same_step").to_torch("cpu")
    tensors.reset(seed=0)
    tensors.step(NO_ACTION)
    obs, _, terminated, _, info = tensors.step(NO_ACTION)
    assert terminated.all()
    assert obs["state"][:, 1].tolist() == [0] * 4
    last = tensors.tensors(info["final_obs"][info["_final_obs"]])
    assert last["state"][:, 1].tolist() == [2] * 4
    assert last["pixels/front"].shape == obs["pixels/front"].shape
    assert last["pixels/front"].dtype is torch.float32


def test_a_failed_slot_delivers_its_last_observation(make):
    def build():
        class Raising(CountingEnv):
            def step(self, action):
                if action[0] > 0:
                    raise RuntimeError("told to")
                return super().step(action)

        return Raising()

    tensors = make(build).to_torch("cpu")
    tensors.reset(seed=0)
    actions = torch.zeros(4, 2)
    tensors.step(actions)
    actions[1, 0] = 1
    obs, rewards, _, truncated, info = tensors.step(actions)
    assert truncated.tolist() == [False, True, False, False]
    assert rewards.tolist() == [2, 0, 2, 2]
    assert obs["state"][:, 1].tolist() == [2, 1, 2, 2]
    assert info["error"][1] is not None


def test_bare_images_are_frames_and_other_bytes_are_not(make_any):
    def build(shape):
        class Bytes(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
            action_space = gymnasium.spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                return np.full(shape, 51, np.uint8), {}

            def step(self, action):
                return np.full(shape, 51, np.uint8), 0.0, False, False, {}

        return Bytes()

    image = make_any(partial(build, (6, 5, 3))).to_torch("cpu").reset()[0]
    assert (image.dtype, image.shape) == (torch.float32, (4, 3, 6, 5))
    assert torch.equal(image, torch.full_like(image, np.float32(51) / np.float32(255)))
    stack = make_any(partial(build, (4, 6, 5))).to_torch("cpu").reset()[0]
    assert (stack.dtype, stack.shape) == (torch.uint8, (4, 4, 6, 5))


def test_a_batch_is_cut_where_rows_do_not_touch():
    source = np.arange(3 * 8 * 2).reshape(3, 8, 2)
    rows = np.array([1, 1, 1, 2, 2, 0])
    slots = np.array([2, 3, 4, 5, 1, 2])
    found = list(pieces(source, rows, slots))
    assert [start for start, _ in found] == [0, 3, 4, 5]
    assert (np.concatenate([piece for _, piece in found]) == source[rows, slots]).all()
    assert len(list(pieces(source, np.full(8, 1), np.arange(8)))) == 1
    assert len(list(pieces(source[:, :, :1], np.full(8, 1), np.arange(8)))) == 8
    assert list(pieces(source, rows[:0], slots[:0])) == []


def test_what_cannot_be_had_is_refused_with_a_way_out(make_any):
    envs = make_any(CountingEnv)
    with pytest.raises(UnknownName, match="did you mean 'float32'"):
        envs.to_torch("cpu", dtype="float23")
    with pytest.raises(UnknownName, match="Valid: uint8, bfloat16, float16, float32"):
        envs.to_torch("cpu", dtype=torch.int64)
    with pytest.raises(InvalidCall, match="ask for a floating dtype"):
        envs.to_torch("cpu", dtype="uint8", normalize=True)
    with pytest.raises(InvalidCall, match="'gpu' is no device of PyTorch"):
        envs.to_torch("gpu")
    with pytest.raises(InvalidCall, match="on 'cpu' or 'cuda', not on 'meta'"):
        envs.to_torch("meta")
    tensors = envs.to_torch("cpu")
    with pytest.raises(InvalidCall, match="call reset"):
        tensors.step(NO_ACTION)
    envs.close()
    with pytest.raises(ClosedEnv):
        tensors.reset()
    with pytest.raises(ClosedEnv):
        envs.to_torch("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named(make_any):
    with pytest.raises(
        InvalidCall, match=r"to_torch\('cuda'\), but this PyTorch .* to_torch\('cpu'\)"
    ):
        make_any(CountingEnv).to_torch()


def test_without_torch_the_extra_is_named(make_any, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"need PyTorch: pip install 'polyarm\[torch\]'"):
        make_any(CountingEnv).to_torch("cpu")


def test_torch_is_imported_by_to_torch_alone_and_cuda_is_left_alone_on_the_cpu():
    code = """
import sys, numpy, polyarm
from polyarm.testing import CountingEnv
with polyarm.make_vec(CountingEnv, num_envs=2) as envs:
    envs.reset(seed=0)
    assert "torch" not in sys.modules, "torch is imported without need"
    tensors = envs.to_torch("cpu")
    tensors.reset(seed=0)
    tensors.step(numpy.zeros((2, 2), numpy.float32))
    import torch
    assert not torch.cuda.is_initialized(), "CUDA is initialised"
    maps = open("/proc/self/maps").read()
    assert "/dev/nvidia" not in maps, "CUDA has a device open"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
