"""EGL devices and their CUDA twins, with a library that stands in for NVIDIA's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from polyarm.display import egl
from polyarm.display.egl import Egl, chosen_index

HANDLES = [0x1000, 0x2000, 0x3000]


class FakeFunction:
    """A function of a C library: callable, with a settable ``restype``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


class FakeEgl:
    """An EGL library whose devices have the CUDA numbers that are given, None for Mesa's."""

    def __init__(self, cuda: list[int | None], *, lacks: tuple[str, ...] = ()) -> None:
        self._cuda = cuda
        self._lacks = lacks
        self._kept = {
            "eglQueryDevicesEXT": ctypes.CFUNCTYPE(
                ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
            )(self._query_devices),
            "eglQueryDeviceStringEXT": ctypes.CFUNCTYPE(
                ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
            )(self._query_string),
            "eglQueryDeviceAttribEXT": ctypes.CFUNCTYPE(
                ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
            )(self._query_attribute),
        }
        self._nvidia = ctypes.create_string_buffer(b"EGL_EXT_device_drm EGL_NV_device_cuda")
        self._mesa = ctypes.create_string_buffer(b"EGL_MESA_device_software")
        self.eglGetProcAddress = FakeFunction(self._address)

    def _address(self, name: bytes) -> int | None:
        if name.decode() in self._lacks:
            return None
        return ctypes.cast(self._kept[name.decode()], ctypes.c_void_p).value

    def _query_devices(self, most: int, handles: int, count: int) -> int:
        found = HANDLES[: len(self._cuda)]
        (ctypes.c_void_p * len(found)).from_address(handles)[:] = found
        ctypes.c_int.from_address(count).value = len(found)
        return 1

    def _query_string(self, device: int, name: int) -> int:
        cuda = self._cuda[HANDLES.index(device)]
        return ctypes.addressof(self._mesa if cuda is None else self._nvidia)

    def _query_attribute(self, device: int, name: int, value: int) -> int:
        assert name == 0x323A
        ctypes.c_ssize_t.from_address(value).value = self._cuda[HANDLES.index(device)] or 0
        return 1


@pytest.fixture(autouse=True)
def no_device_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)


def test_each_device_says_which_cuda_device_it_is():
    assert Egl(FakeEgl([1, 0, None])).cuda_indices() == [1, 0, None]


def test_orders_that_differ_are_mapped():
    devices = Egl(FakeEgl([2, 0, 1]))
    assert [devices.index_of_cuda(cuda) for cuda in range(3)] == [1, 2, 0]
    assert chosen_index(devices, 2) == 0


def test_a_gpu_that_egl_does_not_have_is_an_error_that_lists_the_others():
    with pytest.raises(RuntimeError, match=r"CUDA device 5: EGL 0 is CUDA 1, EGL 1 is CUDA 0"):
        chosen_index(Egl(FakeEgl([1, 0])), 5)


def test_the_device_a_user_has_chosen_wins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "1")
    assert chosen_index(Egl(FakeEgl([1, 0])), 1) == 1


@pytest.mark.parametrize("chosen", ["2", "-1", "gpu"])
def test_a_device_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, chosen: str):
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", chosen)
    with pytest.raises(RuntimeError, match="devices are 0 to 1"):
        chosen_index(Egl(FakeEgl([1, 0])), None)


def test_more_ranks_than_gpus_take_turns():
    devices = Egl(FakeEgl([1, 0]))
    assert [chosen_index(devices, rank, shared=True) for rank in range(4)] == [1, 0, 1, 0]


def test_without_a_gpu_any_rank_renders_in_software():
    assert chosen_index(Egl(FakeEgl([None])), 3) is None


def test_without_a_rank_the_first_device_that_works_is_taken():
    assert chosen_index(Egl(FakeEgl([1, 0])), None) is None


def test_a_driver_without_the_attribute_has_no_cuda_twins():
    devices = Egl(FakeEgl([0], lacks=("eglQueryDeviceAttribEXT",)))
    assert devices.cuda_indices() == [None]


def test_a_driver_that_lists_no_devices_says_so():
    with pytest.raises(RuntimeError, match="lacks eglQueryDevicesEXT"):
        Egl(FakeEgl([0], lacks=("eglQueryDevicesEXT",)))


@pytest.mark.parametrize(
    ("visible", "kept"), [("", False), ("2", False), ("4, 6", False), ("GPU-8f3a,GPU-11c2", True)]
)
def test_gpus_are_counted_by_number_or_by_place(visible: str, kept: bool):
    environment = {"CUDA_VISIBLE_DEVICES": visible, "HOME": "/"}
    egl.count_all_gpus(environment)
    assert ("CUDA_VISIBLE_DEVICES" in environment) is kept


def test_every_real_device_is_tried_and_described():
    try:
        devices = egl.try_devices()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no EGL here: {error}; apt-get install libegl1 libgl1-mesa-dri")
    assert [device.index for device in devices] == list(range(len(devices)))
    assert all(device.renderer or device.complaint for device in devices)
