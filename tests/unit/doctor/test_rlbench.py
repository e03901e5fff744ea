"""PyRep and RLBench as small fakes on PYTHONPATH; `ldd` is a fake as well."""

import json
import sys
from pathlib import Path

import pytest

from polyarm.doctor import Case, rlbench
from polyarm.suites.rlbench.inspection import Package

GIT = {"url": "https://github.com/stepjam/PyRep.git", "vcs_info": {"commit_id": "8f420be8064b1970"}}


@pytest.fixture
def root(tmp_path, monkeypatch):
    folder = tmp_path / "CoppeliaSim"
    (folder / "programming" / "include").mkdir(parents=True)
    header = folder / "programming" / "include" / "simConst.h"
    header.write_text("#define SIM_PROGRAM_VERSION_NB 40100\n")
    monkeypatch.setenv("COPPELIASIM_ROOT", str(folder))
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes an installed package with an origin; its source may misbehave."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(site))

    def make(name, source="", origin=None, *, recorded=True):
        (site / name / "backend").mkdir(parents=True, exist_ok=True)
        (site / name / "__init__.py").write_text(source)
        if recorded:
            record = site / f"{name}-1.2.dist-info"
            record.mkdir(exist_ok=True)
            (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
            if origin is not None:
                (record / "direct_url.json").write_text(json.dumps(origin))
        return site / name

    return make


@pytest.fixture
def built(root, package, program):
    """PyRep and RLBench as the set-up leaves them."""
    pyrep = package("pyrep", origin=GIT)
    (pyrep / "backend" / "_sim_cffi.cpython-311-x86_64-linux-gnu.so").touch()
    package("rlbench", origin={**GIT, "url": "https://github.com/stepjam/RLBench.git"})
    program("ldd", f"echo '	libcoppeliaSim.so.1 => {root}/libcoppeliaSim.so.1 (0x00007f0)'")


@pytest.fixture
def environment(root):
    return rlbench.Environment(root, Path(sys.executable))


def lines(suite="rlbench"):
    return {one.name: one for one in rlbench.check(Case(suite))}


@pytest.mark.usefixtures("built")
def test_all_is_well(root):
    found = lines()
    assert {one.status for one in found.values()} == {"ok"}
    assert found["PyRep"].text == "1.2, git https://github.com/stepjam/PyRep.git@8f420be8064b"
    assert found["PyRep's link"].text == f"{root}/libcoppeliaSim.so.1"
    assert set(found) == {"PyRep", "RLBench", "PyRep's link", "import pyrep", "import rlbench"}


def test_nothing_is_said_before_there_is_a_coppeliasim():
    assert lines() == {}


@pytest.mark.usefixtures("root", "package")
def test_packages_that_are_not_there_are_missing_where_they_are_needed():
    found = lines()
    assert [one.status for one in found.values()] == ["missing", "missing"]
    assert found["RLBench"].fix == "polyarm setup rlbench"
    assert {one.status for one in lines(None).values()} == {"hint"}


def test_a_python_that_is_gone_is_missing(root, tmp_path):
    rlbench_environment = rlbench.Environment(root, tmp_path / "gone" / "python")
    [finding] = rlbench._check(rlbench_environment)
    assert finding.status == "missing"


def test_a_python_that_fails_is_broken(root, program):
    broken = rlbench.Environment(root, program("python-fake", "echo no encodings >&2; exit 1"))
    [finding] = rlbench._check(broken)
    assert finding.status == "broken"
    assert "no encodings" in finding.text


@pytest.mark.usefixtures("built")
def test_different_origins_are_a_warning(package):
    (package("rlbench").parent / "rlbench-1.2.dist-info" / "direct_url.json").unlink()
    found = lines()
    assert found["RLBench"].text == "1.2, from a package index"
    assert found["origins"].status == "warning"
    assert "(an index and git)" in found["origins"].text
    assert found["origins"].fix == "polyarm setup rlbench --force"


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (
            {"url": "file:///home/me/RLBench", "dir_info": {"editable": True}},
            "from file:///home/me",
        ),
        ({"url": "https://x.org/rlbench.zip", "archive_info": {}}, "from https://x.org"),
    ],
)
def test_folders_and_archives_are_origins_too(origin, words):
    assert Package("1.2", origin, "").words.startswith(words)


@pytest.mark.usefixtures("built")
def test_a_qt_of_opencv_s_is_a_warning(package):
    package("opencv_python")
    warning = lines()["OpenCV"]
    assert warning.status == "warning"
    assert "pip uninstall -y opencv-python" in warning.fix
    assert "opencv-python-headless<4.12" in warning.fix


@pytest.mark.parametrize(
    ("listing", "words", "fix"),
    [
        ("libcoppeliaSim.so.1 => not found", "libcoppeliaSim.so.1 is not found", "ln -s"),
        (
            "libcoppeliaSim.so.1 => /old/libcoppeliaSim.so.1 (0x1)",
            "/old/libcop",
            "polyarm setup rlbench",
        ),
        ("libc.so.6 => /lib/libc.so.6 (0x1)", "is not linked to", "--force"),
    ],
)
def test_a_wrong_link_is_broken(listing, words, fix, program, environment):
    program("ldd", f"echo '	{listing}'")
    [finding] = rlbench.check_link("_sim_cffi.so", environment)
    assert finding.status == "broken"
    assert words in finding.text
    assert fix in finding.fix


def test_a_library_that_pyrep_lacks_names_its_package(program, environment):
    good = f"libcoppeliaSim.so.1 => {environment.root}/libcoppeliaSim.so.1 (0x1)"
    program("ldd", f"printf '	{good}\\n	libGLU.so.1 => not found\\n'")
    fine, finding = rlbench.check_link("_sim_cffi.so", environment)
    assert (fine.status, finding.status) == ("ok", "broken")
    assert finding.fix.endswith("apt-get install -y libglu1-mesa")


def test_an_extension_that_ldd_refuses_is_broken(program, environment):
    program("ldd", "echo 'not a dynamic executable' >&2; exit 1")
    [finding] = rlbench.check_link("_sim_cffi.so", environment)
    assert "not a dynamic executable" in finding.text


def test_the_loader_is_asked_with_the_variables_of_a_worker(program, environment):
    program(
        "ldd", 'echo "	libcoppeliaSim.so.1 => ${LD_LIBRARY_PATH%%:*}/libcoppeliaSim.so.1 (0x1)"'
    )
    [finding] = rlbench.check_link("_sim_cffi.so", environment)
    assert finding.status == "ok"


@pytest.mark.usefixtures("root")
def test_pyrep_without_its_compiled_part_is_broken(package):
    package("pyrep", recorded=False)
    found = lines()
    assert found["PyRep"].text.startswith("no version, from ")
    assert found["PyRep's link"].status == "broken"


def test_an_import_that_fails_is_explained(package, environment):
    missing = "libcoppeliaSim.so.1: cannot open shared object file: No such file or directory"
    package("pyrep", f"raise ImportError({missing!r})")
    finding = rlbench._imported("pyrep", environment)
    assert finding.status == "broken"
    assert missing in finding.text
    assert "LD_LIBRARY_PATH" in finding.fix


def test_an_import_that_crashes_takes_only_its_child_along(package, environment):
    package("rlbench", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    finding = rlbench._imported("rlbench", environment)
    assert finding.status == "broken"
    assert "SIGSEGV" in finding.text


def test_an_import_that_hangs_is_given_up(package, environment, monkeypatch):
    monkeypatch.setattr(rlbench, "IMPORT_TIMEOUT_S", 0.5)
    package("pyrep", "import time; time.sleep(60)")
    finding = rlbench._imported("pyrep", environment)
    assert finding.status == "broken"
    assert "no answer" in finding.text


def test_imports_need_no_display(package, environment):
    package("rlbench", "import os; assert os.environ['QT_QPA_PLATFORM'] == 'offscreen'")
    assert rlbench._imported("rlbench", environment).status == "ok"
