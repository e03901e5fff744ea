"""CoppeliaSim in its folder: whole or absent, and exactly 4.1.0, whoever interrupts."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from toy_coppeliasim import FILES, NEW_HEADER, TOP, empty_cache, pack, packed, quiet, unpacked

from polyarm.errors import InvalidCall, StorageError
from polyarm.suites.rlbench import coppeliasim, install
from polyarm.suites.rlbench.environment import Environment
from polyarm.suites.rlbench.options import SetupOptions

DISABLED = {
    "addOns/Connectivity",
    "addOns/WebSocket remote API server.lua",
    "addOns/ZMQ remote API server.lua",
    "remoteApiConnections.txt",
    "simAddOnScript-b0RemoteApiServer.lua",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return packed(tmp_path)


def put(options: SetupOptions) -> Path:
    return install.install_coppeliasim(options, quiet)[0]


def test_an_archive_becomes_a_program_with_a_manifest(archive: Path, cache: Path) -> None:
    root, step = install.install_coppeliasim(SetupOptions(archive=archive), quiet)
    sha = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert root == cache / "CoppeliaSim"
    assert (step.state, sha in step.text) == ("done", True)
    assert os.access(root / "coppeliaSim", os.X_OK)
    assert not os.access(root / "libcoppeliaSim.so", os.X_OK)
    assert (root / "libQt5Core.so.5").readlink() == Path("libQt5Core.so.5.12.5")
    manifest = coppeliasim.Manifest.read(root)
    assert manifest is not None
    assert (manifest.sha256, manifest.version) == (sha, "4.1.0")
    servers = {name for name in FILES if any(name.startswith(one) for one in DISABLED)}
    assert set(manifest.files) == FILES.keys() - servers - {"system/usrset.txt"}
    assert {path.name for path in cache.iterdir()} == {"CoppeliaSim"}


def test_the_second_time_it_is_there_and_what_is_damaged_is_replaced(
    archive: Path, cache: Path
) -> None:
    root = put(SetupOptions(archive=archive))
    assert install.install_coppeliasim(SetupOptions(), quiet)[1].state == "there"
    (root / "libcoppeliaSim.so").write_text("yrarbil")
    coppeliasim.check(root)
    with pytest.raises(StorageError, match=r"libcoppeliaSim\.so has other contents.*--force"):
        coppeliasim.check(root, deep=True)
    assert install.install_coppeliasim(SetupOptions(archive=archive), quiet)[1].state == "done"
    assert (root / "libcoppeliaSim.so").read_text() == "library"


@pytest.mark.parametrize("name", ["lua/mine.lua", "system/dfltscn.ttt"])
def test_a_file_of_any_kind_that_is_gone_is_noticed(name: str, tmp_path: Path, cache: Path) -> None:
    root = put(SetupOptions(archive=pack(tmp_path / "more.tar.xz", FILES | {name: "x"})))
    coppeliasim.disable_add_ons(root)
    coppeliasim.allow_old_release(root)
    (root / "system" / "settings.dat").write_text("rewritten")
    coppeliasim.check(root, deep=True)
    (root / name).unlink()
    with pytest.raises(StorageError, match=f"{name} is missing.*polyarm setup rlbench --force"):
        coppeliasim.check(root)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"programming/include/simConst.h": NEW_HEADER}, "holds CoppeliaSim 4.10.0"),
        ({"programming/include/simConst.h": ""}, "cannot be told"),
    ],
)
def test_another_version_is_refused(
    files: dict[str, str], message: str, tmp_path: Path, cache: Path
) -> None:
    packed = pack(tmp_path / "other.tar.xz", FILES | files)
    with pytest.raises(StorageError, match=f"{message}.*exactly 4.1.0"):
        put(SetupOptions(archive=packed))
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"../../escaped": "x"}, {}),
        ({"/escaped": "x"}, {}),
        ({}, {"out": "../../../escaped"}),
        ({}, {"out": "/etc/passwd"}),
        ({"under/file": "x"}, {"over": "under", "over/../../../escaped": "x"}),
        ({}, {"a": "x/y/c/../../..", "x/y/c": "../../top", "a/escaped": "x"}),
    ],
)
def test_an_archive_that_leads_out_of_its_folder_is_refused(
    files: dict[str, str], links: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    packed = pack(tmp_path / "evil.tar.xz", FILES | files, links)
    with pytest.raises(StorageError, match="was not unpacked"):
        put(SetupOptions(archive=packed))
    assert not list(cache.iterdir())
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("target", ["../beside/file", "../beside"])
def test_a_link_to_what_stays_behind_is_refused(target: str, tmp_path: Path, cache: Path) -> None:
    files = FILES | {"../beside/file": "x"}
    with tarfile.open(tmp_path / "two.tar.xz", "w:xz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(os.path.normpath(f"{TOP}/{name}"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        member = tarfile.TarInfo(f"{TOP}/out")
        member.type, member.linkname = tarfile.SYMTYPE, target
        tar.addfile(member)
    with pytest.raises(StorageError, match=f"'out' is a link that leads out of {TOP}"):
        put(SetupOptions(archive=tmp_path / "two.tar.xz"))
    assert not list(cache.iterdir())


def test_a_link_to_the_program_is_not_the_program(tmp_path: Path, cache: Path) -> None:
    with tarfile.open(tmp_path / "linked.tar.xz", "w:xz") as tar:
        for name, text in FILES.items():
            member = tarfile.TarInfo(f"z/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        member = tarfile.TarInfo("a")
        member.type, member.linkname = tarfile.SYMTYPE, "z"
        tar.addfile(member)
    root = put(SetupOptions(archive=tmp_path / "linked.tar.xz"))
    assert not root.is_symlink()
    assert (root / "coppeliaSim").is_file()


def test_a_truncated_archive_installs_nothing(archive: Path, cache: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(StorageError, match=r"truncated.*Get it again"):
        put(SetupOptions(archive=archive))
    assert not list(cache.iterdir())


def test_a_wrong_checksum_tells_both(archive: Path, cache: Path) -> None:
    sha = hashlib.sha256(archive.read_bytes()).hexdigest()
    with pytest.raises(StorageError, match=f"SHA-256 is {sha} instead of {'0' * 64}"):
        put(SetupOptions(archive=archive, sha256="0" * 64))
    assert put(SetupOptions(archive=archive, sha256=sha.upper())).is_dir()


def test_a_full_disk_is_told_and_gets_its_space_back(
    tmp_path: Path, cache: Path, small_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(tmp_path / "big.tar.xz", FILES | {"libBig.so": "x" * 500_000})
    with small_disk(tmp_path / "disk", "200k") as disk:
        monkeypatch.setenv("POLYARM_CACHE", str(disk))
        with pytest.raises(StorageError, match=r"the disk is full.*POLYARM_CACHE"):
            put(SetupOptions(archive=packed))
        assert not list((disk / "rlbench").iterdir())


KILLED = """
import sys, time
from pathlib import Path
from polyarm.suites.rlbench.install import install_coppeliasim
from polyarm.suites.rlbench.options import SetupOptions

def progress(doing, done, total):
    if doing == "unpacking" and done:
        print(doing, flush=True)
        time.sleep(60)

install_coppeliasim(SetupOptions(archive=Path(sys.argv[1])), progress)
"""


def test_a_killed_unpacking_is_no_installation_and_is_cleared_away(
    archive: Path, cache: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "unpacking\n"
        child.send_signal(signal.SIGKILL)
    (left,) = cache.iterdir()
    assert left.name.startswith(".polyarm-setup-CoppeliaSim-")
    put(SetupOptions(archive=archive))
    assert {path.name for path in cache.iterdir()} == {"CoppeliaSim"}


def test_folders_of_others_beside_the_prefix_stay(tmp_path: Path, archive: Path) -> None:
    theirs = ["sim.old-2019", "sim.part-1", ".polyarm-setup-sim-mine"]
    for name in theirs:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis").touch()
    for force in (False, True):
        put(SetupOptions(archive=archive, prefix=tmp_path / "sim", force=force))
    for name in theirs:
        assert (tmp_path / name / "thesis").exists()
    assert {path.name for path in tmp_path.glob(".*")} == {theirs[-1]}


def test_a_folder_where_another_set_up_works_stays(tmp_path: Path, archive: Path) -> None:
    with install._workshop(tmp_path / "sim") as other:
        put(SetupOptions(archive=archive, prefix=tmp_path / "sim"))
        assert other.is_dir()
    assert not other.exists()


def test_a_coppeliasim_that_is_there_is_used_if_it_is_the_right_one(
    tmp_path: Path, cache: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpacked(tmp_path / "mine")
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    before = {path: path.lstat().st_mtime_ns for path in [root, *root.rglob("*")]}
    for force in (False, True):
        found, step = install.install_coppeliasim(SetupOptions(force=force), quiet)
        assert (found, step.state) == (root, "there")
        assert install.plan(SetupOptions(force=force)) == (found, step)
        assert coppeliasim.disable_add_ons(root).state == "there"
        assert coppeliasim.allow_old_release(root).state == "there"
    assert {path: path.lstat().st_mtime_ns for path in [root, *root.rglob("*")]} == before
    assert install.rejected_root(root) == ""
    other = unpacked(tmp_path / "other", NEW_HEADER)
    monkeypatch.setenv("COPPELIASIM_ROOT", str(other))
    assert put(SetupOptions(archive=archive)) == cache / "CoppeliaSim"
    assert "4.10.0" in install.rejected_root(cache / "CoppeliaSim")


def test_a_prefix_that_holds_something_else_is_left_as_it_is(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    with pytest.raises(InvalidCall, match=r"holds something else.*--prefix"):
        put(SetupOptions(archive=archive, prefix=tmp_path / "thesis"))
    _, step = install.plan(SetupOptions(archive=archive, prefix=tmp_path / "thesis"))
    assert step.state == "missing"
    assert "holds something else" in step.text
    assert put(SetupOptions(archive=archive, prefix=tmp_path / "a" / "b")) == tmp_path / "a" / "b"


def test_a_dry_run_tells_what_becomes_of_what_is_damaged(archive: Path, cache: Path) -> None:
    root = put(SetupOptions(archive=archive))
    assert install.plan(SetupOptions())[1].state == "there"
    (root / "libcoppeliaSim.so").write_text("yrarbil")
    _, step = install.plan(SetupOptions())
    assert step.state == "planned"
    assert "again, because CoppeliaSim is damaged" in step.text
    assert "libcoppeliaSim.so has other contents" in step.text


def test_a_found_folder_with_an_old_manifest_is_never_replaced(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpacked(tmp_path / "mine")
    coppeliasim.Manifest.of(root, "found", "", quiet).write(root)
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    assert put(SetupOptions(force=True)) == root
    (root / "coppeliaSim").write_text("changed")
    for force in (False, True):
        with pytest.raises(StorageError, match=r"polyarm did not install.*polyarm\.json") as told:
            put(SetupOptions(force=force))
        assert "--force" not in str(told.value)


def test_the_last_set_up_s_folder_is_the_next_one_s(
    tmp_path: Path, cache: Path, archive: Path
) -> None:
    bare, prefix = SetupOptions(), tmp_path / "prefix"
    put(SetupOptions(archive=archive, prefix=prefix))
    assert install.target_folder(bare) == cache / "CoppeliaSim"
    Environment(prefix, Path(sys.executable)).write()
    assert install.target_folder(bare) == prefix
    (prefix / "libcoppeliaSim.so").unlink()  # to be repaired
    assert install.target_folder(bare) == prefix
    assert install.target_folder(SetupOptions(prefix=tmp_path / "b")) == tmp_path / "b"
    Environment(tmp_path / "gone", Path(sys.executable)).write()
    assert install.target_folder(bare) == tmp_path / "gone"
    own = unpacked(tmp_path / "own")
    Environment(own, Path(sys.executable)).write()
    assert install.target_folder(bare) == own
    assert install.target_folder(SetupOptions(archive=archive)) == cache / "CoppeliaSim"
    (cache / "env.json").write_text("{")
    assert install.target_folder(bare) == cache / "CoppeliaSim"


def test_a_prefix_that_cannot_be_written_to_is_told_before_the_download(
    tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "file").touch()
    options = SetupOptions(url="http://127.0.0.1:9/none", prefix=tmp_path / "file" / "sim")
    with pytest.raises(StorageError, match=r"cannot be installed into .*file/sim.*--prefix"):
        put(options)


def test_network_add_ons_are_renamed_once_and_reported(archive: Path, cache: Path) -> None:
    root = put(SetupOptions(archive=archive))
    (root / "simAddOnScript_PyRep.lua").touch()
    planned = coppeliasim.plan_add_ons(root)
    step = coppeliasim.disable_add_ons(root)
    assert planned.text.removeprefix("would rename") == step.text.removeprefix("renamed")
    for name in DISABLED:
        assert name in step.text
        assert (root / f"{name}.disabled").exists()
        assert not (root / name).exists()
    assert (root / "simAddOnScript_PyRep.lua").exists()
    assert (root / "simAddOnScript-addOnScriptDemo.lua").exists()
    assert coppeliasim.disable_add_ons(root).state == "there"


def test_usrset_gets_its_line_once_and_keeps_the_others(archive: Path, cache: Path) -> None:
    root = put(SetupOptions(archive=archive))
    assert coppeliasim.plan_old_release(root).state == "planned"
    assert coppeliasim.allow_old_release(root).state == "done"
    assert coppeliasim.allow_old_release(root).state == "there"
    lines = (root / "system" / "usrset.txt").read_text().splitlines()
    assert lines == ["doNotShowUpdate=1", "allowOldEduRelease=7501"]
