"""EGL devices, their CUDA twins, and which of them a rank gets."""

import json

import pytest

from polyarm.doctor import Case, devices


def device(index, cuda=None, renderer="llvmpipe (LLVM 15.0.6, 256 bits)", complaint=""):
    return {
        "index": index,
        "cuda": cuda,
        "renderer": renderer,
        "seconds": 0.1,
        "complaint": complaint,
    }


def nvidia(index, cuda):
    return device(index, cuda, "NVIDIA H200/PCIe/SSE2, device 0")


@pytest.fixture
def examined(child_says):
    def run(*found, suite=None):
        child_says((0, json.dumps(found), ""))
        return list(devices.check(Case(suite)))

    return run


@pytest.mark.usefixtures("no_gpu")
def test_a_software_device_is_fine_where_there_is_no_gpu(examined):
    listing, rank = examined(device(0))
    assert (listing.status, listing.text) == ("ok", "0: llvmpipe (LLVM 15.0.6, 256 bits)")
    assert (rank.status, rank.text) == ("ok", "EGL 0, the first that works")


@pytest.mark.usefixtures("gpu")
def test_a_gpu_is_listed_with_its_cuda_number(examined):
    listing, rank = examined(nvidia(0, 0))
    assert listing.text == "0 = CUDA 0: NVIDIA H200/PCIe/SSE2"
    assert rank.text == "EGL 0, the first that works"


@pytest.mark.usefixtures("gpu")
def test_orders_that_differ_are_told_with_how_they_are_mapped(examined, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    *_, order, rank = examined(nvidia(0, 1), nvidia(1, 0))
    assert order.status == "hint"
    assert "EGL 0 is CUDA 1, EGL 1 is CUDA 0" in order.text
    assert "MUJOCO_EGL_DEVICE_ID" in order.fix
    assert rank.text == "rank 1: CUDA 1, which is EGL 0"


@pytest.mark.usefixtures("gpu")
def test_visible_devices_renumber_cuda_and_not_egl(examined, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    *_, rank = examined(nvidia(0, 0), nvidia(1, 1))
    assert rank.text == "rank 0: CUDA 1, which is EGL 1"


@pytest.mark.usefixtures("gpu")
def test_a_rank_without_an_egl_device_is_broken(examined, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    *_, rank = examined(nvidia(0, 0))
    assert rank.status == "broken"
    assert "CUDA 3 has no EGL device" in rank.text


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_egl_does_not_see_is_broken_with_the_package_of_its_driver(examined):
    _, finding = examined(device(0))
    assert finding.status == "broken"
    assert "none of them is one of the 1 NVIDIA GPUs" in finding.text
    assert "libnvidia-gl-580" in finding.fix
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in finding.fix


@pytest.mark.usefixtures("gpu")
def test_a_container_without_graphics_is_told_so(examined, monkeypatch):
    monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")
    _, finding = examined(device(0))
    assert finding.fix.startswith("start the container with -e NVIDIA_DRIVER_CAPABILITIES=all")
    assert "it has compute,utility" in finding.fix


def test_a_device_that_gives_no_context_is_a_warning(examined, no_gpu):
    _, lost, _ = examined(device(0), device(1, None, "", "none of the 1 EGL devices works"))
    assert lost.status == "warning"
    assert lost.text == "1: none of the 1 EGL devices works"


@pytest.mark.usefixtures("no_gpu")
def test_without_any_context_the_rank_gets_none(examined):
    *_, rank = examined(device(0, None, "", "no answer"))
    assert rank.status == "warning"


@pytest.mark.usefixtures("no_gpu")
def test_a_device_that_the_user_names_is_taken_or_refused(examined, monkeypatch):
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "0")
    assert examined(device(0))[-1].text == "EGL 0, named by MUJOCO_EGL_DEVICE_ID"
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "7")
    refused = examined(device(0))[-1]
    assert refused.status == "broken"
    assert refused.fix == "unset MUJOCO_EGL_DEVICE_ID"


def test_without_the_library_the_other_lines_tell(child_says):
    child_says((1, "", "libEGL.so.1 is not installed"))
    assert list(devices.check(Case())) == []


@pytest.mark.usefixtures("no_gpu")
def test_an_egl_without_devices_is_a_warning_without_a_gpu(child_says):
    child_says((1, "", "the EGL driver offers no device"))
    [finding] = devices.check(Case())
    assert finding.status == "warning"
    assert "libegl1" in finding.fix


@pytest.mark.usefixtures("gpu")
def test_an_egl_that_does_not_answer_is_broken_with_one(child_says):
    child_says((None, "", ""))
    [finding] = devices.check(Case())
    assert finding.status == "broken"
    assert "no answer" in finding.text
