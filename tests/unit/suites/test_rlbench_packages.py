"""PyRep and RLBench: whose they are, what builds them, and in which Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_coppeliasim import empty_cache, quiet, unpacked

from polyarm.errors import InvalidCall, MissingExtra
from polyarm.suites.rlbench import python_packages, setup, venv
from polyarm.suites.rlbench.environment import Environment
from polyarm.suites.rlbench.inspection import Facts
from polyarm.suites.rlbench.options import PYREP, SetupOptions


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.fixture
def failing_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "uv"
    folder.mkdir()
    (folder / "uv").write_text("#!/bin/sh\necho Python.h: no such file; exit 1\n")
    (folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_failing_build_is_quoted_with_the_command(
    tmp_path: Path, cache: Path, failing_uv: None
) -> None:
    with pytest.raises(MissingExtra, match=r"uv pip install .*status 1.*python3-dev") as told:
        python_packages.install(SetupOptions(installer="uv"), unpacked(tmp_path / "root"), quiet)
    assert "Python.h: no such file" in str(told.value)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages that this Python finds."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def add(site: Path, name: str, text: str = "", **origin: Any) -> None:
    """Install a package, after a fashion."""
    (site / f"{name}.py").write_text(text)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(json.dumps(origin))


def build_against(root: Path) -> None:
    for name in ("simAddOnScript_PyRep.lua", "libcoppeliaSim.so.1"):
        (root / name).touch()


@pytest.fixture
def fork(tmp_path: Path, cache: Path, site: Path) -> Environment:
    """PyRep and RLBench of somebody's own, which work."""
    for name in ("pyrep", "rlbench"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        url = (tmp_path / "mine" / name).as_uri()
        add(site, name, "PyRep = 1", url=url, dir_info={"editable": True})
    root = unpacked(tmp_path / "root")
    build_against(root)
    return Environment(root, Path(sys.executable))


def test_packages_are_there_if_they_are_built_against_this_and_can_be_imported(
    tmp_path: Path, cache: Path, site: Path
) -> None:
    root = unpacked(tmp_path / "root")
    environment, options = Environment(root, Path(sys.executable)), SetupOptions()
    assert "pyrep is not installed" in python_packages.complaint(options, environment)
    add(site, "pyrep", "raise ImportError('libGL.so.1: cannot open …')")
    assert "rlbench is not installed" in python_packages.complaint(options, environment)
    add(site, "rlbench")
    assert "was not built against" in python_packages.complaint(options, environment)
    build_against(root)
    why = python_packages.complaint(options, environment)
    assert why == "importing them failed: ImportError: libGL.so.1: cannot open …"
    assert python_packages.complaint(options, environment, deep=False) == ""
    (site / "pyrep.py").write_text("")  # as that of the package index
    assert "cannot import name 'PyRep'" in python_packages.complaint(options, environment)
    (site / "pyrep.py").write_text("PyRep = 1")
    assert python_packages.complaint(options, environment) == ""


def test_a_fork_that_works_is_there_until_another_source_is_asked_for(
    tmp_path: Path, fork: Environment
) -> None:
    for steps in (
        python_packages.install(SetupOptions(), fork.root, quiet),
        python_packages.plan(SetupOptions(), fork.root),
    ):
        (step,) = steps
        assert step.state == "there"
        assert f"PyRep 1.0 (from {(tmp_path / 'mine' / 'pyrep').as_uri()})" in step.text
    why = python_packages.complaint(SetupOptions(pyrep=PYREP), fork)
    assert why.startswith("pyrep was installed from file:")
    (step,) = python_packages.plan(SetupOptions(pyrep=PYREP), fork.root)
    assert PYREP in step.text
    assert "RLBench.git" not in step.text  # nobody asked for another one
    (step,) = python_packages.plan(SetupOptions(force=True), fork.root)
    assert PYREP in step.text
    assert "RLBench.git" in step.text


def test_a_fork_that_was_built_elsewhere_is_built_again_from_where_it_is(
    tmp_path: Path, fork: Environment
) -> None:
    other = Environment(unpacked(tmp_path / "other"), fork.interpreter)
    _, pyrep = python_packages.commands(SetupOptions(), other, dry=True)
    assert pyrep[-2:] == ["--editable", str(tmp_path / "mine" / "pyrep")]


def test_a_folder_on_the_path_counts_as_well(site: Path, fork: Environment) -> None:
    for record in site.glob("*.dist-info"):
        shutil.rmtree(record)
    assert python_packages.complaint(SetupOptions(), fork) == ""
    (step,) = python_packages.install(SetupOptions(), fork.root, quiet)
    assert "PyRep without a version (from " in step.text


def test_any_folder_of_that_name_does_not_count(site: Path, cache: Path) -> None:
    (site / "rlbench").mkdir()
    assert "rlbench" not in python_packages.inspect(Path(sys.executable)).packages


def test_what_else_a_python_prints_does_not_matter(site: Path, fork: Environment) -> None:
    noise = "import sys; print('noise', file=sys.stderr); print('noise')"
    (site / "sitecustomize.py").write_text(
        f"{noise}\nimport atexit\natexit.register(lambda: print('noise', file=sys.stderr))\n"
    )
    assert set(python_packages.inspect(fork.interpreter).packages) == {"pyrep", "rlbench"}


@pytest.fixture
def old_setuptools(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts({}, "", {"setuptools": "80.9.0", "numpy": "2.4.0"})
    monkeypatch.setattr(python_packages, "inspect", lambda _: facts)


def test_commands_are_those_of_pip_or_uv(
    tmp_path: Path, cache: Path, old_setuptools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(tmp_path / "root", Path(sys.executable))
    needs, pyrep, rlbench = python_packages.commands(SetupOptions(), environment, dry=True)
    assert pyrep[:4] == rlbench[:4] == [sys.executable, "-m", "pip", "install"]
    assert {"--no-deps", "--no-build-isolation", "--no-cache-dir", "--force-reinstall"} < set(pyrep)
    assert pyrep[-1].endswith("PyRep.git@8f420be8064b1970aae18a9cfbc978dfb15747ef")
    assert rlbench[-1].endswith("RLBench.git@02720bba4c73fe02eb75df946b8791b806028a9d")
    assert {"--constraint", "setuptools", "numpy", "cffi>=1.0"} < set(needs)
    (tmp_path / "uv").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    options = SetupOptions(installer="uv")
    _, pyrep, _ = python_packages.commands(options, environment, dry=True)
    assert pyrep[:5] == [str(tmp_path / "uv"), "pip", "install", "--python", sys.executable]
    assert {"--no-deps", "--no-build-isolation", "--no-cache", "--reinstall"} < set(pyrep)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtra, match="there is no uv"):
        python_packages.commands(options, environment, dry=True)


def test_a_source_is_a_path_or_an_address_and_never_a_name_on_the_package_index(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidCall, match="'PyRep' is no folder"):
        setup.setup(SetupOptions(pyrep="PyRep"), quiet)
    (tmp_path / "PyRep").mkdir()
    environment = Environment(tmp_path, Path(sys.executable))
    _, pyrep, _ = python_packages.commands(SetupOptions(pyrep="PyRep"), environment, dry=True)
    assert pyrep[-1] == str(tmp_path / "PyRep")


def test_only_an_environment_of_its_own_gets_an_older_numpy(tmp_path: Path, cache: Path) -> None:
    shared = python_packages.constraints({"numpy": "2.4.0"})
    assert shared.splitlines()[0] == "numpy==2.4.0"
    assert "numpy>=1.26,<2" not in shared
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "mine"], check=True)
    for name, own in (("mine", False), ("ours", True)):
        options = SetupOptions(venv=tmp_path / name)
        interpreter = python_packages.interpreter_of(options)
        assert python_packages._is_own(options, interpreter) is own


def test_a_setuptools_that_is_too_new_stays_and_builds_have_an_older_one(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = Facts({}, "", {"setuptools": "84.0.0"})
    monkeypatch.setattr(python_packages, "inspect", lambda _: facts)
    environment = Environment(tmp_path / "root", Path(sys.executable))
    needs, pyrep, rlbench = python_packages.commands(SetupOptions(), environment)
    assert "setuptools" not in needs
    assert "cffi>=1.0" in needs
    for command in (pyrep, rlbench):
        assert "--no-build-isolation" not in command
        variables = python_packages._variables(command, environment)
        for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_BUILD_CONSTRAINT"):
            assert Path(variables[name]).read_text() == "setuptools>=68,<81\n"
    assert "PIP_CONSTRAINT" not in python_packages._variables(needs, environment)
    (cache / "constraints.txt").read_text().index("setuptools==84.0.0")


@pytest.fixture
def toy_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'#!/bin/sh\nexec {sys.executable} -m venv --without-pip "$4"\n'
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(script)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def test_a_venv_is_made_and_a_folder_that_is_none_is_refused(
    tmp_path: Path, cache: Path, toy_uv: None
) -> None:
    assert venv.make(tmp_path / "venv", "uv", quiet).state == "done"
    assert venv.is_own(tmp_path / "venv")
    assert (tmp_path / "venv" / "bin" / "python").exists()
    assert venv.make(tmp_path / "venv", "uv", quiet).state == "there"
    with pytest.raises(InvalidCall, match="no virtual environment"):
        venv.make(tmp_path, "uv", quiet)


def test_a_venv_of_uv_s_needs_no_pip_and_stays_its_owner_s(
    tmp_path: Path, cache: Path, toy_uv: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "mine"], check=True)
    assert venv.make(tmp_path / "mine", "auto", quiet).state == "there"
    assert not venv.is_own(tmp_path / "mine")
    monkeypatch.setenv("PATH", "/nowhere")
    assert not venv.is_complete(tmp_path / "mine", "auto")


def test_a_venv_whose_making_was_interrupted_is_still_ours(
    tmp_path: Path, cache: Path, toy_uv: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        (tmp_path / "venv").mkdir()
        (tmp_path / "venv" / "pyvenv.cfg").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(venv, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            venv.make(tmp_path / "venv", "uv", quiet)
    assert venv.make(tmp_path / "venv", "uv", quiet).state == "done"
    assert venv.is_own(tmp_path / "venv")


def test_the_last_set_up_s_python_is_the_next_one_s(tmp_path: Path, cache: Path) -> None:
    options = SetupOptions()
    assert python_packages.interpreter_of(options) == Path(sys.executable)
    python = tmp_path / "venv" / "bin" / "python"
    Environment(tmp_path / "root", python, tmp_path / "venv").write()
    assert python_packages.interpreter_of(options) == python  # though it is gone: made again
    (venv_step, step) = python_packages.plan(options, tmp_path / "root")
    assert str(tmp_path / "venv") in venv_step.text
    assert str(python) in step.text
    other = SetupOptions(venv=tmp_path / "other")
    assert python_packages.interpreter_of(other) == tmp_path / "other" / "bin" / "python"
    Environment(tmp_path / "root", python).write()  # some Python that was never a --venv
    assert python_packages.interpreter_of(options) == Path(sys.executable)
    python.parent.mkdir(parents=True)
    python.touch()
    assert python_packages.interpreter_of(options) == python


def test_the_system_s_python_is_told_with_the_way_out() -> None:
    assert "--venv" in python_packages._hint("error: externally-managed-environment\n")
