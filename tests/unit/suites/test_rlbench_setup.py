"""The set-up of RLBench: installs what is missing, names what it cannot, proves what it did."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_coppeliasim import NEW_HEADER, empty_cache, packed, quiet, unpacked

from polyarm.errors import InvalidCall, StorageError
from polyarm.suites.rlbench import (
    environment,
    licences,
    python_packages,
    setup,
    system_packages,
    trial,
)
from polyarm.suites.rlbench.environment import Environment, current
from polyarm.suites.rlbench.options import SetupOptions, Step


def tree(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return packed(tmp_path)


UV = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys

words, root = sys.argv[1:], pathlib.Path(os.environ.get("COPPELIASIM_ROOT", ""))
if words[0] == "venv":
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", words[-1]], check=True)
elif "--no-deps" in words:
    assert str(root) in os.environ["LD_LIBRARY_PATH"].split(":")
    assert os.environ["QT_QPA_PLATFORM_PLUGIN_PATH"] == str(root)
    source = pathlib.Path(words[-1])
    name = source.name.lower()
    (site,) = pathlib.Path(words[3]).parent.parent.glob("lib/*/site-packages")
    (site / name).with_suffix(".py").write_text("PyRep = 1")
    info = site / f"{{name}}-4.1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Name: {{name}}\\nVersion: 4.1\\n")
    (info / "direct_url.json").write_text(json.dumps(dict(url=source.as_uri())))
    if name == "pyrep":
        (root / "simAddOnScript_PyRep.lua").touch()
        (root / "libcoppeliaSim.so.1").symlink_to(root / "libcoppeliaSim.so")
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs PyRep and RLBench from empty folders, and does what PyRep's build does."""
    for name in ("bin", "PyRep", "RLBench"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


def test_everything_is_set_up_by_one_command_and_the_second_finds_it(
    tmp_path: Path, cache: Path, archive: Path, uv: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "venv"
    options = SetupOptions(
        accept_licences=True,
        archive=archive,
        venv=venv,
        installer="uv",
        pyrep=str(tmp_path / "PyRep"),
        rlbench=str(tmp_path / "RLBench"),
        skip_system_packages=True,
    )
    monkeypatch.setattr(trial, "_EPISODE", "import os; os.environ['COPPELIASIM_ROOT']")
    steps = setup.setup(options, quiet)
    names = ["CoppeliaSim 4.1.0", "network add-ons", "usrset.txt", "venv", "PyRep and RLBench"]
    assert [step.name for step in steps] == [*names, "environment", "test episode"]
    assert {step.state for step in steps} == {"done"}
    assert (cache / "constraints.txt").read_text() == python_packages.CONSTRAINTS
    assert Environment.read() == Environment(cache / "CoppeliaSim", venv / "bin" / "python")
    assert f"source {cache}/env.sh" in steps[-2].text
    assert {step.state for step in setup.setup(options, quiet)} == {"there"}
    assert {step.state for step in setup.plan(options)[:-2]} == {"there"}
    assert not list((tmp_path / "home").iterdir())
    needs = setup.requirements(deep=True, progress=quiet)
    assert all(need.found for need in needs if "Qt" not in need.name), needs
    (cache / "CoppeliaSim" / "simAddOnScript_PyRep.lua").unlink()  # as in a new CoppeliaSim
    (*_, last) = setup.requirements()
    assert "was not built against" in last.fix
    assert setup.plan(options)[-3].state == "planned"


def test_a_failure_also_tells_what_was_missing_before(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = Step("system packages", "missing", "sudo apt-get install build-essential")
    monkeypatch.setattr(system_packages, "install", lambda *_: lacking)
    options = SetupOptions(accept_licences=True, archive=tmp_path / "none.tar.xz")
    with pytest.raises(StorageError, match=r"no archive .*none.*\n.*MISSING: sudo apt-get install"):
        setup.setup(options, quiet)


def test_env_sh_and_env_json_say_the_same(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "a folder"
    written = Environment(root, tmp_path / "python")
    assert written.write() is True
    assert written.write() is False
    assert current() == Environment.read() == written
    sourced = f". {cache}/env.sh; . {cache}/env.sh; env"
    variables = {"LD_LIBRARY_PATH": "/cuda"}
    run = subprocess.run(["sh", "-c", sourced], env=variables, capture_output=True, text=True)
    for name, value in written.variables({}).items():
        if name != "LD_LIBRARY_PATH":
            assert f"{name}={value}" in run.stdout.splitlines()
    # In a shell, others come first; in our workers no other CoppeliaSim may.
    assert f"LD_LIBRARY_PATH=/cuda:{root}" in run.stdout.splitlines()
    assert written.variables(variables)["LD_LIBRARY_PATH"] == f"{root}:/cuda"
    again = written.variables({"LD_LIBRARY_PATH": f"/cuda:{root}"})
    assert again["LD_LIBRARY_PATH"] == f"{root}:/cuda"
    data = json.loads((cache / "env.json").read_text())
    assert data["interpreter"] == str(tmp_path / "python")
    assert data["LD_LIBRARY_PATH"] == data["COPPELIASIM_ROOT"] == str(root)
    (cache / "env.json").write_text("{")
    with pytest.raises(StorageError, match="Write it anew with: polyarm setup rlbench"):
        Environment.read()


def test_a_variable_wins_over_the_file(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert current() is None
    Environment(tmp_path / "ours", tmp_path / "python").write()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(unpacked(tmp_path / "mine")))
    assert current() == Environment(tmp_path / "mine", tmp_path / "python")


@pytest.mark.parametrize(
    ("header", "holds"), [(NEW_HEADER, "CoppeliaSim 4.10.0"), ("", "no CoppeliaSim whose version")]
)
def test_a_variable_that_names_another_version_is_not_used_silently(
    header: str,
    holds: str,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = unpacked(tmp_path / "mine", header)
    monkeypatch.setenv("COPPELIASIM_ROOT", str(mine))
    with pytest.raises(StorageError, match=rf"{mine}, which holds {holds}.*exactly 4\.1\.0.*unset"):
        current()
    (*_, need) = setup.requirements()
    assert need.found is None
    assert holds in need.fix
    written = Environment(tmp_path / "ours", tmp_path / "python")
    written.write()
    assert [current(), current()] == [written] * 2
    (warning,) = caplog.messages  # once is enough
    for words in (str(mine), holds, str(tmp_path / "ours"), "unset COPPELIASIM_ROOT"):
        assert words in warning


def test_a_version_is_read_once_in_a_process(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPPELIASIM_ROOT", str(unpacked(tmp_path / "mine")))
    assert current() is not None
    monkeypatch.setattr(environment, "version_of", None)
    assert current() is not None


@pytest.fixture
def own(tmp_path: Path, cache: Path, uv: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CoppeliaSim of somebody's own, named by the variable."""
    root = unpacked(tmp_path / "mine")
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    monkeypatch.setattr(trial, "_EPISODE", "import os; os.environ['COPPELIASIM_ROOT']")
    return root


def own_options(tmp_path: Path, **more: Any) -> SetupOptions:
    return SetupOptions(
        accept_licences=True,
        venv=tmp_path / "venv",
        installer="uv",
        pyrep=str(tmp_path / "PyRep"),
        rlbench=str(tmp_path / "RLBench"),
        skip_system_packages=True,
        **more,
    )


def test_a_coppeliasim_of_one_s_own_is_used_as_it_is(tmp_path: Path, own: Path) -> None:
    before = tree(own)
    steps = {step.name: step for step in setup.setup(own_options(tmp_path), quiet)}
    assert "missing" not in {step.state for step in steps.values()}
    for name in ("CoppeliaSim 4.1.0", "network add-ons", "usrset.txt"):
        assert steps[name].state == "there"
    assert "workers go without them" in steps["network add-ons"].text
    assert tree(own).keys() - before.keys() == {"simAddOnScript_PyRep.lua", "libcoppeliaSim.so.1"}
    assert before.items() <= tree(own).items()
    forced = own_options(tmp_path, force=True)
    assert "would" not in setup.plan(forced)[0].text
    assert "kept" in setup.plan(forced)[0].text
    (own / "libcoppeliaSim.so.1").unlink()  # the toy of a build wants to make it
    steps = {step.name: step for step in setup.setup(forced, quiet)}
    assert "checked again and kept" in steps["CoppeliaSim 4.1.0"].text
    assert steps["PyRep and RLBench"].state == "done"


def test_for_a_read_only_coppeliasim_pyrep_is_built_in_a_folder_of_links(
    tmp_path: Path, cache: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, access = tree(own), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != own and access(path, mode))
    options = own_options(tmp_path)
    planned = {step.name: step for step in setup.plan(options)}
    assert "links to" in planned["PyRep's folder"].text
    assert not cache.exists()
    steps = {step.name: step for step in setup.setup(options, quiet)}
    assert "missing" not in {step.state for step in steps.values()}
    assert steps["test episode"].state == "done"
    assert tree(own) == before
    found = current()
    assert found is not None
    assert found.root == environment.writable_twin(own)
    assert (found.root / "libcoppeliaSim.so").readlink() == own / "libcoppeliaSim.so"
    assert "allowOldEduRelease" in (found.root / "system" / "usrset.txt").read_text()
    needs = setup.requirements(deep=True, progress=quiet)
    assert all(need.found for need in needs if "Qt" not in need.name), needs
    assert {step.state for step in setup.setup(options, quiet)} == {"there"}
    monkeypatch.delenv("COPPELIASIM_ROOT")
    assert {step.state for step in setup.setup(options, quiet)} == {"there"}


def without_privileges() -> None:
    """Let permissions hold for root, too, from the next program on."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None, use_errno=True).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_a_read_only_coppeliasim_that_pyrep_was_built_against_is_ready_as_it_is(
    rlbench: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(rlbench, tmp_path / "root")
    (root / "system" / "usrset.txt").write_text("vsync = 0\n")  # lacks the line
    folders = [path for path in root.rglob("*") if not path.is_symlink()]
    for path in [*folders, root]:
        path.chmod(path.stat().st_mode & ~0o222)
    words = ["setup", "rlbench", "--accept-licences", "--skip-system-packages"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "polyarm", *words],
            env={**os.environ, "COPPELIASIM_ROOT": str(root)},
            preexec_fn=without_privileges,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        for path in [root, *folders]:
            path.chmod(path.stat().st_mode | 0o200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers go without them" in done.stdout
    assert "reach_target was reset and stepped (done now)" in done.stdout
    assert (root / "system" / "usrset.txt").read_text() == "vsync = 0\n"
    assert not (root / "polyarm.json").exists()


def test_a_bare_set_up_repairs_what_the_last_one_made(
    tmp_path: Path, cache: Path, archive: Path, uv: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_EPISODE", "")
    first = own_options(tmp_path, archive=archive, prefix=tmp_path / "prefix")
    setup.setup(first, quiet)
    (tmp_path / "prefix" / "libcoppeliaSim.so.1").unlink()
    bare = SetupOptions(installer="uv", skip_system_packages=True)
    planned = {step.name: step for step in setup.plan(bare)}
    assert str(tmp_path / "prefix") in planned["CoppeliaSim 4.1.0"].text
    assert str(tmp_path / "venv") in planned["PyRep and RLBench"].text
    assert str(tmp_path / "PyRep") in planned["PyRep and RLBench"].text
    steps = {step.name: step for step in setup.setup(bare, quiet)}
    assert steps["PyRep and RLBench"].state == "done"
    assert Environment.read() == Environment(tmp_path / "prefix", tmp_path / "venv/bin/python")
    (tmp_path / "prefix" / "coppeliaSim").unlink()
    (*_, coppelia, _) = setup.requirements()
    assert coppelia.fix.count("polyarm setup rlbench") == 1


def test_a_tilde_is_somebody_s_home(tmp_path: Path, cache: Path) -> None:
    options = SetupOptions(prefix=Path("~/a"), venv=Path("~/b"), archive=Path("~/c")).expanded()
    home = tmp_path / "home"
    assert (options.prefix, options.venv, options.archive) == (home / "a", home / "b", home / "c")
    text = "\n".join(map(str, setup.plan(SetupOptions(venv=Path("~/b")))))
    assert str(home / "b") in text


def test_without_the_licences_nothing_happens_and_once_is_enough(cache: Path) -> None:
    with pytest.raises(InvalidCall, match="polyarm setup rlbench --accept-licences") as told:
        setup.setup(SetupOptions(), quiet)
    for words in ("CoppeliaSim Edu", "education", "RLBench", "non-commercial", "PyRep", "MIT"):
        assert words in str(told.value)
    assert not cache.exists()
    licences.require(accept=True)
    assert licences.accepted()
    licences.require(accept=False)


def test_a_dry_run_names_every_command_and_changes_nothing(
    tmp_path: Path, cache: Path, archive: Path
) -> None:
    before = tree(tmp_path)
    options = SetupOptions(dry_run=True, archive=archive, venv=tmp_path / "venv")
    text = "\n".join(map(str, setup.setup(options, quiet)))
    for words in (
        str(archive),
        str(cache / "CoppeliaSim"),
        f"{sys.executable} -m venv {tmp_path}/venv",
        "PyRep.git@8f420be",
        "RLBench.git@02720bb",
        f"COPPELIASIM_ROOT={cache}/CoppeliaSim",
        "usrset.txt",
        ".disabled",
        "env.sh",
        "reach_target",
    ):
        assert words in text
    assert "downloads.coppeliarobotics.com/V4_1_0" in str(setup.plan(SetupOptions())[1])
    assert tree(tmp_path) == before
    assert not cache.exists()


def test_the_test_episode_waits_for_what_is_missing(tmp_path: Path, cache: Path) -> None:
    environment = Environment(tmp_path, Path(sys.executable))
    lacking = [Step("system packages", "missing", "sudo apt-get …")]
    (step,) = setup._tried(environment, SetupOptions(), lacking, quiet)
    assert step.state == "missing"
    assert "not run, because of: system packages" in step.text
    assert setup._tried(environment, SetupOptions(skip_test=True), lacking, quiet) == []


def test_another_kind_of_machine_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(InvalidCall, match=r"x86_64 alone.*aarch64"):
        setup.setup(SetupOptions(), quiet)
