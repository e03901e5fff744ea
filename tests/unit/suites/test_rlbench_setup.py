"""The set-up of RLBench: installs what is missing, names what it cannot, proves what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_coppeliasim import empty_cache, packed, quiet, unpacked

from polyarm.errors import InvalidCall, MissingExtra, StorageError
from polyarm.suites.rlbench import licences, python_packages, setup, system_packages, trial
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


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A path with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(system_packages, "_SBIN", str(folder))

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
    known = "".join(f"\t{name} (libc6,x86-64) => /lib\n" for name in system_packages.LIBRARIES)
    programs(
        "ldconfig", f'test ! -e {libraries} || while read l; do echo " $l"; done < {libraries}'
    )
    programs(
        "apt-get",
        f'echo "$@" >> {log}\ncase "$*" in\n*simulate*58*|*simulate*swscale5*) exit 100;;\n'
        f"*simulate*) exit 0;;\ninstall*) printf '{known}' > {libraries}\n"
        f"echo > {tmp_path}/bin/Xvfb; /bin/chmod +x {tmp_path}/bin/Xvfb;;\nesac",
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0 if user == "root" else 1000)
    programs("sudo", f'echo "sudo $@" >> {log}; shift; [ "$1" = true ] || exec "$@"')
    assert system_packages.plan(()).state == "planned"
    step = system_packages.install((), quiet)
    assert step.state == "done", step.text
    lines = log.read_text()
    assert ("sudo -n" in lines) is (user == "sudo")
    assert "install -y --no-install-recommends xvfb libgl1" in lines
    assert "x11-utils" in step.text
    assert "libavcodec58" not in step.text  # this release has none
    assert system_packages.install((), quiet).state == "there"


def test_a_failing_apt_is_quoted(programs: Callable[[str, str], None]) -> None:
    programs("apt-get", "echo E: Unable to locate package; exit 100")
    step = system_packages.install((), quiet)
    assert step.state == "missing"
    assert "status 100" in step.text
    assert "Unable to locate package" in step.text


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
    (site / name).with_suffix(".py").touch()
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


def test_packages_are_there_if_they_come_from_the_right_place_and_can_be_imported(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpacked(tmp_path / "root")
    environment, options = Environment(root, Path(sys.executable)), SetupOptions()
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    monkeypatch.setattr(python_packages, "_found", lambda _: found)
    assert "pyrep is not installed" in python_packages.complaint(options, environment)
    for name, wanted in (("pyrep", options.pyrep), ("rlbench", options.rlbench)):
        found[name] = ("1.0", {"vcs_info": {"commit_id": "0" * 40}})
        assert f"{name} was installed from elsewhere" in python_packages.complaint(
            options, environment
        )
        found[name] = ("1.0", {"vcs_info": {"commit_id": wanted[-40:]}})
    assert "was not built against" in python_packages.complaint(options, environment)
    for name in ("simAddOnScript_PyRep.lua", "libcoppeliaSim.so.1"):
        (root / name).touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "rlbench.py").touch()
    (tmp_path / "pyrep.py").write_text("raise ImportError('libGL.so.1: cannot open …')")
    why = python_packages.complaint(options, environment)
    assert why == "importing them failed: ImportError: libGL.so.1: cannot open …"
    (tmp_path / "pyrep.py").write_text("")
    assert python_packages.complaint(options, environment) == ""


def test_commands_are_those_of_pip_or_uv(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidCall, match="'PyRep' is no folder"):
        setup.setup(SetupOptions(pyrep="PyRep"), quiet)
    (tmp_path / "PyRep").mkdir()
    environment = Environment(tmp_path, Path(sys.executable))
    _, pyrep, _ = python_packages.commands(SetupOptions(pyrep="PyRep"), environment, dry=True)
    assert pyrep[-1] == str(tmp_path / "PyRep")


def test_only_an_environment_of_its_own_gets_an_older_numpy() -> None:
    import numpy

    assert "numpy>=1.26,<2" in python_packages.constraints(own=True)
    shared = python_packages.constraints(own=False)
    assert f"numpy=={numpy.__version__}\n" in shared
    assert "<2" not in shared


def test_a_venv_is_made_and_a_folder_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'#!/bin/sh\nexec {sys.executable} -m venv --without-pip "$4"\n'
    (tmp_path / "uv").write_text(script)
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    options = SetupOptions(installer="uv", venv=tmp_path / "venv")
    assert python_packages._make_venv(options, quiet).state == "done"
    assert (tmp_path / "venv" / "bin" / "python").exists()
    assert python_packages._make_venv(options, quiet).state == "there"
    with pytest.raises(InvalidCall, match="no virtual environment"):
        python_packages._make_venv(SetupOptions(installer="uv", venv=tmp_path), quiet)


def test_env_sh_and_env_json_say_the_same(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "a folder"
    environment = Environment(root, tmp_path / "python")
    assert environment.write() is True
    assert environment.write() is False
    assert current() == Environment.read() == environment
    sourced = f". {cache}/env.sh; . {cache}/env.sh; env"
    variables = {"LD_LIBRARY_PATH": "/cuda"}
    run = subprocess.run(["sh", "-c", sourced], env=variables, capture_output=True, text=True)
    for name, value in environment.variables(variables).items():
        assert f"{name}={value}" in run.stdout.splitlines()
    assert environment.variables(variables)["LD_LIBRARY_PATH"] == f"/cuda:{root}"
    written = json.loads((cache / "env.json").read_text())
    assert written["interpreter"] == str(tmp_path / "python")
    assert written["LD_LIBRARY_PATH"] == written["COPPELIASIM_ROOT"] == str(root)
    (cache / "env.json").write_text("{")
    with pytest.raises(StorageError, match="Write it anew with: polyarm setup rlbench"):
        Environment.read()


def test_a_variable_wins_over_the_file(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert current() is None
    Environment(tmp_path / "ours", tmp_path / "python").write()
    monkeypatch.setenv("COPPELIASIM_ROOT", str(tmp_path / "mine"))
    assert current() == Environment(tmp_path / "mine", tmp_path / "python")


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


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os.abort()", ["ended by SIGABRT", "--skip-test"]),
        (
            "import sys; sys.exit('libGL.so.1: cannot open shared object file')",
            ["status 1", "libGL"],
        ),
        ("import time; time.sleep(60)", ["did not end within 1 s"]),
        ("raise RuntimeError('Handle Panda does not exist.')", ["--force", "Handle Panda"]),
    ],
)
def test_a_test_episode_that_fails_says_how(
    code: str, told: list[str], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_EPISODE", code)
    environment = Environment(tmp_path, Path(sys.executable))
    step = trial.test_episode(environment, quiet, timeout_s=1.0, force=False)
    assert step.state == "missing"
    for words in told:
        assert words in step.text


def test_the_test_episode_runs_the_suite_and_once_is_enough(rlbench: Path) -> None:
    environment = Environment(rlbench, Path(sys.executable))
    for state in ("done", "there"):
        step = trial.test_episode(environment, quiet, timeout_s=60.0, force=False)
        assert step.state == state, step.text


def test_the_test_episode_names_the_other_interpreter(tmp_path: Path) -> None:
    assert trial.command(Environment(tmp_path, Path(sys.executable)))[-1] == "{}"
    command = trial.command(Environment(tmp_path, tmp_path / "python"))
    assert json.loads(command[-1]) == {"interpreter": str(tmp_path / "python")}
    compile(command[2], "episode", "exec")


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
