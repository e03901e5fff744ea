"""CoppeliaSim in its folder: whole or absent, and exactly 4.1.0, whoever interrupts."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from toy_coppeliasim import FILES, NEW_HEADER, TOP, empty_cache, pack, packed, quiet, unpacked

from polyarm.errors import InvalidCall, StorageError
from polyarm.suites.rlbench import coppeliasim, download, install
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
    assert set(manifest.files) == {"libcoppeliaSim.so", "libQt5Core.so.5.12.5", "coppeliaSim"}
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
    assert [path.name.partition("-")[0] for path in cache.iterdir()] == ["CoppeliaSim.part"]
    put(SetupOptions(archive=archive))
    assert {path.name for path in cache.iterdir()} == {"CoppeliaSim"}


def test_a_coppeliasim_that_is_there_is_used_if_it_is_the_right_one(
    tmp_path: Path, cache: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpacked(tmp_path / "mine")
    monkeypatch.setenv("COPPELIASIM_ROOT", str(root))
    for _ in range(2):
        found, step = install.install_coppeliasim(SetupOptions(), quiet)
        assert (found, step.state) == (root, "there")
    with pytest.raises(InvalidCall, match="was there before polyarm"):
        put(SetupOptions(force=True))
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
    assert put(SetupOptions(archive=archive, prefix=tmp_path / "a" / "b")) == tmp_path / "a" / "b"


def test_network_add_ons_are_renamed_once_and_reported(tmp_path: Path) -> None:
    root = unpacked(tmp_path / "root")
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


def test_usrset_gets_its_line_once_and_keeps_the_others(tmp_path: Path) -> None:
    root = unpacked(tmp_path / "root")
    assert coppeliasim.plan_old_release(root).state == "planned"
    assert coppeliasim.allow_old_release(root).state == "done"
    assert coppeliasim.allow_old_release(root).state == "there"
    lines = (root / "system" / "usrset.txt").read_text().splitlines()
    assert lines == ["doNotShowUpdate=1", "allowOldEduRelease=7501"]


class Server:
    """Serves one file with ranges, and breaks off, hangs or changes it on demand."""

    def __init__(self, data: bytes) -> None:
        self.data, self.ranges = data, list[str]()
        self.break_at: list[int] = []
        self.hang_at = 0
        self.hanging, self.released = threading.Event(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self))
        self.server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self.server.server_port}/files/{TOP}.tar.xz"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    def __init__(self, state: Server, *rest: Any) -> None:
        self.state = state
        super().__init__(*rest)

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        data, state = self.state.data, self.state
        if "missing" in self.path:
            self.send_error(404)
            return
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        state.ranges.append(self.headers.get("Range", ""))
        same = self.headers.get("If-Range", tag) == tag
        start = int((re.findall(r"bytes=(\d+)-", state.ranges[-1]) or [0])[0]) if same else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        end = state.break_at.pop(0) if state.break_at else len(data)
        if state.hang_at:
            end, state.hang_at = state.hang_at, 0
            self.wfile.write(data[start:end])
            state.hanging.set()
            state.released.wait(30)
        else:
            self.wfile.write(data[start:end])


@pytest.fixture
def server(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    noise = hashlib.shake_128(b"noise").hexdigest(200_000)
    packed = pack(tmp_path / "served.tar.xz", FILES | {"libNoise.so": noise})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = Server(packed.read_bytes())
    try:
        yield served
    finally:
        served.close()


def test_a_download_that_breaks_goes_on_from_that_byte(server: Server, cache: Path) -> None:
    server.break_at = [100_000, 150_000]
    told: list[tuple[str, int, int]] = []
    options = SetupOptions(url=server.url)
    root, step = install.install_coppeliasim(options, lambda *now: told.append(now))
    assert server.ranges == ["", "bytes=100000-", "bytes=150000-"]
    assert hashlib.sha256(server.data).hexdigest() in step.text
    size = len(server.data)
    assert ("downloading CoppeliaSim", size, size) in told
    assert any(doing == "unpacking" for doing, *_ in told)
    assert not list((cache / "download").iterdir())
    assert (root / "libNoise.so").exists()


def test_a_killed_download_goes_on_with_the_next_command(server: Server, cache: Path) -> None:
    server.hang_at = 131_072
    code = (
        "import sys\nfrom polyarm.suites.rlbench.install import install_coppeliasim\n"
        "from polyarm.suites.rlbench.options import SetupOptions\n"
        "install_coppeliasim(SetupOptions(url=sys.argv[1]), lambda *_: None)"
    )
    part = cache / "download" / f"{TOP}.tar.xz.part"
    with subprocess.Popen([sys.executable, "-c", code, server.url]) as child:
        assert server.hanging.wait(30)
        while not part.exists() or part.stat().st_size < 65_536:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    there = part.stat().st_size
    put(SetupOptions(url=server.url))
    assert server.ranges == ["", f"bytes={there}-"]
    assert not (cache / "CoppeliaSim").with_suffix(".part").exists()


def test_a_file_that_changed_meanwhile_is_fetched_anew(
    server: Server, archive: Path, cache: Path
) -> None:
    server.break_at = [100_000, 100_000]
    part = cache / "download" / f"{TOP}.tar.xz.part"
    with pytest.raises(StorageError, match=r"ended after 100,000.*same command.*--archive"):
        put(SetupOptions(url=server.url))
    assert part.stat().st_size == 100_000
    server.data = archive.read_bytes()
    root, step = install.install_coppeliasim(SetupOptions(url=server.url), quiet)
    assert hashlib.sha256(server.data).hexdigest() in step.text
    assert not (root / "libNoise.so").exists()


def test_a_download_that_cannot_be_used_is_not_used_again(server: Server, cache: Path) -> None:
    good, server.data = server.data, b"not an archive"
    with pytest.raises(StorageError, match="no archive"):
        put(SetupOptions(url=server.url))
    assert not list((cache / "download").glob("*.xz"))
    server.data = good
    put(SetupOptions(url=server.url))


def test_without_a_connection_or_a_file_the_other_way_is_named(server: Server) -> None:
    with pytest.raises(StorageError, match=r"404.*--archive"):
        put(SetupOptions(url=server.url.replace("files", "missing")))
    with pytest.raises(StorageError, match=r"refused.*--archive"):
        put(SetupOptions(url="http://127.0.0.1:9/none.tar.xz"))


def test_a_download_that_fills_the_disk_gives_the_space_back(
    server: Server, tmp_path: Path, small_disk: Any
) -> None:
    with small_disk(tmp_path / "disk", "100k") as disk:
        with pytest.raises(OSError, match="No space left"):
            download.download(server.url, disk / "file", quiet, "")
        assert not list(disk.iterdir())
