"""CoppeliaSim's folder and the variables that name it, on folders made for each test."""

import sys
from pathlib import Path

import pytest

from polyarm.doctor import Case, coppeliasim
from polyarm.suites.rlbench.coppeliasim import Manifest
from polyarm.suites.rlbench.environment import Environment, writable_twin


@pytest.fixture
def make_root(tmp_path):
    """Makes a folder that looks like CoppeliaSim of some version."""

    def make(name="CoppeliaSim", number=40100):
        root = tmp_path / name
        (root / "programming" / "include").mkdir(parents=True)
        (root / "libcoppeliaSim.so").touch()
        header = root / "programming" / "include" / "simConst.h"
        header.write_text(f"#define SIM_PROGRAM_VERSION_NB {number}\n")
        return root

    return make


def only(findings):
    [finding] = findings
    return finding


def variables(monkeypatch, root):
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/lib:{root}")
    monkeypatch.setenv("QT_QPA_PLATFORM_PLUGIN_PATH", str(root))


def test_the_right_version_is_fine(make_root, monkeypatch):
    root = make_root()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    finding = only(coppeliasim.check_folder(Case("rlbench")))
    assert (finding.status, finding.text) == ("ok", f"4.1.0 in {root}")


def test_what_the_set_up_installed_is_found_without_variables(make_root):
    root = make_root()
    Environment(root, Path(sys.executable)).write()
    assert only(coppeliasim.check_folder(Case("rlbench"))).status == "ok"
    assert only(coppeliasim.check_variables(Case("rlbench"))).status == "ok"


@pytest.mark.parametrize(("suite", "status"), [("rlbench", "missing"), (None, "hint")])
def test_none_is_missing_only_where_it_was_asked_for(suite, status):
    finding = only(coppeliasim.check_folder(Case(suite)))
    assert (finding.status, finding.fix) == (status, "polyarm setup rlbench")
    assert list(coppeliasim.check_variables(Case(suite))) == []
    assert list(coppeliasim.check_add_ons(Case(suite))) == []


def test_a_folder_that_is_not_there_is_missing_or_broken(monkeypatch, tmp_path):
    Environment(tmp_path / "gone", Path(sys.executable)).write()
    finding = only(coppeliasim.check_folder(Case("rlbench")))
    assert (finding.status, finding.fix) == ("missing", "polyarm setup rlbench")
    (tmp_path / "cache" / "rlbench" / "env.json").unlink()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(tmp_path / "gone"))
    finding = only(coppeliasim.check_folder(Case("rlbench")))
    assert finding.status == "broken"
    assert finding.fix == "unset COPPELIASIM_ROOT && polyarm setup rlbench"


def test_another_version_beside_the_set_up_s_is_told(make_root, monkeypatch):
    installed, other = make_root("installed"), make_root("other", 41000)
    Environment(installed, Path(sys.executable)).write()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(other))
    finding = only(coppeliasim.check_folder(Case("rlbench")))
    assert finding.status == "warning"
    assert f"4.1.0 in {installed}; COPPELIASIM_ROOT is {other} (4.10.0)" in finding.text
    assert finding.fix == "unset COPPELIASIM_ROOT"


@pytest.mark.parametrize("number", [40200, 40000, 41000])
def test_any_other_version_is_broken(number, make_root, monkeypatch):
    monkeypatch.setenv("COPPELIASIM_ROOT", str(make_root(number=number)))
    finding = only(coppeliasim.check_folder(Case("rlbench")))
    assert finding.status == "broken"
    assert "exactly 4.1.0" in finding.text


def test_a_folder_without_the_library_is_broken(make_root, monkeypatch):
    root = make_root()
    (root / "libcoppeliaSim.so").unlink()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    finding = only(coppeliasim.check_folder(Case("rlbench")))
    assert finding.status == "broken"
    assert "libcoppeliaSim.so" in finding.text


def test_a_set_up_s_file_that_cannot_be_read_is_broken(tmp_path):
    file = tmp_path / "cache" / "rlbench" / "env.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    finding = only(coppeliasim.check_folder(Case("rlbench")))
    assert finding.status == "broken"
    assert str(file) in finding.text
    assert coppeliasim.find(Case("rlbench")) is None


def test_variables_that_agree_are_fine(make_root, monkeypatch):
    root = make_root()
    variables(monkeypatch, root)
    finding = only(coppeliasim.check_variables(Case("rlbench")))
    assert finding.status == "ok"
    assert finding.text.endswith(f"name {root}")


def test_the_root_alone_is_enough_for_our_workers(make_root, monkeypatch):
    monkeypatch.setenv("COPPELIASIM_ROOT", str(make_root()))
    finding = only(coppeliasim.check_variables(Case("rlbench")))
    assert finding.status == "hint"
    assert "polyarm sets LD_LIBRARY_PATH, QT_QPA_PLATFORM_PLUGIN_PATH" in finding.text
    assert finding.fix.startswith("export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$COPPELIASIM_ROOT")


def test_another_coppeliasim_before_this_one_is_broken(make_root, monkeypatch):
    root, other = make_root(), make_root("other")
    variables(monkeypatch, root)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{other}:{root}")
    finding = only(coppeliasim.check_variables(Case("rlbench")))
    assert finding.status == "broken"
    assert str(other) in finding.text
    assert finding.fix == f"export LD_LIBRARY_PATH={root}:$LD_LIBRARY_PATH"
    assert only(coppeliasim.check_variables(Case())).status == "warning"


def test_another_coppeliasim_after_this_one_does_no_harm(make_root, monkeypatch):
    root = make_root()
    variables(monkeypatch, root)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{root}:{make_root('other')}")
    assert only(coppeliasim.check_variables(Case("rlbench"))).status == "ok"


def test_plugins_of_another_qt_are_a_warning(make_root, monkeypatch):
    root = make_root()
    variables(monkeypatch, root)
    monkeypatch.setenv("QT_QPA_PLATFORM_PLUGIN_PATH", "/site-packages/cv2/qt/plugins")
    warning, _ = coppeliasim.check_variables(Case("rlbench"))
    assert warning.status == "warning"
    assert warning.fix == f"export QT_QPA_PLATFORM_PLUGIN_PATH={root}"


def test_another_root_than_the_set_up_s_is_a_warning(make_root, monkeypatch):
    installed, root = make_root("installed"), make_root()
    Environment(installed, Path(sys.executable)).write()
    variables(monkeypatch, root)
    warning, _ = coppeliasim.check_variables(Case("rlbench"))
    assert warning.status == "warning"
    assert str(installed) in warning.text
    assert warning.fix.endswith("env.sh")


def test_network_add_ons_are_a_hint_until_they_are_disabled(make_root, monkeypatch):
    root = make_root()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    assert only(coppeliasim.check_add_ons(Case("rlbench"))).status == "ok"
    server = root / "addOns" / "ZMQ remote API server.lua"
    server.parent.mkdir()
    server.touch()
    finding = only(coppeliasim.check_add_ons(Case("rlbench")))
    assert finding.status == "hint"
    assert "ZMQ remote API server.lua" in finding.text
    server.rename(f"{server}.disabled")
    assert only(coppeliasim.check_add_ons(Case("rlbench"))).status == "ok"


def test_add_ons_of_somebody_else_s_are_left_to_them(make_root, monkeypatch):
    root = make_root()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    (root / "remoteApiConnections.txt").touch()
    assert "mv NAME" in only(coppeliasim.check_add_ons(Case("rlbench"))).fix
    Manifest("archive", "", "4.1.0", {}).write(root)
    assert only(coppeliasim.check_add_ons(Case("rlbench"))).fix.startswith("polyarm setup rlbench")


def test_links_to_a_coppeliasim_are_no_other_one(make_root, monkeypatch):
    root = make_root()
    twin = writable_twin(root)
    twin.mkdir(parents=True)
    (twin / "libcoppeliaSim.so").symlink_to(root / "libcoppeliaSim.so")
    (twin / "programming").symlink_to(root / "programming")
    variables(monkeypatch, root)
    Environment(twin, Path(sys.executable)).write()
    assert coppeliasim.find(Case("rlbench")).root == twin
    assert {one.status for one in coppeliasim.check_variables(Case("rlbench"))} == {"ok"}
    assert only(coppeliasim.check_folder(Case("rlbench"))).status == "ok"
