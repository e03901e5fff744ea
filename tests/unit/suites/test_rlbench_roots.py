"""A CoppeliaSim folder for each process: links, copies, and nothing written where it came from."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toy_coppeliasim import FILES, empty_cache, unpacked

from polyarm.errors import StorageError
from polyarm.suites.rlbench.private_root import PrivateRoot, make_twin

LEFT_OUT = {
    "simAddOnScript-b0RemoteApiServer.lua",
    "remoteApiConnections.txt",
    "addOns/Connectivity/server.lua",
    "addOns/ZMQ remote API server.lua",
    "addOns/WebSocket remote API server.lua",
}
SCRIPT = """
import sys
from pathlib import Path
from polyarm.suites.rlbench.private_root import PrivateRoot
root = Path(sys.argv[1])
"""
HOLD = "print(PrivateRoot(root).path, flush=True)\n"

Hold = Callable[[], PrivateRoot]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CoppeliaSim as it is installed, and an empty cache."""
    empty_cache(tmp_path, monkeypatch)
    folder = unpacked(tmp_path / "coppeliasim")
    (folder / "addOns" / "tools").mkdir()
    (folder / "addOns" / "tools" / "harmless.lua").write_text("harmless")
    (folder / "addOns" / "remoteness.lua").write_text("harmless")
    (folder / "libQt5Core.so.5").symlink_to("libQt5Core.so.5.12.5")
    (folder / "system" / "deep").mkdir()
    (folder / "system" / "deep" / "settings.txt").write_text("deep")
    return folder


@pytest.fixture
def hold(root: Path) -> Iterator[Hold]:
    """Takes a folder of one's own, which is given back after the test."""
    held: list[PrivateRoot] = []

    def take() -> PrivateRoot:
        held.append(PrivateRoot(root))
        return held[-1]

    yield take
    for one in held:
        one.close()


USRSET = FILES["system/usrset.txt"] + "\nallowOldEduRelease=7501\n"
"""As it is for workers: an expired release may start."""


def expected(root: Path) -> dict[str, str]:
    """What a private folder shows."""
    shown = {name: text for name, text in contents(root).items() if name not in LEFT_OUT}
    return shown | {"system/usrset.txt": USRSET}


def contents(folder: Path) -> dict[str, str]:
    """All files of a folder with their texts, links followed."""
    walk = os.walk(folder, followlinks=True)
    paths = [Path(home, name) for home, _, names in walk for name in names]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def test_a_private_folder_shows_all_but_the_network_add_ons(root: Path, hold: Hold) -> None:
    assert contents(root).keys() > LEFT_OUT
    assert contents(hold().path) == expected(root)
    assert "simAddOnScript-addOnScriptDemo.lua" in expected(root)
    assert (root / "system" / "usrset.txt").read_text() == FILES["system/usrset.txt"]


def test_a_licence_line_that_is_there_is_not_repeated(root: Path, hold: Hold) -> None:
    line = "allowOldEduRelease=1\n"
    (root / "system" / "usrset.txt").write_text(line)
    assert (hold().path / "system" / "usrset.txt").read_text() == line


def test_what_no_simulator_rewrites_is_linked(root: Path, hold: Hold) -> None:
    path = hold().path
    for name in ("libcoppeliaSim.so", "coppeliaSim", "programming", "libQt5Core.so.5"):
        assert (path / name).is_symlink()
        assert (path / name).readlink() == root / name


def test_settings_are_copies(root: Path, hold: Hold) -> None:
    path = hold().path
    for name in ("system", "system/usrset.txt", "system/deep", "system/deep/settings.txt"):
        assert not (path / name).is_symlink()
    (path / "system" / "usrset.txt").write_text("mine")
    assert (root / "system" / "usrset.txt").read_text() == FILES["system/usrset.txt"]


def test_of_the_add_ons_folder_only_servers_are_left_out(root: Path, hold: Hold) -> None:
    add_ons = hold().path / "addOns"
    assert not add_ons.is_symlink()
    assert sorted(path.name for path in add_ons.iterdir()) == ["remoteness.lua", "tools"]
    assert (add_ons / "tools").readlink() == root / "addOns" / "tools"


def test_an_add_ons_folder_without_servers_is_linked(root: Path, hold: Hold) -> None:
    for path in (root / "addOns").glob("*remote API*"):
        path.unlink()
    (root / "addOns" / "Connectivity" / "server.lua").unlink()
    (root / "addOns" / "Connectivity").rmdir()
    assert (hold().path / "addOns").readlink() == root / "addOns"


def test_servers_that_the_set_up_has_disabled_may_stay(root: Path, hold: Hold) -> None:
    disabled = root / "remoteApiConnections.txt.disabled"
    (root / "remoteApiConnections.txt").rename(disabled)
    assert (hold().path / disabled.name).readlink() == disabled


def test_a_folder_without_settings_has_none(root: Path, hold: Hold) -> None:
    for path in sorted((root / "system").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "system").rmdir()
    assert not (hold().path / "system").exists()


def test_the_installed_folder_is_never_written_to(root: Path, hold: Hold) -> None:
    before = contents(root)
    times = {path: path.lstat().st_mtime_ns for path in [root, *root.rglob("*")]}
    for _ in range(2):
        private = hold()
        (private.path / "system" / "settings.dat").write_text("mine")
        (private.path / "addOns" / "mine.lua").write_text("mine")
        (private.path / "remoteApiConnections.txt").write_text("mine")
        private.close()
    hold()
    assert contents(root) == before
    assert {path: path.lstat().st_mtime_ns for path in [root, *root.rglob("*")]} == times


def test_two_holders_have_different_folders(hold: Hold) -> None:
    paths = [hold().path for _ in range(3)]
    assert len(set(paths)) == 3
    (paths[0] / "system" / "usrset.txt").write_text("mine")
    assert (paths[1] / "system" / "usrset.txt").read_text() == USRSET


def test_folders_are_used_again_after_they_are_closed(hold: Hold) -> None:
    first, second = hold(), hold()
    first.close()
    third = hold()
    assert third.path == first.path != second.path
    first.close()  # a second time, which must not give the third one's folder away
    assert hold().path not in (second.path, third.path)


def test_a_folder_is_made_anew_each_time(root: Path, hold: Hold) -> None:
    first = hold()
    (first.path / "system" / "usrset.txt").write_text("half a li")
    (first.path / "coppeliaSim").unlink()
    (first.path / "left").mkdir()
    (first.path / "left" / "over.txt").touch()
    first.close()
    (root / "new.txt").touch()
    again = hold()
    assert again.path == first.path
    assert contents(again.path) == expected(root)


def test_making_a_folder_anew_deletes_nothing_behind_its_links(root: Path, hold: Hold) -> None:
    before = contents(root)
    first = hold()
    (first.path / "programming" / "more").symlink_to(root / "system")
    first.close()
    hold()
    (root / "programming" / "more").unlink()
    assert contents(root) == before


def test_another_coppeliasim_has_folders_of_its_own(tmp_path: Path, hold: Hold) -> None:
    other = PrivateRoot(unpacked(tmp_path / "other"))
    other.close()
    assert hold().path != other.path


def test_a_folder_goes_by_its_real_name(
    root: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root.parent / "link").symlink_to(root)
    monkeypatch.chdir(root.parent)
    one, other = PrivateRoot(Path("link")), hold()
    one.close()
    assert one.path.parent == other.path.parent
    assert (one.path / "coppeliaSim").readlink() == root / "coppeliaSim"


def test_the_folder_of_a_killed_holder_is_used_again(root: Path, hold: Hold) -> None:
    command = [sys.executable, "-c", f"{SCRIPT}{HOLD}sys.stdin.read()", str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as holder:
        try:
            assert holder.stdout is not None
            path = Path(holder.stdout.readline().strip())
            meanwhile = hold()
            assert meanwhile.path != path
            assert path.parent == meanwhile.path.parent
        finally:
            holder.kill()
    assert holder.returncode == -signal.SIGKILL
    assert hold().path == path


def test_a_child_process_does_not_hold_on_to_the_folder(hold: Hold) -> None:
    private = hold()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        private.close()
        assert hold().path == private.path
        assert child.stdin is not None
        child.stdin.close()


def without_privileges() -> None:
    """Let permissions hold for root, too, from the next program on."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None, use_errno=True).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.fixture
def read_only(root: Path) -> Iterator[Path]:
    """CoppeliaSim in a folder where nobody may write."""
    everything = [root, *(path for path in root.rglob("*") if not path.is_symlink())]
    modes = {path: path.stat().st_mode for path in everything}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    yield root
    for path, mode in modes.items():
        path.chmod(mode)


def run(code: str, root: Path) -> str:
    """What a program prints that nothing is allowed to but what permissions say."""
    command = [sys.executable, "-c", SCRIPT + code, str(root)]
    done = subprocess.run(
        command,
        preexec_fn=without_privileges,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_coppeliasim_may_be_read_only(read_only: Path) -> None:
    path = Path(run(HOLD, read_only).strip())
    assert (path / "coppeliaSim").readlink() == read_only / "coppeliaSim"
    assert (path / "system" / "usrset.txt").read_text() == USRSET


def test_copies_of_read_only_settings_can_be_written(read_only: Path) -> None:
    code = """
private = PrivateRoot(root)
(private.path / "system" / "usrset.txt").write_text("mine")
(private.path / "system" / "settings.dat").write_text("mine")
"""
    run(code, read_only)


def test_a_folder_of_a_read_only_coppeliasim_is_used_again(read_only: Path) -> None:
    run("PrivateRoot(root).close()\n" * 2, read_only)


def test_a_folder_that_cannot_be_made_is_not_held(root: Path) -> None:
    (root / "system" / "gone.txt").symlink_to("/nowhere")
    code = """
try:
    sys.exit(f"made {PrivateRoot(root).path}")
except OSError:
    (root / "system" / "gone.txt").unlink()
"""
    assert Path(run(code + HOLD, root).strip()).name == "0"


def test_a_folder_of_links_serves_as_the_one_behind_it(root: Path) -> None:
    before = contents(root)
    for _ in range(2):  # the second replaces the first
        twin = make_twin(root)
        assert contents(twin) == before | {"system/usrset.txt": USRSET}
        (twin / "simAddOnScript_PyRep.lua").write_text("as PyRep's build does")
    private = PrivateRoot(twin)
    private.close()
    built = {"simAddOnScript_PyRep.lua": "as PyRep's build does"}
    assert contents(private.path) == expected(root) | built
    assert contents(root) == before


def test_a_cache_without_locks_is_refused_with_the_way_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StorageError, match=r"cannot be locked.*POLYARM_CACHE"):
        PrivateRoot(root)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_path_that_pyrep_cannot_take_is_refused_with_the_way_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "Überall"))
    with pytest.raises(StorageError, match=r"ASCII.*POLYARM_CACHE"):
        PrivateRoot(root)


def test_hosts_that_share_a_cache_share_no_folder(
    hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = hold().path
    monkeypatch.setattr("platform.node", lambda: "another-host")
    assert hold().path.parent != here.parent
