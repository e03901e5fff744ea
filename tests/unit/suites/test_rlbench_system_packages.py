"""Packages of the system: found by loading them, installed where apt may, else named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_coppeliasim import quiet

from polyarm.suites.rlbench import system_packages


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A path with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(system_packages, "unloadable", list)

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    add("env", 'shift; exec "$@"')
    return add


def test_without_apt_the_packages_are_named_and_without_sudo_the_command(
    programs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = system_packages.install(("gcc",), quiet)
    assert step.state == "missing"
    assert "no apt-get here" in step.text
    assert "libxcb-icccm4" in step.text
    programs("apt-get", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    step = system_packages.install((), quiet)
    assert step.state == "missing"
    assert (
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends xvfb" in step.text
    )
    assert "build-essential" not in step.text
    programs("sudo", "exit 1")  # it asks for a password
    assert system_packages.install((), quiet).state == "missing"


@pytest.mark.parametrize("user", ["root", "sudo"])
def test_packages_are_installed_as_root_or_with_sudo_and_looked_for_again(
    user: str,
    programs: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, libraries = tmp_path / "log", tmp_path / "libraries"
    monkeypatch.setattr(
        system_packages, "unloadable", lambda names: [] if libraries.exists() else list(names)
    )
    programs(
        "apt-get",
        f'echo "$@" >> {log}\ncase "$*" in\n*simulate*58*|*simulate*swscale5*) exit 100;;\n'
        f"*simulate*) exit 0;;\ninstall*) echo > {libraries}\n"
        f"echo > {tmp_path}/bin/Xvfb; /bin/chmod +x {tmp_path}/bin/Xvfb;;\nesac",
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0 if user == "root" else 1000)
    programs("sudo", f'echo "sudo $@" >> {log}; shift; [ "$1" = true ] || exec "$@"')
    planned = system_packages.plan(())
    assert planned.state == "planned"
    assert ("if sudo asks for no password" in planned.text) is (user == "sudo")
    assert not log.exists()  # a dry run does not ask sudo
    step = system_packages.install((), quiet)
    assert step.state == "done", step.text
    lines = log.read_text()
    assert ("sudo -n" in lines) is (user == "sudo")
    assert "install -y --no-install-recommends xvfb libgl1" in lines
    assert "x11-utils" in step.text
    assert system_packages.install((), quiet).state == "there"


def test_a_failing_apt_is_quoted(programs: Callable[[str, str], None]) -> None:
    programs("apt-get", "echo E: Unable to locate package; exit 100")
    step = system_packages.install((), quiet)
    assert step.state == "missing"
    assert "status 100" in step.text
    assert "Unable to locate package" in step.text


def test_a_library_that_is_there_loads_and_an_invented_one_does_not() -> None:
    names = ["libc.so.6", "libnothing.so.1"]
    assert system_packages.unloadable(names) == ["libnothing.so.1"]


def test_a_library_that_takes_its_process_down_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = system_packages._LOADER.replace(
        "ctypes.CDLL(name)", "ctypes.CDLL(name) if name != 'libcrash.so' else ctypes.string_at(0)"
    )
    monkeypatch.setattr(system_packages, "_LOADER", script)
    names = ["libc.so.6", "libcrash.so", "libnothing.so.1", "libm.so.6"]
    assert system_packages.unloadable(names) == ["libcrash.so", "libnothing.so.1"]


@pytest.mark.parametrize("script", ["import os; os.abort()", "import time; time.sleep(60)"])
def test_libraries_of_which_nothing_is_said_are_lacking(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_packages, "_LOADER", script)
    monkeypatch.setattr(system_packages, "LOAD_TIMEOUT_S", 0.5)
    assert system_packages.unloadable(["libc.so.6", "libm.so.6"]) == ["libc.so.6", "libm.so.6"]


def test_a_library_that_ld_library_path_names_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = Path("/proc/self/maps").read_text().splitlines()
    libc = next(line.split()[-1] for line in mapped if "/libc.so" in line or "/libc-" in line)
    (tmp_path / "libmine.so.1").symlink_to(libc)
    assert system_packages.unloadable(["libmine.so.1"]) == ["libmine.so.1"]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert system_packages.unloadable(["libmine.so.1"]) == []
