"""One line per way to render; which of them must work depends on the suite and the machine."""

import pytest

from polyarm.display import Display
from polyarm.doctor import Case, frames
from polyarm.errors import DisplayError

LLVMPIPE = "llvmpipe (LLVM 15.0.6, 256 bits)"


@pytest.fixture
def renders(monkeypatch):
    """What each backend renders with; those that are not named are not installed."""
    found = {}

    def select(name, *, frames, needs_x=False):
        key = "virtualgl" if needs_x else name
        if key in found:
            return Display(name, {}, found[key])
        raise DisplayError(f"display {name!r} does not work: it is not installed. Fix: apt …")

    monkeypatch.setattr(frames.displays, "select", select)
    return found


def lines(suite=None):
    return {one.name.removeprefix("frame: "): one for one in frames.check(Case(suite))}


@pytest.mark.usefixtures("no_gpu")
def test_a_frame_is_told_with_renderer_and_time(renders):
    renders.update(egl=f"EGL on {LLVMPIPE}", osmesa="OSMesa", xvfb="Xvfb")
    found = lines("metaworld")
    assert {one.status for one in found.values()} == {"ok"}
    assert found["egl"].text.startswith(f"EGL on {LLVMPIPE}, ")
    assert found["egl"].text.endswith(" ms")


@pytest.mark.usefixtures("no_gpu")
def test_one_way_to_render_is_enough(renders):
    renders.update(osmesa="OSMesa")
    found = lines("metaworld")
    assert (found["egl"].status, found["xvfb"].status) == ("hint", "hint")
    assert "libegl1" in found["egl"].fix
    assert found["xvfb"].fix.endswith("apt-get install -y xvfb libgl1-mesa-dri libgl1")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("suite", [None, "metaworld", "libero"])
def test_no_way_to_render_is_missing(renders, suite):
    found = lines(suite)
    assert found["egl"].status == "missing"
    assert found["osmesa"].status == "hint"
    assert found["osmesa"].fix.endswith("libosmesa6")


@pytest.mark.usefixtures("gpu")
def test_software_beside_a_gpu_is_broken(renders):
    renders.update(egl=f"EGL on {LLVMPIPE}", osmesa=LLVMPIPE, xvfb=LLVMPIPE)
    found = lines("metaworld")
    assert found["egl"].status == "broken"
    assert "software, beside a GPU" in found["egl"].text
    assert "libnvidia-gl-580" in found["egl"].fix
    assert (found["osmesa"].status, found["xvfb"].status) == ("ok", "ok")


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_renders_is_fine(renders):
    renders.update(egl="EGL on NVIDIA H200/PCIe/SSE2")
    assert lines("metaworld")["egl"].status == "ok"


@pytest.mark.usefixtures("gpu")
def test_egl_must_work_where_there_is_a_gpu(renders):
    renders.update(osmesa=LLVMPIPE)
    assert lines("metaworld")["egl"].status == "missing"


@pytest.mark.usefixtures("no_gpu")
def test_rlbench_needs_xvfb_and_can_do_without_virtualgl(renders):
    found = lines("rlbench")
    assert set(found) == {"xvfb", "virtualgl"}
    assert found["xvfb"].status == "missing"
    assert found["virtualgl"].status == "hint"
    assert "virtualgl.org" in found["virtualgl"].fix


@pytest.mark.usefixtures("gpu")
def test_xvfb_beside_a_gpu_works_with_a_hint_at_something_faster(renders):
    renders.update(xvfb=f"Xvfb on {LLVMPIPE}", virtualgl="VirtualGL (egl0) on NVIDIA H200")
    found = lines("rlbench")
    assert found["xvfb"].status == "hint"
    assert "polyarm setup xorg" in found["xvfb"].fix
    assert found["virtualgl"].status == "ok"


@pytest.mark.usefixtures("gpu")
def test_virtualgl_in_software_is_a_warning(renders):
    renders.update(xvfb="Xvfb", virtualgl=f"VirtualGL on {LLVMPIPE}")
    assert lines("rlbench")["virtualgl"].status == "warning"


@pytest.mark.usefixtures("no_gpu")
def test_a_server_that_the_environment_asks_for_must_answer(renders, monkeypatch):
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    renders.update(xvfb="Xvfb")
    finding = lines("rlbench")["external"]
    assert finding.status == "missing"
    assert "unset DISPLAY" in finding.fix
    renders.update(external=":99.0 on NVIDIA H200")
    del renders["xvfb"]
    found = lines("rlbench")
    assert (found["external"].status, found["xvfb"].status) == ("ok", "hint")


@pytest.mark.usefixtures("no_gpu")
def test_a_desktop_s_display_that_fails_is_a_warning(renders, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    renders.update(xvfb="Xvfb")

    def select(name, *, frames, needs_x=False):
        raise DisplayError(f"display {name!r} does not work: it has no GLX. Start it, or …")

    monkeypatch.setattr(frames.displays, "select", select)
    found = lines("rlbench")
    assert found["external"].status == "warning"
    assert found["external"].text.startswith("it has no GLX")
