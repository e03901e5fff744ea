"""LIBERO's assets in our cache: whole or absent, whatever the source and whoever interrupts."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyarm.errors import MissingExtra, RunConflict, StorageError
from polyarm.suites import archive
from polyarm.suites import cache as cache_module
from polyarm.suites.libero import assets, install
from polyarm.suites.libero.assets import Manifest, check_assets, checked_folder, find_assets
from polyarm.suites.libero.install import install_assets

MakeAssets = Callable[[Path], Path]


def quiet(doing: str, done: int, total: int) -> None: ...


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} if cache.exists() else set()


DONE = {"assets", "assets.json", "assets.lock"}


@pytest.fixture
def source(tmp_path: Path, make_assets: MakeAssets) -> Path:
    return make_assets(tmp_path / "source" / "assets")


def pack(source: Path, file: Path) -> Path:
    """An archive of a folder, in the format that the file's name asks for."""
    if file.suffix == ".zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(source.rglob("*")):
                packed.write(path, path.relative_to(source.parent))
        return file
    modes: dict[str, Any] = {".tar": "w", ".gz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}
    with tarfile.open(file, modes[file.suffix]) as tar:
        tar.add(source, source.name)
    return file


@pytest.mark.parametrize("form", ["tar", "tar.gz", "tar.xz", "tar.bz2", "zip"])
def test_an_archive_is_unpacked_into_the_cache(
    form: str, tmp_path: Path, cache: Path, source: Path
) -> None:
    packed = pack(source, tmp_path / f"libero.{form}")
    manifest, new = install_assets(packed, quiet)
    assert new
    assert find_assets() == checked_folder() == cache / "assets"
    assert contents(cache / "assets") == contents(source)
    assert manifest == Manifest.read(cache / "assets")
    assert manifest.source == str(packed)
    assert left_in(cache) == DONE


@pytest.mark.parametrize(
    "inside", [".", "assets", "libero/libero/assets", "LIBERO/libero/libero/assets"]
)
def test_a_folder_is_copied_wherever_the_assets_lie_in_it(
    inside: str, tmp_path: Path, cache: Path, make_assets: MakeAssets
) -> None:
    source = make_assets(tmp_path / "given" / inside)
    (source / ".cache").mkdir()
    (source / "textures" / "linked.png").symlink_to(source / "textures" / "wood.png")
    install_assets(tmp_path / "given", quiet)
    linked = cache / "assets" / "textures" / "linked.png"
    assert linked.read_bytes() == (source / "textures" / "wood.png").read_bytes()
    assert not linked.is_symlink()
    assert not (cache / "assets" / ".cache").exists()
    checked_folder()


def test_a_second_installation_finds_the_first(cache: Path, source: Path) -> None:
    install_assets(source, quiet)
    before = (cache / "assets").stat().st_ino
    assert install_assets(source, quiet)[1] is False
    assert install_assets(None, quiet)[1] is False
    assert (cache / "assets").stat().st_ino == before
    assert install_assets(source, quiet, force=True)[1] is True
    assert left_in(cache) == DONE


@pytest.mark.parametrize(
    "damage", ["missing", "shorter", "other contents", "no manifest", "half a manifest"]
)
def test_damage_is_told_with_the_file_and_the_command_that_repairs_it(
    damage: str, cache: Path, source: Path
) -> None:
    install_assets(source, quiet)
    victim = cache / "assets" / "textures" / "wood.png"
    if damage == "missing":
        victim.unlink()
    elif damage == "shorter":
        victim.write_bytes(b"wood")
    elif damage == "other contents":
        victim.write_bytes(b"Wood" + victim.read_bytes()[4:])
        checked_folder()
    elif damage == "no manifest":
        victim = cache / "assets.json"
        victim.unlink()
        assert find_assets() is None
    else:
        victim = cache / "assets.json"
        victim.write_text(victim.read_text()[:100])
    with pytest.raises(StorageError) as told:
        check_assets(cache / "assets", deep=True)
    assert str(victim) in str(told.value)
    assert "polyarm setup libero" in str(told.value)
    if "manifest" not in damage:
        assert f"--assets {source}" in str(told.value)
    assert install_assets(source, quiet)[1] is True
    check_assets(cache / "assets", deep=True)
    assert contents(cache / "assets") == contents(source)


def test_missing_assets_are_told_with_both_ways_to_get_them(cache: Path) -> None:
    assert find_assets() is None
    with pytest.raises(StorageError, match=r"does not exist.*polyarm setup libero .*--assets"):
        checked_folder()


def test_a_folder_that_is_named_is_used_as_it_is(
    tmp_path: Path, cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYARM_LIBERO_ASSETS", str(source))
    assert find_assets() == checked_folder() == source
    shutil.rmtree(source / "scenes")
    assert find_assets() is None
    with pytest.raises(StorageError, match=r"has no scenes/.*POLYARM_LIBERO_ASSETS.*unset it"):
        checked_folder()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"POLYARM_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"POLYARM_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/polyarm"),
        ({"POLYARM_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/polyarm"),
    ],
)
def test_the_cache_is_where_the_variables_say(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert assets.cache_folder() == Path(expected)


def test_a_source_without_assets_is_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(StorageError, match="there is no folder or archive"):
        install_assets(tmp_path / "nowhere", quiet)
    with pytest.raises(StorageError, match="holds no LIBERO assets"):
        install_assets(tmp_path / "home", quiet)
    (tmp_path / "notes.txt").write_text("no archive")
    with pytest.raises(StorageError, match=r"notes\.txt cannot be unpacked"):
        install_assets(tmp_path / "notes.txt", quiet)
    assert left_in(cache) <= {"assets.lock"}


def test_a_folder_that_lacks_what_its_scenes_name_is_refused(cache: Path, source: Path) -> None:
    (source / "textures" / "wood.png").unlink()
    with pytest.raises(StorageError, match=r"incomplete: 1 of the 2 files .*wood\.png"):
        install_assets(source, quiet)
    assert left_in(cache) <= {"assets.lock"}


@pytest.mark.parametrize("form", ["tar", "tar.gz", "tar.xz", "zip"])
@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_truncated_archive_is_told_and_leaves_nothing(
    form: str, share: float, tmp_path: Path, cache: Path, source: Path
) -> None:
    (source / "textures" / "noise.png").write_bytes(os.urandom(60_000))
    packed = pack(source, tmp_path / f"libero.{form}")
    # A .tar is padded with zeros, which may be lost.
    size = packed.stat().st_size - (10_240 if form == "tar" else 0)
    os.truncate(packed, int(size * share))
    with pytest.raises(StorageError, match=f"libero.{form} cannot be unpacked: it is truncated"):
        install_assets(packed, quiet)
    assert left_in(cache) == {"assets.lock"}


@pytest.mark.parametrize("name", ["../escaped", "assets/../../escaped", "/tmp/escaped", "a\\..\\b"])
@pytest.mark.parametrize("form", ["tar", "zip"])
def test_a_member_that_leads_out_is_refused(
    name: str, form: str, tmp_path: Path, cache: Path, source: Path
) -> None:
    packed = pack(source, tmp_path / f"libero.{form}")
    if form == "zip":
        with zipfile.ZipFile(packed, "a") as zipped:
            zipped.writestr(zipfile.ZipInfo(name), b"!")
    else:
        with tarfile.open(packed, "a") as tar:
            add(tar, name, b"!")
    with pytest.raises(StorageError, match="leads out of the folder"):
        install_assets(packed, quiet)
    assert left_in(cache) == {"assets.lock"}
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_a_tar_holds_files_and_folders_only(
    kind: bytes, tmp_path: Path, cache: Path, source: Path
) -> None:
    packed = pack(source, tmp_path / "libero.tar")
    with tarfile.open(packed, "a") as tar:
        add(tar, "assets/textures/odd", b"", kind)
    with pytest.raises(StorageError, match="textures/odd' is neither a file nor a folder"):
        install_assets(packed, quiet)
    assert left_in(cache) == {"assets.lock"}


def test_a_zip_holds_no_links(tmp_path: Path, cache: Path, source: Path) -> None:
    packed = pack(source, tmp_path / "libero.zip")
    link = zipfile.ZipInfo("assets/textures/odd")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(packed, "a") as zipped:
        zipped.writestr(link, "/etc/passwd")
    with pytest.raises(StorageError, match="textures/odd' is neither a file nor a folder"):
        install_assets(packed, quiet)


def test_an_archive_that_unpacks_to_far_too_much_is_refused(
    tmp_path: Path, cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_NBYTES", 10_000)
    for form in ("tar.xz", "zip"):
        with pytest.raises(StorageError, match="is beyond 10,000 bytes"):
            install_assets(pack(source, tmp_path / f"libero.{form}"), quiet)


def test_a_full_disk_is_told_and_gets_its_space_back(
    tmp_path: Path, source: Path, cache: Path, small_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "textures" / "large.png").write_bytes(os.urandom(300_000))
    packed = pack(source, tmp_path / "libero.tar.gz")
    with small_disk(tmp_path / "disk", "200k") as disk:
        monkeypatch.setenv("POLYARM_CACHE", str(disk))
        for given in (source, packed):
            with pytest.raises(StorageError, match=r"the disk is full.*POLYARM_CACHE"):
                install_assets(given, quiet)
            assert left_in(disk / "libero") == {"assets.lock"}


INSTALL = """
import sys
from pathlib import Path
from polyarm.suites.libero.install import install_assets

def progress(doing, done, total):
    print(doing, flush=True)
    if doing.startswith("copying") and done == 4:
        print("paused", flush=True)
        sys.stdin.readline()

print("new" if install_assets(Path(sys.argv[1]), progress)[1] else "found", flush=True)
"""


def installing(source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, str(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], start: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return
    pytest.fail(f"the process ended without saying {start!r}")


def test_a_killed_installation_leaves_nothing_that_counts(cache: Path, source: Path) -> None:
    with installing(source) as process:
        read_until(process, "paused")
        process.send_signal(signal.SIGKILL)
    assert any(name.startswith("assets.part-") for name in left_in(cache))
    assert find_assets() is None
    with pytest.raises(StorageError, match="polyarm setup libero"):
        checked_folder()
    assert install_assets(source, quiet)[1] is True
    assert left_in(cache) == DONE


def test_ctrl_c_cleans_up(cache: Path, source: Path) -> None:
    def interrupt(doing: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install_assets(source, interrupt)
    assert left_in(cache) == {"assets.lock"}


def test_of_two_installations_at_once_the_second_waits_and_finds_it_done(
    cache: Path, source: Path
) -> None:
    with installing(source) as first:
        read_until(first, "copying")
        with installing(source) as second:
            read_until(second, "waiting for another")
            first.communicate("go on\n", timeout=20)
            out, _ = second.communicate(timeout=20)
    assert out.splitlines()[-1] == "found"
    assert left_in(cache) == DONE


def test_waiting_for_another_installation_has_an_end(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "LOCK_TIMEOUT_S", 0.2)
    with installing(source) as other:
        read_until(other, "copying")
        with pytest.raises(RunConflict, match="another set-up of LIBERO has held"):
            install_assets(source, quiet)
        other.communicate("go on\n", timeout=20)


@pytest.mark.parametrize("place", ["package", "named in its configuration", "cache of hf-libero"])
def test_an_existing_installation_is_copied_and_left_alone(
    place: str, tmp_path: Path, cache: Path, make_assets: MakeAssets
) -> None:
    folder = {
        "package": tmp_path / "packages" / "libero" / "libero" / "assets",
        "named in its configuration": tmp_path / "elsewhere",
        "cache of hf-libero": tmp_path / "home" / ".cache" / "libero" / "assets",
    }[place]
    make_assets(folder)
    if place == "named in its configuration":
        (tmp_path / "home" / ".libero").mkdir()
        (tmp_path / "home" / ".libero" / "config.yaml").write_text(f"assets: '{folder}'\nx: y\n")
    before = contents(tmp_path / "home")
    manifest, _ = install_assets(None, quiet)
    assert manifest.source == str(folder)
    assert contents(cache / "assets") == contents(folder)
    assert contents(tmp_path / "home") == before


def test_an_existing_installation_that_is_incomplete_is_passed_over(
    tmp_path: Path, cache: Path, make_assets: MakeAssets
) -> None:
    folder = make_assets(tmp_path / "home" / ".cache" / "libero" / "assets")
    (folder / "scenes" / "table.stl").unlink()
    told: list[str] = []
    assert install.existing_installation(lambda doing, done, total: told.append(doing)) is None
    assert "incomplete" in told[0]


def test_the_configuration_keeps_libero_out_of_the_home(tmp_path: Path, cache: Path) -> None:
    assets.prepare_libero_config()
    folder = Path(os.environ["LIBERO_CONFIG_PATH"])
    lines = (folder / "config.yaml").read_text().splitlines()
    config = {key: json.loads(value) for key, _, value in (line.partition(": ") for line in lines)}
    root = tmp_path / "packages" / "libero" / "libero"
    assert config == {
        "benchmark_root": str(root),
        "bddl_files": str(root / "bddl_files"),
        "init_states": str(root / "init_files"),
        "datasets": str(cache / "datasets"),
        "assets": str(cache / "assets"),
    }
    for place in (folder, Path(os.environ["NUMBA_CACHE_DIR"]), Path(os.environ["MPLCONFIGDIR"])):
        assert cache in place.parents
        assert place.is_dir()
    assert not list((tmp_path / "home").iterdir())


def test_many_processes_may_write_the_configuration_at_once(tmp_path: Path, cache: Path) -> None:
    code = (
        "import os; from polyarm.suites.libero.assets import prepare_libero_config as go; go();"
        "print(open(os.environ['LIBERO_CONFIG_PATH'] + '/config.yaml').read().count('\\n'))"
    )
    path = os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    assert {run.communicate(timeout=30)[0] for run in runs} == {b"5\n"}
    (folder,) = (cache / "config").iterdir()
    assert left_in(folder) == {"config.yaml"}


def test_without_libero_there_is_no_configuration(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="polyarm setup libero"):
        assets.prepare_libero_config()


def test_a_cache_that_cannot_be_written_to_is_told(
    tmp_path: Path, cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="POLYARM_CACHE"):
        assets.prepare_libero_config()
    with pytest.raises(StorageError, match="not installed into"):
        install_assets(source, quiet)


def add(tar: tarfile.TarFile, name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, len(content), "textures/wood.png"
    tar.addfile(member, io.BytesIO(content))
