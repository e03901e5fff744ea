"""The set-up of LIBERO: installs what is missing, names what it cannot, asks nobody."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from polyarm.errors import InvalidCall, MissingExtra, StorageError
from polyarm.suites.libero import numba_cache, setup
from polyarm.suites.libero.setup import PACKAGES, requirements

MakeAssets = Callable[[Path], Path]


def quiet(doing: str, done: int, total: int) -> None: ...


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions of the distributions that seem to be installed; modules all seem to be there."""
    versions = {**PACKAGES, "mujoco": "3.3.0"}
    real = importlib.util.find_spec

    def find_spec(name: str) -> Any:
        return real("json" if name in setup._IMPORTED.values() else name)

    monkeypatch.setattr(setup, "_version", lambda name: versions.get(name))
    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    monkeypatch.setattr(setup, "compile_functions", lambda progress: False)
    return versions


@pytest.fixture
def source(tmp_path: Path, make_assets: MakeAssets) -> Path:
    return make_assets(tmp_path / "source")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """What an installer was asked for; it installs nothing and fails."""
    asked: list[Sequence[str]] = []

    def installer(wanted: Sequence[str]) -> list[str]:
        asked.append(wanted)
        return [sys.executable, "-c", "print('no such index'); input()"]

    monkeypatch.setattr(setup, "_installer", installer)
    return asked


def test_the_second_time_everything_is_there(
    cache: Path, source: Path, installed: dict[str, str], pip: list[Sequence[str]]
) -> None:
    first = setup.setup(source, quiet)
    assert "installed now from" in first[1]
    second = setup.setup(None, quiet)
    assert all("already there" in line for line in second)
    assert not pip
    other = setup.setup(source.parent, quiet)
    assert "--force replaces them" in other[1]


def test_only_what_is_missing_or_of_another_version_is_installed(
    cache: Path, installed: dict[str, str], pip: list[Sequence[str]]
) -> None:
    del installed["bddl"]
    installed["robosuite"] = "1.5.1"
    with pytest.raises(MissingExtra) as told:
        setup.setup(None, quiet)
    assert pip == [["robosuite==1.4.0", "bddl==1.0.1"]]
    for part in ("robosuite, bddl could not be installed", "no such index", "EOFError"):
        assert part in str(told.value)  # its question found no one to answer


def test_packages_are_installed_without_their_dependencies_and_without_a_question() -> None:
    command = setup._installer(["bddl==1.0.1"])
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert {"--no-deps", "--no-input", "--no-cache-dir"} <= set(command)
    assert command[-1] == "bddl==1.0.1"


def test_without_pip_uv_does_it_and_without_either_both_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "uv").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = setup._installer(["bddl==1.0.1"])
    assert command[:3] == [str(tmp_path / "uv"), "pip", "install"]
    assert {"--no-deps", "--no-cache"} <= set(command)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtra, match=r"no pip.*no uv.*bddl==1\.0\.1"):
        setup._installer(["bddl==1.0.1"])


def test_what_the_extra_brings_is_named_when_it_is_missing(
    cache: Path, installed: dict[str, str], pip: list[Sequence[str]]
) -> None:
    installed["mujoco"] = "3.17.0"
    with pytest.raises(MissingExtra, match=r"\(not 3\.17\.0\).*pip install 'polyarm\[libero\]'"):
        setup.setup(None, quiet)
    assert not pip


@pytest.mark.parametrize(
    ("version", "good"),
    [("3.2.6", False), ("3.2.7", True), ("3.8.1", True), ("3.9.0", False), ("3.17.0", False)],
)
def test_mujoco_is_one_that_steps_libero(
    version: str, good: bool, cache: Path, installed: dict[str, str]
) -> None:
    installed["mujoco"] = version
    (need,) = [need for need in requirements() if need.name.startswith("mujoco")]
    assert (need.found == version) is good
    assert good or "polyarm[libero]" in need.fix


def test_requirements_name_each_thing_and_how_to_get_it(
    cache: Path, source: Path, installed: dict[str, str]
) -> None:
    del installed["hf-libero"]
    missing = {need.name: need.fix for need in requirements() if need.found is None}
    assert set(missing) == {"hf-libero 0.1.4", "assets"}
    assert all("polyarm setup libero" in fix for fix in missing.values())
    installed["hf-libero"] = PACKAGES["hf-libero"]
    setup.setup(source, quiet)
    assert all(need.found for need in requirements(deep=True))
    wood = cache / "assets" / "textures" / "wood.png"
    wood.write_bytes(wood.read_bytes()[::-1])
    assert all(need.found for need in requirements())
    (damaged,) = [need for need in requirements(deep=True) if need.found is None]
    assert str(wood) in damaged.fix


def test_assets_that_a_variable_names_are_used_as_they_are(
    cache: Path, source: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYARM_LIBERO_ASSETS", str(source))
    assert "used as they are" in setup.setup(None, quiet)[1]
    assert not (cache / "assets").exists()
    with pytest.raises(InvalidCall, match="unset it"):
        setup.setup(source, quiet)


def test_functions_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    runs: list[Sequence[str]] = []

    def run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        runs.append(command)
        return subprocess.CompletedProcess(command, len(runs) % 2, "", "no compiler\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(StorageError, match="no compiler"):
        numba_cache.compile_functions(quiet)
    assert numba_cache.compile_functions(quiet) is True
    assert numba_cache.compile_functions(quiet) is False
    assert len(runs) == 2
