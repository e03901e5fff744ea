"""Libraries are tried in children, and what cannot be loaded names its package."""

import pytest

from polyarm.doctor import Case, frames, libraries
from polyarm.doctor.gpu import Answer, Gpu
from polyarm.suites.rlbench import system_packages
from polyarm.suites.rlbench.system_packages import LIBRARIES


@pytest.fixture
def lacking(monkeypatch):
    """Libraries that cannot be loaded; the others can."""
    names = set()
    monkeypatch.setattr(
        libraries, "unloadable", lambda asked: [one for one in asked if one in names]
    )
    monkeypatch.setattr(libraries, "_has_mesa_driver", lambda: "Mesa DRI" not in names)
    return names


@pytest.fixture(autouse=True)
def without_gpu(no_gpu):
    """GPUs are other tests' matter."""


@pytest.fixture(autouse=True)
def frames_of_xvfb(monkeypatch):
    """Whether a frame comes out of Xvfb."""
    works = [False]
    monkeypatch.setattr(frames, "works", lambda backend, case: works[0])
    return works


def test_the_set_up_and_the_doctor_load_libraries_in_one_way():
    assert libraries.unloadable is system_packages.unloadable


def test_mesa_s_drivers_are_optional_where_frames_come_without(
    lacking, frames_of_xvfb, monkeypatch
):
    lacking.add("Mesa DRI")
    _, finding = libraries.check_gl(Case("rlbench"))
    assert finding.status == "missing"
    frames_of_xvfb[0] = True
    _, finding = libraries.check_gl(Case("rlbench"))
    assert finding.status == "hint"
    frames_of_xvfb[0] = False
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    _, finding = libraries.check_gl(Case("rlbench"))
    assert finding.status == "hint"


@pytest.mark.parametrize("suite", [None, "metaworld", "rlbench"])
def test_all_there_is_one_line(suite, lacking):
    [finding] = libraries.check_gl(Case(suite))
    assert finding.status == "ok"
    assert finding.text == "libEGL, libOpenGL, libGL, libX11, libOSMesa, Mesa DRI"


def test_mujoco_needs_egl_or_osmesa_and_names_the_packages(lacking):
    lacking.update(["libEGL.so.1", "libOpenGL.so.0"])
    there, finding = libraries.check_gl(Case("metaworld"))
    assert "libEGL" not in there.text
    assert (finding.status, finding.text) == ("hint", "libEGL, libOpenGL")
    assert finding.fix.endswith("apt-get install -y libegl1 libopengl0")
    lacking.update(libraries._OSMESA)
    _, egl, osmesa = libraries.check_gl(Case("metaworld"))
    assert (egl.status, osmesa.status) == ("missing", "hint")


def test_egl_is_needed_where_there_is_a_gpu(lacking, monkeypatch):
    h200 = Answer((Gpu(0, "NVIDIA H200", "580.1", 1, 1),))
    monkeypatch.setattr("polyarm.doctor.gpu.query", lambda: h200)
    lacking.update(["libEGL.so.1", "Mesa DRI"])
    _, egl, mesa = libraries.check_gl(Case())
    assert (egl.status, mesa.status) == ("missing", "hint")


def test_egl_is_optional_for_a_simulator_with_windows(lacking):
    lacking.update(["libEGL.so.1", "libX11.so.6", "Mesa DRI"])
    _, needed, optional = libraries.check_gl(Case("rlbench"))
    assert (needed.status, optional.status) == ("missing", "hint")
    assert needed.fix.endswith("libx11-6 libgl1-mesa-dri")
    assert optional.fix.endswith("libegl1")


def test_one_version_of_osmesa_is_enough(lacking):
    lacking.update(["libOSMesa.so.8", "libOSMesa.so"])
    assert len(list(libraries.check_gl(Case()))) == 1
    lacking.add("libOSMesa.so.6")
    _, finding = libraries.check_gl(Case())
    assert finding.status == "hint"
    assert finding.fix.endswith("libosmesa6")


def test_mesa_s_drivers_are_found_old_or_new_or_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setattr(libraries, "_DRIVER_FOLDERS", (str(tmp_path / "dri"),))
    assert not libraries._has_mesa_driver()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "libdril_dri.so").touch()
    monkeypatch.setenv("LIBGL_DRIVERS_PATH", str(tmp_path / "own"))
    assert libraries._has_mesa_driver()


def test_qt_s_libraries_are_one_line_when_they_are_there(lacking):
    [finding] = libraries.check_qt(Case("rlbench"))
    assert finding.status == "ok"


def test_each_library_of_qt_names_its_package(lacking):
    for library, package in LIBRARIES.items():
        lacking.clear()
        lacking.add(library)
        [finding] = libraries.check_qt(Case("rlbench"))
        assert finding.status == "missing"
        assert finding.fix.endswith(f"apt-get install -y {package}")


def test_qt_s_libraries_are_a_hint_unless_rlbench_was_asked_for(lacking):
    lacking.add("libxcb-icccm.so.4")
    [finding] = libraries.check_qt(Case())
    assert finding.status == "hint"
